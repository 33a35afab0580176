-- See bitmap_conditions.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS bitmap_conditions CASCADE;
CREATE SCHEMA bitmap_conditions;
SET search_path = bitmap_conditions, public;
SELECT setseed(0.5) \g /dev/null
CREATE TABLE asked AS SELECT id, v FROM :queries WHERE id <= 40;
-- The shares that rows are among.
CREATE TABLE items AS
SELECT id, v, jsonb_build_object('among', to_jsonb(ARRAY(SELECT s FROM unnest(ARRAY[500, 100, 10, 1]) AS s WHERE chance * 1000 < s)),
    'name', md5(id::text)) AS doc, ARRAY(SELECT s FROM unnest(ARRAY[500, 100, 10, 1]) AS s WHERE near * 1000 < s) AS tags
FROM (SELECT id, v, random() AS chance, percent_rank() OVER (ORDER BY v <-> (SELECT v FROM :rows WHERE id = 77)) AS near
    FROM :rows) AS r ORDER BY id;
ALTER TABLE items ADD PRIMARY KEY (id);
CREATE INDEX ON items USING gin (doc jsonb_path_ops);
CREATE INDEX ON items USING gin (tags);
CREATE INDEX ON items USING ivfpq (v);
VACUUM ANALYZE items;
CREATE TABLE conditions AS
SELECT kind, share, CASE kind WHEN 'chance' THEN format('doc @> ''{"among": [%s]}''', share) ELSE format('tags @> ''{%s}''', share) END AS text
FROM unnest(ARRAY['chance', 'near']) AS kind, unnest(ARRAY[500, 100, 10, 1]) AS share;
CREATE TABLE plans (number int, name text, settings text[]);
INSERT INTO plans VALUES (1, 'chosen', '{}'),
    (2, 'ordered scan, filter', '{enable_bitmapscan=off,enable_sort=off,enable_seqscan=off}'),
    (3, 'bitmap, sort', '{enable_indexscan=off,enable_seqscan=off}'), (4, 'no statistics', '{enable_sort=off,enable_seqscan=off}');

-- The ten smallest distances of each query.
CREATE TABLE truth (text text, id int, distances float8[]);
CREATE PROCEDURE find_truth() LANGUAGE plpgsql AS $$
DECLARE
    c conditions;
BEGIN
    FOR c IN TABLE conditions LOOP
        EXECUTE format('INSERT INTO truth SELECT %L, a.id, ARRAY(SELECT (i.v <-> a.v) + 0 AS d FROM items AS i WHERE %s ORDER BY d LIMIT 10)
            FROM asked AS a', c.text, c.text);
    END LOOP;
END $$;

CREATE FUNCTION measure(condition text, settings text[], OUT plan text, OUT ms numeric, OUT recall numeric, OUT rows numeric)
LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT id FROM items WHERE %s ORDER BY v <-> ', condition);
    setting text;
    line text;
    a record;
    since timestamptz;
    times float8[];
    found int[];
    good int;
    hits float8 := 0;
    wanted float8 := 0;
    got float8 := 0;
BEGIN
    FOREACH setting IN ARRAY settings LOOP
        PERFORM set_config(split_part(setting, '=', 1), split_part(setting, '=', 2), true);
    END LOOP;
    FOR a IN SELECT asked.v, distances AS d FROM asked JOIN truth USING (id) WHERE truth.text = condition ORDER BY id LOOP
        since := clock_timestamp();
        EXECUTE format('SELECT ARRAY(%s %L LIMIT 10)', query, a.v) INTO found;
        times := times || extract(epoch FROM clock_timestamp() - since)::float8 * 1000;
        SELECT count(*) INTO good FROM items WHERE id = ANY (found) AND v <-> a.v <= a.d[cardinality(a.d)];
        hits := hits + good;
        wanted := wanted + cardinality(a.d);
        got := got + cardinality(found);
    END LOOP;
    FOR line IN EXECUTE format('EXPLAIN (ANALYZE, TIMING OFF) %s %L LIMIT 10', query, a.v) LOOP
        plan := coalesce(plan, CASE WHEN line ~ 'Sort' THEN 'sort' WHEN line ~ '-> +Index Scan' THEN 'ordered scan, filter' END);
        IF line ~ 'Searched' THEN plan := regexp_replace(line, '^.*: ', ''); END IF;
    END LOOP;
    SELECT round(percentile_cont(0.5) WITHIN GROUP (ORDER BY t)::numeric, 2) INTO ms FROM unnest(times[3:]) AS t;
    recall := round((hits / wanted)::numeric, 3);
    rows := round((got / cardinality(times))::numeric, 1);
END $$;
CREATE TABLE results (kind text, share int, number int, plan text, ms numeric, recall numeric, rows numeric);
CREATE PROCEDURE measure_all(first int, last int) LANGUAGE plpgsql AS $$
DECLARE
    c conditions;
    p plans;
BEGIN
    FOR c IN TABLE conditions LOOP
        FOR p IN SELECT * FROM plans WHERE plans.number BETWEEN first AND last LOOP
            INSERT INTO results SELECT c.kind, c.share, p.number, m.* FROM measure(c.text, p.settings) AS m;
            COMMIT;
        END LOOP;
    END LOOP;
END $$;
SET enable_indexscan = off;
SET enable_bitmapscan = off;
CALL find_truth();
RESET enable_indexscan;
RESET enable_bitmapscan;
:settings
CALL measure_all(1, 3);
DELETE FROM pg_statistic WHERE starelid = 'items'::regclass AND staattnum > 2;
CALL measure_all(4, 4);
SELECT r.kind, round(r.share / 10.0, 1) || '%' AS share, p.name, r.plan, r.ms, r.recall, r.rows
FROM results AS r JOIN plans AS p USING (number) ORDER BY r.kind, r.share DESC, number;
