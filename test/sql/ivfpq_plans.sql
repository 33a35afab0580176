-- Operators, orders and plans: when the index is used, and when it is not.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

\pset tuples_only off
CREATE TABLE t (id int PRIMARY KEY, kind int, v vector(3));
INSERT INTO t SELECT i, i % 1000, vec(i, 3) FROM generate_series(1, 20000) AS i;
CREATE INDEX t_l2 ON t USING ivfpq (v) WITH (lists = 50);
CREATE INDEX t_ip ON t USING ivfpq (v vector_ip_ops) WITH (lists = 50);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 50);
VACUUM ANALYZE t;

-- each operator has its index, with no help
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <#> '[1,2,3]' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <=> '[1,2,3]' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY '[1,2,3]' <-> v LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t WHERE kind < 900 ORDER BY v <-> '[1,2,3]' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 10 OFFSET 20;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]' FETCH FIRST 3 ROWS WITH TIES;
SELECT plan_of($$SELECT id FROM t ORDER BY v <-> (SELECT v FROM t WHERE id = 7) LIMIT 10$$) AS "QUERY PLAN";
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]', id LIMIT 10;
EXPLAIN (COSTS OFF) SELECT a.id, b.id FROM t AS a CROSS JOIN LATERAL
    (SELECT id FROM t ORDER BY v <-> a.v LIMIT 3) AS b WHERE a.id < 5;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 10 FOR UPDATE;

-- not for other orders, other operators, no order
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]' DESC LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]' NULLS FIRST LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <+> '[1,2,3]' LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> v LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v LIMIT 10;
EXPLAIN (COSTS OFF) SELECT id FROM t LIMIT 10;
EXPLAIN (COSTS OFF) SELECT count(*) FROM t;
EXPLAIN (COSTS OFF) SELECT id FROM t WHERE v <-> '[1,2,3]' < 5;
EXPLAIN (COSTS OFF) SELECT count(v) FROM t WHERE v IS NULL;
-- not even where nothing else may be used
SET enable_seqscan = off;
SET enable_indexscan = on;
SET enable_bitmapscan = off;
SELECT plan_of($$SELECT id FROM t ORDER BY v <-> '[1,2,3]' DESC LIMIT 10$$) AS "QUERY PLAN";
SELECT plan_of($$SELECT v FROM t$$) AS "QUERY PLAN";
SELECT plan_of($$SELECT id FROM t ORDER BY v <-> '[1,2,3]', v <-> '[4,5,6]' LIMIT 10$$) AS "QUERY PLAN";
SELECT plan_of($$SELECT a.v FROM t AS a JOIN t AS b ON a.v = b.v$$) AS "QUERY PLAN";
RESET enable_seqscan;
RESET enable_bitmapscan;
-- a whole sort is cheaper than fetching every row by the index; the primary key beats a filter
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]';
EXPLAIN (COSTS OFF) SELECT id FROM t WHERE id = 5 ORDER BY v <-> '[1,2,3]' LIMIT 10;

-- two distances, the second for rows where the first is the same
CREATE TABLE compass AS
SELECT (ARRAY['[1,0]', '[-1,0]', '[0,1]', '[0,-1]'])[1 + i % 4]::vector(2) AS v
FROM generate_series(1, 40) AS i;
CREATE INDEX compass_v ON compass USING ivfpq (v);
SET enable_seqscan = off;
SELECT v, count(*) FROM
    (SELECT v FROM compass ORDER BY v <-> '[0,0]', v <-> '[1,0]' LIMIT 30) AS s
GROUP BY v ORDER BY v <-> '[1,0]', v;
RESET enable_seqscan;
DROP TABLE compass;

-- a small table is sorted
CREATE TABLE small AS SELECT * FROM t WHERE id <= 100;
CREATE INDEX small_v ON small USING ivfpq (v);
ANALYZE small;
EXPLAIN (COSTS OFF) SELECT id FROM small ORDER BY v <-> '[1,2,3]' LIMIT 10;

