-- Run by filter_plans, which says what is measured.
SET client_min_messages = warning;
CREATE EXTENSION pgwarp;

-- Vectors around 300 centers. A value of `kind` for each share, 1 for the smallest; `label` is the same
-- as text. `price` is uniform in [0, 1). `tenant` has 1,000 values.
SELECT setseed(0.25) \g /dev/null
CREATE TABLE centers AS
SELECT c, array_agg(random() * 2 - 1) AS place
FROM generate_series(0, 299) AS c, generate_series(1, :dims) AS d GROUP BY c;
CREATE FUNCTION near(place float8[]) RETURNS vector LANGUAGE sql VOLATILE
    AS 'SELECT array_agg(x + (random() + random() + random() - 1.5) * 0.8)::vector FROM unnest(place) AS x';
CREATE TABLE items (id int, kind int, label text, price float8, tenant int, v vector(:dims));
INSERT INTO items
SELECT i, kind, 'label ' || kind, random(), floor(random() * 1000), near(place)
FROM (SELECT i, ((row_number() OVER (ORDER BY random()) - 0.5) / :rows)::float8 AS part
      FROM generate_series(1, :rows) AS i) AS s
JOIN LATERAL (SELECT width_bucket(part, ARRAY[0, 0.00001, 0.00011, 0.00041, 0.00141, 0.00441,
    0.01441, 0.03441, 0.08441, 0.18441, 0.38441, 0.88441]) AS kind) AS k ON true
JOIN centers ON c = i % 300
ORDER BY i;
CREATE TABLE queries AS
SELECT i, near(place) AS v FROM generate_series(1, 16) AS i JOIN centers ON c = i * 17 % 300;
CREATE INDEX items_kind ON items (kind);
CREATE INDEX items_label ON items (label);
CREATE INDEX items_price ON items (price);
CREATE INDEX items_tenant ON items (tenant);
VACUUM ANALYZE items;

CREATE TABLE conditions (number int GENERATED ALWAYS AS IDENTITY, col text, condition text);
INSERT INTO conditions (col, condition)
SELECT 'kind', 'kind = ' || i FROM generate_series(11, 1, -1) AS i;
INSERT INTO conditions (col, condition)
SELECT 'label', format('label = %L', 'label ' || i) FROM generate_series(11, 1, -1) AS i;
INSERT INTO conditions (col, condition)
SELECT 'price', 'price < ' || share
FROM unnest(ARRAY[0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00001]) AS share;
INSERT INTO conditions (col, condition)
SELECT 'tenant', format('tenant IN (%s)', string_agg((t * 13 % 1000)::text, ', ' ORDER BY t))
FROM unnest(ARRAY[500, 200, 100, 50, 20, 10, 3, 2]) AS n, generate_series(1, n) AS t GROUP BY n
ORDER BY n DESC;

CREATE INDEX items_v ON items USING ivfpq (v);
CREATE INDEX items_v_kind ON items USING ivfpq (v, kind);
CREATE INDEX items_v_label ON items USING ivfpq (v, label);
CREATE INDEX items_v_price ON items USING ivfpq (v, price);
CREATE INDEX items_v_tenant ON items USING ivfpq (v, tenant);

-- The planner sees these indexes only.
CREATE PROCEDURE show_indexes(VARIADIC names text[]) LANGUAGE sql AS $$
    UPDATE pg_index SET indisvalid = indexrelid::regclass::text = ANY (names)
    WHERE indrelid = 'items'::regclass $$;

