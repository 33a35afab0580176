-- LATERAL joins with the nearest rows, which search an index for many rows at a time.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

-- Where the service answers scans, joins are not planned in batches.
SET ivfpq.executor = cpu;
CREATE TABLE items (id int, kind int, v vector(8));
INSERT INTO items SELECT i, i % 10, vec(i, 8) FROM generate_series(1, 3300) AS i;
INSERT INTO items VALUES (-1, 0, NULL);
CREATE INDEX items_v ON items USING ivfpq (v) WITH (lists = 20);
CREATE TABLE queries (id int, n int, v vector(8));
INSERT INTO queries SELECT i, i % 7, vec(i, 8, 3) FROM generate_series(1, 80) AS i;
INSERT INTO queries VALUES (1000, 1, NULL), (1001, 1, NULL);
ANALYZE items, queries;
-- all lists and candidates: the rows are the exact ones, however they are searched
SET ivfpq.probes = 20;
SET ivfpq.candidates = 1000;

-- Runs a query with batches, without, and without indexes. `query` has one column, of text.
CREATE FUNCTION compare_lateral(query text, OUT batched boolean, OUT rows bigint, OUT as_plain boolean,
                             OUT as_exact boolean)
LANGUAGE plpgsql AS $$
DECLARE
    gather text := 'SELECT coalesce(array_agg(r ORDER BY r), ''{}'') FROM (' || query || ') AS s(r)';
    plan json;
    found text[];
    plain text[];
    exact text[];
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    batched := plan::text LIKE '%Ivfpq Batch%';
    EXECUTE gather INTO found;
    PERFORM set_config('ivfpq.enable_batched_join', 'off', true);
    EXECUTE gather INTO plain;
    PERFORM set_config('enable_indexscan', 'off', true);
    EXECUTE gather INTO exact;
    PERFORM set_config('enable_indexscan', 'on', true), set_config('ivfpq.enable_batched_join', 'on', true);
    rows := cardinality(found);
    as_plain := found = plain;
    as_exact := found = exact;
END
$$;

\qecho the plan
SELECT plan_of('SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s');
SELECT plan_of('SELECT q.id, s.id FROM queries q LEFT JOIN LATERAL
    (SELECT id, v <-> q.v AS d FROM items ORDER BY items.v <-> q.v LIMIT 5) s ON s.d < 100');
SET ivfpq.enable_batched_join = off;
SELECT plan_of('SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s');
RESET ivfpq.enable_batched_join;
-- what the custom scan tells
CREATE FUNCTION properties(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    line text;
    own bool;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
        -- From 18 on, the scans below it tell of themselves.
        IF line ~ '\((actual|never executed)' THEN
            own := line ~ 'Custom Scan';
        END IF;
        IF own AND line ~ 'Custom Scan|Index:|Indexes:|Executor:|Batches:|Queries:|Single Scans:|Search:|Lists:|Probes:|Candidates:' THEN
            RETURN NEXT regexp_replace(trim(line), ' rows=(\d+)(\.00)? ', ' rows=\1 ');
        END IF;
    END LOOP;
END
$$;
SELECT properties('SELECT FROM queries q, LATERAL (SELECT FROM items ORDER BY v <-> q.v LIMIT 5) s');

\qecho rows
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.d) FROM queries q CROSS JOIN LATERAL
    (SELECT id, items.v <-> q.v AS d FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
-- null queries: any rows, as many as LIMIT says
SELECT q.id, count(*), count(s.d) FROM queries q CROSS JOIN LATERAL
    (SELECT id, items.v <-> q.v AS d FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.id > 78 GROUP BY q.id ORDER BY q.id;
SET enable_seqscan = off;
SELECT count(*), count(DISTINCT q.id), count(s.d) FROM queries q CROSS JOIN LATERAL
    (SELECT id, items.v <-> q.v AS d FROM items ORDER BY items.v <-> q.v LIMIT 5) s;
RESET enable_seqscan;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q LEFT JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s ON true WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q LEFT JOIN LATERAL
    (SELECT id, v <-> q.v AS d FROM items ORDER BY items.v <-> q.v LIMIT 5) s ON s.d < 100 AND s.id % 2 = q.n % 2 WHERE q.v IS NOT NULL');
\qecho OFFSET, LIMIT 0, LIMIT ALL, LIMIT beyond the table, LIMIT with ties, LIMIT by query
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5 OFFSET 7) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q LEFT JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 0) s ON true WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT ALL) s WHERE q.id < 3');
SELECT rows, as_plain FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 6000) s WHERE q.id < 12');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v FETCH FIRST 5 ROWS WITH TIES) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT q.n) s WHERE q.v IS NOT NULL');
SELECT error_of('SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT -1) s');
\qecho what stands around
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, o.n) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s JOIN queries o ON o.id = s.id WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', a.id, q.id, s.id) FROM (SELECT * FROM queries WHERE v IS NOT NULL) q
    JOIN queries a ON a.n = q.n AND a.id < 10 CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s');