-- rows come with their distances, in order
SET enable_seqscan = off;
SET ivfpq.probes = 50;
SET ivfpq.candidates = 20000;
SELECT id, v, v <-> '[1,2,3]' AS d FROM t ORDER BY v <-> '[1,2,3]', id LIMIT 5;
SELECT v, v <#> '[1,2,3]' AS d FROM t ORDER BY v <#> '[1,2,3]' LIMIT 5;
SELECT v, round((v <=> '[1,2,3]')::numeric, 7) AS d FROM t ORDER BY v <=> '[1,2,3]' LIMIT 5;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM compare_scan('t', $$v <#> '[1,2,3]'$$);
SELECT * FROM compare_scan('t', $$v <=> '[1,2,3]'$$);
SELECT * FROM compare_scan('t', $$v <#> '[-1,2,-3]'$$);
SELECT * FROM compare_scan('t', $$v <=> '[-1,2,-3]'$$);

-- wrong queries
SELECT error_of($$SELECT id FROM t ORDER BY v <-> '[1,2]' LIMIT 1$$);
SELECT error_of($$SELECT id FROM t ORDER BY v <#> '[1,2,3,4]' LIMIT 1$$);
SELECT error_of($$SELECT id FROM t ORDER BY v <=> '[1]' LIMIT 1$$);
CREATE TABLE empty (v vector(3));
CREATE INDEX empty_v ON empty USING ivfpq (v);
SELECT error_of($$SELECT v FROM empty ORDER BY v <-> '[1,2]' LIMIT 1$$);
DROP TABLE t, small, empty;

RESET enable_seqscan;
RESET ivfpq.probes;
RESET ivfpq.candidates;

-- conditions: the plan follows the share of rows that passes, and what the index has
CREATE FUNCTION chosen(condition text, rows int DEFAULT 10) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE format('EXPLAIN (FORMAT JSON) SELECT id FROM f WHERE %s ORDER BY v <-> vec(0, 32) LIMIT %s',
        condition, rows) INTO plan;
    RETURN coalesce(substring(plan::text FROM '"Index Name": "([^"]*)"'), 'no index');
END $$;
CREATE TABLE f (id int PRIMARY KEY, half int, tenth int, few int, flag bool, other int, rare int, v vector(32));
INSERT INTO f SELECT i, i % 2, i / 7 % 10, i * 7 % 4999, i % 50 = 0, i / 3 % 2, i * 11 % 4999, vec(i, 32)
FROM generate_series(1, 20000) AS i;
CREATE INDEX f_v ON f USING ivfpq (v, half, tenth, few, flag) WITH (lists = 100);
VACUUM ANALYZE f;
-- even a scan of all entries is cheaper than one of all rows
SELECT condition, chosen(condition) FROM unnest(ARRAY['half = 1', 'tenth = 3', 'few = 3', 'tenth < 2 AND half = 0',
    'few < 50', 'few IN (3, 4)', 'few = ANY (ARRAY[5, 6, 7])', 'flag', 'flag IS TRUE AND few < 500',
    'v <-> vec(0, 32) < 1']) AS condition;
-- not in the index
SELECT condition, chosen(condition) FROM unnest(ARRAY['other = 1', 'rare = 3', 'half = 1 AND other = 1', 'rare IN (3, 4)',
    'half = 1 AND rare = 3']) AS condition;
-- with other ways to find the rows
CREATE INDEX f_few ON f (few);
CREATE INDEX f_half ON f (half);
CREATE INDEX f_rare ON f (rare);
SELECT condition, chosen(condition) FROM unnest(ARRAY['half = 1', 'few = 3', 'few IN (3, 4)', 'few < 2000', 'id = 5', 'rare = 3',
    'half = 1 AND rare = 3', 'half = 1 AND few < 2500']) AS condition;
SELECT chosen('few = 3', 1000), chosen('half = 1', 100);
-- a partial index has the rows that pass, and needs no look at others
CREATE INDEX f_rare_v ON f USING ivfpq (v) WITH (lists = 10) WHERE rare < 500;
VACUUM ANALYZE f;
SELECT condition, chosen(condition) FROM unnest(ARRAY['rare < 500', 'rare < 500 AND other = 1']) AS condition;

-- costs beside those of hnsw, and as LIMIT grows
CREATE TABLE h (id int, v vector(128));
INSERT INTO h SELECT i, ARRAY(SELECT c + (n - 128) * 1.5 FROM
        unnest(vec(i / 50, 128)::real[], vec(i, 128, 1)::real[]) AS u(c, n))::vector
    FROM generate_series(0, 9999) AS i;
CREATE INDEX h_v ON h USING ivfpq (v);
VACUUM ANALYZE h;
CREATE FUNCTION plan_for(rows int, source text, dims int, OUT cost float8, OUT chosen text) LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE format('EXPLAIN (FORMAT JSON) SELECT id FROM %s ORDER BY v <-> vec(0, %s, 2) LIMIT %s', source, dims, rows) INTO plan;
    cost := plan->0->'Plan'->>'Total Cost';
    chosen := coalesce(substring(plan::text FROM '"Index Name": "([^"]*)"'), 'no index');
END $$;
-- hnsw of pgvector 0.8.6 on this column costs 67.2 and 233.2, and takes 2.5 times as long
SET random_page_cost = 1.1;
SELECT cost < 60, chosen FROM plan_for(10, 'h', 128);
SET random_page_cost = 4;
SELECT cost < 200, chosen FROM plan_for(10, 'h', 128);
DROP TABLE h;
-- as LIMIT grows: the first rows by the index, all of them by a sort, and never at a lower cost
SET random_page_cost = 4;
SELECT rows, chosen FROM unnest(ARRAY[10, 100, 1000, 19000, 20000, 30000]) AS rows, plan_for(rows, 'f', 32) ORDER BY rows;
SET enable_seqscan = off; SET enable_sort = off;
CREATE FUNCTION falls(memory text, page text) RETURNS int[] LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('work_mem', memory, false), set_config('random_page_cost', page, false);
    RETURN (SELECT array_agg(rows) FROM (
        SELECT rows, cost, lag(cost) OVER (ORDER BY rows) AS before FROM generate_series(1000, 20000, 1000) AS rows,
            plan_for(rows, 'f', 32)) AS p WHERE cost < before);
END $$;
SELECT memory, page, falls(memory, page) FROM unnest(ARRAY['64kB', '4MB']) AS memory, unnest(ARRAY['1', '1.1', '4']) AS page;
RESET work_mem; RESET random_page_cost; RESET enable_seqscan; RESET enable_sort;
DROP FUNCTION falls, plan_for;
DROP TABLE f;