-- Settings that force a plan; `term` hides the order from ivfpq.
CREATE TABLE plans (plan text, settings text, term text);
INSERT INTO plans VALUES
    ('ivfpq', 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off', ''),
    ('btree', 'SET enable_seqscan = off', ' + 0'),
    ('seq', 'SET enable_indexscan = off; SET enable_bitmapscan = off', ' + 0');
CREATE PROCEDURE force(given plans) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_indexscan; RESET enable_sort;'
        || coalesce(given.settings, '');
END $$;
CREATE FUNCTION query_of(condition text, asked vector, term text, k int) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT id FROM items WHERE %s ORDER BY (v <-> %L)%s LIMIT %s', condition, asked, term, k) $$;

CREATE TABLE times (number int, k int, has_column bool, plan text, ms float8);
CREATE PROCEDURE measure(given conditions, k int, has_column bool, forced plans) LANGUAGE plpgsql AS $$
DECLARE
    asked queries;
    plan json;
BEGIN
    CALL force(forced);
    FOR asked IN SELECT * FROM queries ORDER BY i LOOP
        EXECUTE 'EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ' ||
            query_of(given.condition, asked.v, forced.term, k) INTO plan;
        IF asked.i > 1 THEN  -- the first brings pages into memory
            INSERT INTO times
            VALUES (given.number, k, has_column, forced.plan, (plan #>> '{0,Execution Time}')::float8);
        END IF;
        EXIT WHEN forced.plan = 'seq' AND asked.i > 5;
    END LOOP;
    CALL force(NULL);
END $$;

-- What the planner takes: of all three plans, and of ivfpq and a sequential scan.
CREATE TABLE choices (number int, k int, has_column bool, with_btree bool, plan text, cost float8);
CREATE PROCEDURE choose(given conditions, k int, has_column bool, with_btree bool) LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' ||
        query_of(given.condition, (SELECT v FROM queries WHERE i = 1), '', k) INTO plan;
    INSERT INTO choices
    SELECT given.number, k, has_column, with_btree,
        CASE WHEN plan::text ~ 'Index Name": "items_v' THEN 'ivfpq'
            WHEN plan::text ~ 'Index Name": "items_' THEN 'btree' ELSE 'seq' END,
        (plan #>> '{0,Plan,Total Cost}')::float8;
END $$;

CREATE PROCEDURE run(limits int[]) LANGUAGE plpgsql AS $$
DECLARE
    given conditions;
    k int;
    has_column bool;
    ivfpq text;
    forced plans;
BEGIN
    FOR given IN SELECT * FROM conditions ORDER BY number LOOP
        FOREACH k IN ARRAY limits LOOP
            FOREACH has_column IN ARRAY '{false, true}'::bool[] LOOP
                ivfpq := 'items_v' || CASE WHEN has_column THEN '_' || given.col ELSE '' END;
                CALL show_indexes(ivfpq);
                CALL choose(given, k, has_column, false);
                CALL show_indexes(ivfpq, 'items_' || given.col);
                CALL choose(given, k, has_column, true);
                FOR forced IN SELECT * FROM plans LOOP
                    CALL measure(given, k, has_column, forced);
                END LOOP;
                COMMIT;
            END LOOP;
        END LOOP;
    END LOOP;
END $$;

:settings
SELECT format('CALL run(%L)', '{' || :'limits' || '}') \gexec

CREATE VIEW result AS
WITH medians AS (
    SELECT number, k, has_column, plan, percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS ms
    FROM times GROUP BY 1, 2, 3, 4),
figures AS (
    SELECT number, k, has_column, max(ms) FILTER (WHERE plan = 'ivfpq') AS ivfpq,
        max(ms) FILTER (WHERE plan = 'btree') AS btree, max(ms) FILTER (WHERE plan = 'seq') AS seq
    FROM medians GROUP BY 1, 2, 3)
SELECT left(condition, 20) AS condition, k, has_column, round(ivfpq::numeric, 2) AS ivfpq,
    round(btree::numeric, 2) AS btree, round(seq::numeric, 2) AS seq, a.plan AS chosen,
    round((CASE a.plan WHEN 'ivfpq' THEN ivfpq WHEN 'btree' THEN btree ELSE seq END
        / least(ivfpq, btree, seq))::numeric, 2) AS ratio,
    b.plan AS without_btree,
    round((CASE b.plan WHEN 'ivfpq' THEN ivfpq ELSE seq END / least(ivfpq, seq))::numeric, 2) AS ratio_without
FROM figures JOIN conditions USING (number)
JOIN choices AS a USING (number, k, has_column) JOIN choices AS b USING (number, k, has_column)
WHERE a.with_btree AND NOT b.with_btree
ORDER BY has_column, k, number;
SELECT * FROM result;
SELECT count(*) AS cases, count(*) FILTER (WHERE ratio > 1.5) AS slower, max(ratio) AS worst,
    count(*) FILTER (WHERE ratio_without > 1.5) AS slower_without, max(ratio_without) AS worst_without
FROM result;