-- the query from both tables, and computed
SELECT * FROM compare_lateral('SELECT concat_ws('','', a.id, q.id, s.id) FROM (SELECT * FROM queries WHERE v IS NOT NULL) q
    JOIN queries a ON a.n = q.n AND a.id < 10 CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> (q.v + a.v) LIMIT 5) s');
-- two searches for each row
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, t.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id, v FROM items ORDER BY items.v <-> q.v LIMIT 3) s CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> s.v LIMIT 2) t WHERE q.v IS NOT NULL');
-- an outer row often
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM
    (SELECT * FROM queries WHERE id < 60 UNION ALL SELECT * FROM queries WHERE id < 60) q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s');
-- no outer row
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM (SELECT * FROM queries WHERE n < 0 OFFSET 0) q LEFT JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s ON true');
-- the query of a subquery, which the join cannot know ahead
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> (SELECT o.v FROM queries o WHERE o.id = 81 - q.id) LIMIT 5) s WHERE q.id <= 80');
-- aggregates, windows and expressions of the inner query
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.r, s.x) FROM queries q CROSS JOIN LATERAL
    (SELECT id * q.n AS x, round((items.v <-> q.v)::numeric, 3) AS r FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.ids) FROM queries q CROSS JOIN LATERAL
    (SELECT array_agg(id ORDER BY id) AS ids FROM (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) i) s WHERE q.v IS NOT NULL');
-- conditions, on rows alone and with the outer row; without candidates that all queries have, the
-- scan goes on by itself
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE kind <> 3 ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE kind <> q.n ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM items q CROSS JOIN LATERAL
    (SELECT id FROM items i WHERE i.id <> q.id ORDER BY i.v <-> q.v LIMIT 5) s WHERE q.id BETWEEN 1 AND 80');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q LEFT JOIN LATERAL
    (SELECT id FROM items WHERE kind > q.n + 3 AND id < 3000 ORDER BY items.v <-> q.v LIMIT 5 OFFSET 2) s ON true WHERE q.v IS NOT NULL');
\qecho what batches must not do: other LIMITs, volatile conditions, rows locked ahead
CREATE SEQUENCE calls;
SELECT batched, rows BETWEEN 80 AND 400 FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT (1 + random() * 4)::int) s WHERE q.v IS NOT NULL');
SELECT batched, as_plain FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE nextval(''calls'') IS NOT NULL ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
CREATE TABLE first_queries AS SELECT id, n FROM queries WHERE id <= 10;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE (SELECT o.n FROM first_queries o WHERE o.id = items.kind + 1 AND o.n = q.n) IS NOT NULL
     ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE items.v IS NOT NULL ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT bool_or(p ~ 'Ivfpq Batch') FROM plan_of('SELECT q.id, s.id FROM (SELECT * FROM queries FOR UPDATE SKIP LOCKED) q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s') AS p;
SELECT bool_or(p ~ 'Ivfpq Batch') FROM plan_of('WITH q AS MATERIALIZED (SELECT * FROM queries FOR UPDATE)
    SELECT q.id, s.id FROM q CROSS JOIN LATERAL (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s') AS p;
-- a condition on the outer row alone is a gate above the scan
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q LEFT JOIN LATERAL
    (SELECT id FROM items WHERE q.n > 2 ORDER BY items.v <-> q.v LIMIT 5) s ON true WHERE q.v IS NOT NULL');
SELECT properties('SELECT FROM queries q, LATERAL (SELECT FROM items WHERE q.n >= 0 ORDER BY v <-> q.v LIMIT 5) s');
-- a row that fails one condition is not shown to the other
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE CASE WHEN kind > 0 THEN 1 / kind >= 0 END ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
-- fewer rows than the planner thinks
SELECT rows, as_plain, as_exact FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE NOT (kind < q.n + 9 AND kind >= 0) ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT rows, as_plain, as_exact FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q LEFT JOIN LATERAL
    (SELECT id FROM items WHERE kind <> 1 AND kind + q.n < -5 IS NOT TRUE AND id > 0 AND id IS NOT NULL AND (kind > 90) IS NOT FALSE ORDER BY items.v <-> q.v LIMIT 5) s ON true WHERE q.v IS NOT NULL');
SET ivfpq.candidates = 100;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE kind + 0 > 8 ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT line FROM properties('SELECT FROM queries q, LATERAL
    (SELECT id FROM items WHERE kind + 0 > 8 ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL') AS line WHERE line ~ 'Batches|Queries|Single';
SELECT line FROM properties('SELECT FROM queries q, LATERAL
    (SELECT id FROM items WHERE kind > 4 ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL') AS line WHERE line ~ 'Batches|Queries|Single';
-- an error of a condition
SELECT error_of('SELECT count(*) FROM queries q, LATERAL
    (SELECT id FROM items WHERE 1 / (kind - 3) < 5 ORDER BY items.v <-> q.v LIMIT 5) s');
SET ivfpq.candidates = 1000;
-- volatile functions, subqueries and bounds on the distance are left to scans
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE random() < 2 ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE kind <> (SELECT min(n) FROM queries) ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE items.v <-> q.v < 90 ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items WHERE v IS NOT NULL ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');

\qecho rescans: for each of these, the join runs again
SELECT * FROM compare_lateral('SELECT concat_ws('','', r, s.id) FROM generate_series(1, 3) AS r CROSS JOIN LATERAL
    (SELECT string_agg(s.id::text, '','' ORDER BY q.id, s.id) AS id FROM (SELECT * FROM queries WHERE v IS NOT NULL AND id > r * 10 OFFSET 0) q CROSS JOIN LATERAL
        (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s) s');
SELECT r, (SELECT count(*) || ' ' || md5(string_agg(concat_ws(',', q.id, s.id), ' ' ORDER BY q.id, s.id)) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 3) s WHERE q.v IS NOT NULL AND q.id > r)
    = (SELECT count(*) || ' ' || md5(string_agg(concat_ws(',', q.id, s.id), ' ' ORDER BY q.id, s.id)) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM (SELECT * FROM items OFFSET 0) items ORDER BY items.v <-> q.v LIMIT 3) s WHERE q.v IS NOT NULL AND q.id > r)
FROM generate_series(0, 60, 30) AS r;

\qecho prepared statements
SET plan_cache_mode = force_generic_plan;
PREPARE nearest(int) AS SELECT q.id, count(*), min(s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT $1) s WHERE q.v IS NOT NULL GROUP BY q.id ORDER BY q.id LIMIT 2;
SELECT plan_of('EXECUTE nearest(4)');
EXECUTE nearest(4);
EXECUTE nearest(1);
EXECUTE nearest(0);
EXECUTE nearest(NULL);
DEALLOCATE nearest;
RESET plan_cache_mode;

\qecho cursors, changes of the same transaction, and subtransactions
BEGIN;
DECLARE c CURSOR FOR SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 1) s WHERE q.v IS NOT NULL ORDER BY q.id;
DECLARE d NO SCROLL CURSOR FOR SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 1) s WHERE q.v IS NOT NULL;
FETCH 2 FROM c;
SAVEPOINT a;
DELETE FROM items;
FETCH 2 FROM d;
SELECT count(*) FROM queries q CROSS JOIN LATERAL (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 1) s;
INSERT INTO items SELECT q.id + 100000, 0, q.v FROM queries q WHERE v IS NOT NULL;
SELECT count(*), count(*) FILTER (WHERE s.id = q.id + 100000) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 1) s WHERE q.v IS NOT NULL;
FETCH 2 FROM c;
ROLLBACK TO a;
FETCH 2 FROM c;
FETCH 2 FROM d;
MOVE ALL IN d;
COMMIT;
-- rows that the statement itself adds
BEGIN;
INSERT INTO items SELECT 200000 + q.id, s.id, q.v FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 1) s WHERE q.v IS NOT NULL;
SELECT count(*), count(*) FILTER (WHERE kind >= 200000) FROM items WHERE id > 200000;
-- rows that were updated, in place for the index, and moved
UPDATE items SET kind = kind + 1 WHERE id % 3 = 0;
UPDATE items SET kind = kind + 1 WHERE id % 3 = 0;
UPDATE items SET v = v + v WHERE id % 5 = 0;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
ROLLBACK;

\qecho locked rows, and joins that change them, are left to scans
SELECT plan_of('SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s FOR UPDATE OF q');
SELECT plan_of('UPDATE queries SET n = s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 1) s WHERE q.id = queries.id') LIKE '%Ivfpq Batch%' AS batched GROUP BY 1;

\qecho wrong dimensions are an error, as without batches
CREATE TABLE other (id int, v vector);
INSERT INTO other SELECT i, vec(i, 8) FROM generate_series(1, 200) AS i;
INSERT INTO other VALUES (0, '[1,2,3]');
ANALYZE other;
SELECT error_of('SELECT count(*) FROM other q CROSS JOIN LATERAL (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s');

\qecho row security and views
CREATE ROLE regress_ivfpq_join;
GRANT SELECT ON items, queries TO regress_ivfpq_join;
GRANT USAGE ON SCHEMA ivfpq_test, public TO regress_ivfpq_join;
CREATE VIEW near_items AS SELECT q.id AS query, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL;
CREATE VIEW barrier WITH (security_barrier) AS SELECT * FROM items WHERE kind <> 3;
GRANT SELECT ON near_items, barrier TO regress_ivfpq_join;
ALTER TABLE items ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON items TO regress_ivfpq_join USING (kind = 7);
SET ivfpq.candidates = 100;
SET enable_seqscan = off;
SELECT * FROM compare_lateral('SELECT concat_ws('','', query, id) FROM near_items');
SET ROLE regress_ivfpq_join;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT s.kind, count(*) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL GROUP BY s.kind;
-- the owner's rights
SELECT * FROM compare_lateral('SELECT concat_ws('','', query, id) FROM near_items');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM barrier ORDER BY v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
RESET ROLE;
RESET enable_seqscan;
SET ivfpq.candidates = 1000;
ALTER TABLE items DISABLE ROW LEVEL SECURITY;
REVOKE SELECT ON items FROM regress_ivfpq_join;
SET ROLE regress_ivfpq_join;
SELECT error_of('SELECT count(*) FROM queries q CROSS JOIN LATERAL (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s');
SELECT count(*) FROM near_items;
RESET ROLE;

\qecho partitions
CREATE TABLE parts (id int, kind int, v vector(8)) PARTITION BY HASH (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE parts_3 (kind int, v vector(8), gone int, id int);
ALTER TABLE parts_3 DROP COLUMN gone;
ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES WITH (MODULUS 3, REMAINDER 2);
INSERT INTO parts SELECT * FROM items WHERE v IS NOT NULL;
CREATE INDEX parts_v ON parts USING ivfpq (v) WITH (lists = 20);
ANALYZE parts;
SET enable_seqscan = off;
SELECT plan_of('SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM parts ORDER BY parts.v <-> q.v LIMIT 5) s');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM parts ORDER BY parts.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
-- the outer row decides which partitions are searched: its scan does that, whether the planner sees it or the executor
CREATE TABLE by_kind (id int, kind int, v vector(8)) PARTITION BY LIST (kind);
CREATE TABLE by_kind_1 PARTITION OF by_kind FOR VALUES IN (0, 1, 2);
CREATE TABLE by_kind_2 PARTITION OF by_kind FOR VALUES IN (3, 4, 5);
CREATE TABLE by_kind_3 PARTITION OF by_kind DEFAULT;
INSERT INTO by_kind SELECT * FROM items WHERE v IS NOT NULL;
CREATE INDEX by_kind_v ON by_kind USING ivfpq (v) WITH (lists = 20);
ANALYZE by_kind;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM by_kind WHERE kind = q.n ORDER BY by_kind.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM by_kind WHERE kind IN (q.n, q.n + 1, q.n + 2) ORDER BY by_kind.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT line FROM properties('SELECT FROM queries q, LATERAL
    (SELECT id FROM by_kind WHERE kind IN (q.n, q.n + 1, q.n + 2) ORDER BY by_kind.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL') AS line WHERE line ~ 'Batches|Queries|Single';
-- not so here: all partitions are
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM parts WHERE parts.id <> q.id ORDER BY parts.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
-- many partitions; memory for a few queries at a time
CREATE TABLE slices (id int, kind int, v vector(8)) PARTITION BY HASH (id);
DO $$BEGIN FOR i IN 0 .. 19 LOOP EXECUTE format('CREATE TABLE slices_%s PARTITION OF slices FOR VALUES WITH (MODULUS 20, REMAINDER %1$s)', i); END LOOP; END$$;
INSERT INTO slices SELECT i, i % 10, vec(i, 8, 17) FROM generate_series(1, 22000) AS i;
CREATE INDEX slices_v ON slices USING ivfpq (v) WITH (lists = 4, m = 4);
ANALYZE slices;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM slices ORDER BY slices.v <-> q.v LIMIT 5) s WHERE q.id <= 40');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM slices WHERE kind <> q.n ORDER BY slices.v <-> q.v LIMIT 5) s WHERE q.id <= 40');
SELECT line FROM properties('SELECT FROM queries q, LATERAL (SELECT id FROM slices ORDER BY slices.v <-> q.v LIMIT 100) s WHERE q.id <= 40') AS line
    WHERE line ~ 'Batches|Queries|Single';
SET work_mem = '384kB';
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, s.kind) FROM queries q CROSS JOIN LATERAL
    (SELECT id, kind FROM slices ORDER BY slices.v <-> q.v LIMIT 100) s WHERE q.id <= 40');
SELECT line FROM properties('SELECT FROM queries q, LATERAL (SELECT id FROM slices ORDER BY slices.v <-> q.v LIMIT 100) s WHERE q.id <= 40') AS line
    WHERE line ~ 'Batches|Queries|Single';
RESET work_mem;
RESET enable_seqscan;

\qecho without a row, the index is not read
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT line FROM properties('SELECT FROM (SELECT * FROM queries WHERE n + id < 0) q, LATERAL (SELECT FROM items ORDER BY v <-> q.v LIMIT 5) s')
    AS line WHERE line ~ 'Custom|Batches|Queries|Single';
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND relation = 'items_v'::regclass;
SELECT count(*) FROM queries q, LATERAL (SELECT FROM items ORDER BY v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND relation = 'items_v'::regclass;
COMMIT;

\qecho columns of the index behind the vector
CREATE TABLE kinds (id int, kind int, name text, v vector(8));
INSERT INTO kinds SELECT id, kind, 'n' || id % 4, v FROM items WHERE v IS NOT NULL;
CREATE INDEX kinds_v ON kinds USING ivfpq (v, kind, name) WITH (lists = 20);
ANALYZE kinds;
SET enable_seqscan = off;
SET ivfpq.candidates = 100;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM kinds WHERE kind >= 2 AND kind <= q.n + 3 ORDER BY v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM kinds WHERE name = ''n'' || q.n % 4 ORDER BY v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SET ivfpq.candidates = 1000;
RESET enable_seqscan;

\qecho partial indexes and indexes on expressions
CREATE TABLE halves (id int, kind int, v vector(8));
INSERT INTO halves SELECT * FROM items WHERE v IS NOT NULL;
CREATE INDEX halves_v ON halves USING ivfpq ((v::halfvec(8)) halfvec_l2_ops) WITH (lists = 20);
CREATE INDEX halves_kind ON halves USING ivfpq (v) WITH (lists = 20) WHERE kind = 4;
ANALYZE halves;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM halves ORDER BY v::halfvec(8) <-> q.v::halfvec(8) LIMIT 5) s WHERE q.v IS NOT NULL');
SET enable_seqscan = off;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM halves WHERE kind = 4 ORDER BY v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
RESET enable_seqscan;

\qecho other metrics, exact searches, and an index without a model
CREATE INDEX items_cosine ON items USING ivfpq (v vector_cosine_ops) WITH (lists = 20);
CREATE INDEX items_product ON items USING ivfpq (v vector_ip_ops) WITH (lists = 20);
SELECT batched, rows, as_plain FROM compare_lateral('SELECT concat_ws('','', q.id, round(s.d::numeric, 4)) FROM queries q CROSS JOIN LATERAL
    (SELECT items.v <=> q.v AS d FROM items ORDER BY items.v <=> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.d) FROM queries q CROSS JOIN LATERAL
    (SELECT items.v <#> q.v AS d FROM items ORDER BY items.v <#> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
RESET ivfpq.probes;
RESET ivfpq.candidates;
SET ivfpq.target_recall = 1;
SET enable_sort = off;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
RESET ivfpq.target_recall;
CREATE TABLE few (id int, v vector(8));
CREATE INDEX few_v ON few USING ivfpq (v);
INSERT INTO few SELECT i, vec(i, 8) FROM generate_series(1, 200) AS i;
ANALYZE few;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id) FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM few ORDER BY few.v <-> q.v LIMIT 5) s WHERE q.v IS NOT NULL');
RESET enable_sort;

\qecho duplicates, more rows than memory holds at once, and rows out of line
SET ivfpq.probes = 20;
SET ivfpq.candidates = 1000;
SET work_mem = '384kB';
CREATE TABLE many (id int, v vector(8), filler text);
ALTER TABLE many ALTER filler SET STORAGE EXTERNAL;
INSERT INTO many SELECT i, vec(i % 130, 8, 3), repeat(i::text, CASE WHEN i % 100 = 0 THEN 2000 ELSE 1 END) FROM generate_series(1, 1000) AS i;
ANALYZE many;
SELECT * FROM compare_lateral('SELECT concat_ws('','', q.id, s.id, md5(q.filler)) FROM many q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 3) s');
SELECT line FROM properties('SELECT FROM many q, LATERAL (SELECT FROM items ORDER BY v <-> q.v LIMIT 5) s') AS line WHERE line ~ '^(Batches: [1-9][0-9]|Queries|Single)';
RESET work_mem;

\qecho a LIMIT above the join takes the plain plan
SELECT plan_of('SELECT q.id, s.id FROM queries q CROSS JOIN LATERAL
    (SELECT id FROM items ORDER BY items.v <-> q.v LIMIT 5) s LIMIT 3');

\qecho random joins
SELECT 'seed 0.22', setseed(0.22);
DO $$
DECLARE
    k int; query text; r record; wrong int := 0; batches int := 0;
BEGIN
    FOR i IN 1 .. 24 LOOP
        k := floor(random() * 20);
        query := format('SELECT concat_ws('','', q.id, q.n, s.d) FROM %s q %s LATERAL
            (SELECT id, items.v <-> q.v AS d FROM items %s ORDER BY items.v <-> q.v LIMIT %s%s) s ON %s WHERE q.v IS NOT NULL AND %s',
            (ARRAY['queries', '(SELECT * FROM queries WHERE n < 5)', '(SELECT id, n, v FROM queries ORDER BY n, id)',
                   '(SELECT id, n, v FROM queries UNION ALL SELECT id, 0, v FROM few)'])[1 + floor(random() * 4)::int],
            (ARRAY['JOIN', 'LEFT JOIN'])[1 + floor(random() * 2)::int],
            (ARRAY['', 'WHERE id <> q.id', 'WHERE v IS NOT NULL', 'WHERE kind > 2'])[1 + floor(random() * 4)::int],
            k, (ARRAY['', ' OFFSET 3'])[1 + floor(random() * 2)::int],
            (ARRAY['true', 's.d < 90', 's.d > 60'])[1 + floor(random() * 3)::int],
            (ARRAY['true', 'q.id % 2 = 0', 'q.n IN (1, 2)'])[1 + floor(random() * 3)::int]);
        SELECT * INTO r FROM compare_lateral(query);
        batches := batches + r.batched::int;
        IF NOT r.as_plain OR NOT r.as_exact THEN
            wrong := wrong + 1;
            RAISE NOTICE '% %', query, r;
        END IF;
    END LOOP;
    RAISE NOTICE 'wrong: %, batched: %', wrong, batches > 10;
END
$$;

DROP VIEW near_items, barrier;
REVOKE ALL ON items, queries FROM regress_ivfpq_join;
REVOKE USAGE ON SCHEMA ivfpq_test, public FROM regress_ivfpq_join;
DROP TABLE items, queries, first_queries, other, parts, slices, by_kind, halves, few, many, kinds;
DROP ROLE regress_ivfpq_join;
DROP FUNCTION compare_lateral, properties;
