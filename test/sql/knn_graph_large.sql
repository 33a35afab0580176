-- Graphs of tables that several processes read, and graphs larger than memory may be.
\set VERBOSITY terse
CREATE SCHEMA knn_graph_large;
SET search_path = knn_graph_large, public;
CREATE FUNCTION vec(i int, dims int) RETURNS vector LANGUAGE sql IMMUTABLE AS
    'SELECT array_agg(sin(i * d) + i % 7)::vector FROM generate_series(1, dims) AS d';
-- Whether two queries give the same rows, each as often.
CREATE FUNCTION same(a text, b text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE differ bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM ((%1$s EXCEPT ALL %2$s) UNION ALL (%2$s EXCEPT ALL %1$s)) AS d', a, b)
    INTO differ;
    RETURN differ = 0;
END $$;

\qecho several processes read what one reads, and a seed means the same graph
CREATE TABLE t AS SELECT i * 3 % 9001 AS id, vec(i, 24) AS v FROM generate_series(1, 9000) AS i;
INSERT INTO t VALUES (-1, NULL), (-2, (SELECT array_agg(0) FROM generate_series(1, 24))::vector);
DELETE FROM t WHERE id % 10 = 3;
ALTER TABLE t SET (parallel_workers = 3);
SET client_min_messages = warning;
CREATE FUNCTION both_ways(call text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL max_parallel_maintenance_workers = 3;
    EXECUTE 'CREATE TEMP TABLE several AS ' || call;
    SET LOCAL max_parallel_maintenance_workers = 0;
    EXECUTE 'CREATE TEMP TABLE alone AS ' || call;
    RETURN same('TABLE several', 'TABLE alone') AND (SELECT count(*) > 0 FROM several);
END $$;
BEGIN; SELECT both_ways($$SELECT * FROM knn_graph('t', 'id', 'v', 5, 'exact')$$); ROLLBACK;
BEGIN; SELECT both_ways($$SELECT * FROM knn_graph('t', 'id', 'v', 5, 'nn_descent', 'cosine', seed => 3)$$); ROLLBACK;
BEGIN; SELECT both_ways($$SELECT row_number() OVER (), * FROM knn_graph('t', 'id', 'v', 5, 'nn_descent', 'l1')$$); ROLLBACK;
BEGIN; SELECT both_ways($$SELECT knn_graph_recall('g', 't', 'id', 'v', 50, 'l2') FROM (SELECT) AS s$$)
FROM knn_graph_create('g', 't', 'id', 'v', 3, 'nn_descent', iterations => 1); ROLLBACK;
-- Beyond memory, from a file.
SET maintenance_work_mem = '2MB';
BEGIN; SELECT both_ways($$SELECT * FROM knn_graph('t', 'id', 'v', 5, 'exact')$$); ROLLBACK;
RESET maintenance_work_mem;
-- Rows of this very transaction, and of a table that other sessions cannot read.
BEGIN;
INSERT INTO t SELECT 20000 + i, vec(i, 24) FROM generate_series(1, 500) AS i;
SELECT both_ways($$SELECT * FROM knn_graph('t', 'id', 'v', 2, 'exact')$$);
SELECT count(*) FROM several WHERE src > 20000;
ROLLBACK;
BEGIN;
CREATE TEMP TABLE mine AS SELECT * FROM t;
ALTER TABLE mine SET (parallel_workers = 3);
SELECT both_ways($$SELECT * FROM knn_graph('mine', 'id', 'v', 2, 'exact')$$);
ROLLBACK;
-- Mistakes that a worker finds.
BEGIN;
SAVEPOINT here;
INSERT INTO t VALUES (NULL, vec(1, 24));
SELECT count(*) FROM knn_graph('t', 'id', 'v', 2, 'exact');
ROLLBACK TO here;
INSERT INTO t SELECT * FROM t WHERE id = 6;
SELECT count(*) FROM knn_graph('t', 'id', 'v', 2, 'exact');
ROLLBACK TO here;
SELECT count(*) FROM knn_graph('t', 'id', 'v', 2, 'exact');
ROLLBACK;

\qecho paths and components of a graph that does not fit are those of one that does
CREATE TABLE g AS SELECT * FROM knn_graph('t', 'id', 'v', 5, 'exact');
-- Pairs and chains beside it, which nothing joins.
INSERT INTO g SELECT 100000 + i, 1, 100000 + i + 1, 1 FROM generate_series(1, 50) AS i;
INSERT INTO g SELECT 200000 + 2 * i, 1, 200001 + 2 * i, 'NaN' FROM generate_series(1, 50) AS i;
CREATE TABLE parts AS SELECT * FROM knn_components('g');
WITH largest AS (SELECT component FROM parts GROUP BY component ORDER BY count(*) DESC, component LIMIT 1),
     members AS (SELECT node, row_number() OVER (ORDER BY node) AS r FROM parts JOIN largest USING (component))
SELECT array_agg(node) AS members FROM members WHERE r IN (1, 300, 600, 900) \gset
CREATE TABLE ends AS SELECT row_number() OVER () AS number, a, b
FROM unnest(:'members'::bigint[] || 100001::bigint) AS a, unnest(:'members'::bigint[] || 100050::bigint) AS b;
CREATE TABLE paths AS SELECT number, directed, p.* FROM ends, unnest(ARRAY[false, true]) AS directed,
    LATERAL knn_path('g', a, b, directed) AS p;
SELECT count(DISTINCT (number, directed)) AS paths, count(*) > 200 AS long, max(step) > 10 AS longest FROM paths;
SELECT count(DISTINCT component) > 50 AS several FROM parts;
SET maintenance_work_mem = '1MB';
SELECT same('TABLE parts', $$SELECT * FROM knn_components('g')$$);
SELECT same('TABLE paths', $$SELECT number, directed, p.* FROM ends, unnest(ARRAY[false, true]) AS directed,
    LATERAL knn_path('g', a, b, directed) AS p$$);
SET client_min_messages = notice;
SELECT * FROM knn_path('g', 100001, 200002);
SELECT * FROM knn_path('g', 100003, 100001, true);
SELECT * FROM knn_path('g', 100003, 100001);
SELECT * FROM knn_path('g', 100003, 100003, true);
SELECT * FROM knn_path('g', 100001, -77);
-- A node takes some dozens of bytes, and more than memory has there may not be.
INSERT INTO g SELECT 300000 + i, 1, 300000 + i + 1, 1 FROM generate_series(1, 40000) AS i;
SELECT count(*) FROM knn_components('g');
SELECT count(*) FROM knn_path('g', 300001, 300100);
SET maintenance_work_mem = '2MB';
SELECT count(*), count(DISTINCT component) FROM knn_components('g') WHERE node > 300000;
SELECT count(*) FROM knn_path('g', 300001, 300100, true);
-- A way along few of the edges is found in memory, however many steps it has.
DELETE FROM g WHERE src > 310000;
SET maintenance_work_mem = '1MB';
SELECT count(*), sum(distance) FROM knn_path('g', 310000, 300001);
SELECT count(*), sum(distance) FROM knn_path('g', 300001, 309000, true);
RESET maintenance_work_mem;

\qecho a merge of sets that do not fit, from graphs that do not fit
SET client_min_messages = warning;
CREATE TABLE a AS SELECT * FROM t WHERE id % 3 = 0;
CREATE TABLE b AS SELECT * FROM t WHERE id % 3 <> 0;
CREATE TABLE ga AS SELECT * FROM knn_graph('a', 'id', 'v', 6, 'exact');
CREATE TABLE gb AS SELECT * FROM knn_graph('b', 'id', 'v', 6, 'exact');
CREATE TABLE whole AS SELECT * FROM knn_graph('t', 'id', 'v', 6, 'exact');
CREATE FUNCTION merged(first text, second text, metric text DEFAULT 'l2')
RETURNS TABLE (src bigint, rank int, dst bigint, distance real) LANGUAGE sql AS $$
    SELECT * FROM knn_graph_merge('g' || first, first, 'g' || second, second, 'id', 'v', metric => metric) $$;
SET maintenance_work_mem = '1MB';
SELECT same('SELECT src, rank, distance FROM whole', $$SELECT src, rank, distance FROM merged('a', 'b')$$);
SELECT same('SELECT src, rank, distance FROM whole', $$SELECT src, rank, distance FROM merged('b', 'a')$$);
-- What is given counts, though few of its edges stay within a part.
CREATE TABLE graph AS SELECT * FROM merged('a', 'b');
SELECT same('SELECT src, rank, distance FROM graph',
    $$SELECT g.src, rank, (p.v <-> q.v)::real FROM graph AS g JOIN t AS p ON p.id = src JOIN t AS q ON q.id = dst$$);
-- Shorter lists, edges of rows that are gone, a set without rows.
DELETE FROM a WHERE id % 50 = 0;
DELETE FROM gb WHERE src % 4 = 1 AND rank > 2;
CREATE TABLE graph2 AS SELECT * FROM merged('a', 'b');
SELECT count(*) = 6 * (SELECT count(*) FROM (SELECT id FROM a WHERE v IS NOT NULL UNION ALL SELECT id FROM b WHERE v IS NOT NULL) AS n),
    count(*) FILTER (WHERE src % 50 = 0 AND src % 3 = 0 OR dst % 50 = 0 AND dst % 3 = 0), count(DISTINCT (src, dst)) = count(*)
FROM graph2;
CREATE TABLE none (id int, v vector(24));
CREATE TABLE gnone (LIKE ga);
SELECT count(*) = (SELECT 6 * count(*) FROM b WHERE v IS NOT NULL) FROM merged('none', 'b');
SELECT count(*) = (SELECT 6 * count(*) FROM b WHERE v IS NOT NULL) FROM merged('b', 'none');
-- Mistakes.
SELECT count(*) FROM merged('a', 'b', 'l1');
SELECT count(*) FROM merged('a', 'a');
ALTER TABLE none ALTER v TYPE vector(25);
INSERT INTO none VALUES (-5, vec(1, 25));
SELECT count(*) FROM merged('b', 'none');
RESET maintenance_work_mem;

\qecho append to a graph that does not fit, of a table that does not fit
CREATE FUNCTION changed() RETURNS text LANGUAGE sql AS $$
    SELECT format('added %s, changed %s, removed %s', added, changed, removed)
    FROM knn_graph_append('whole', 't', 'id', 'v') $$;
CREATE FUNCTION exact_now() RETURNS boolean LANGUAGE sql AS $$
    SELECT same('SELECT src, rank, distance FROM whole', $q$SELECT src, rank, distance FROM knn_graph('t', 'id', 'v', 6, 'exact')$q$) $$;
SET maintenance_work_mem = '1MB';
SELECT changed();
INSERT INTO t SELECT 20000 + i, vec(i + 10000, 24) FROM generate_series(1, 900) AS i;
SELECT changed() ~ '^added 900, changed [1-9][0-9]*, removed 0$';
SELECT exact_now(), changed();
-- Rows removed and changed; the lists that named them have places to fill.
DELETE FROM t WHERE id % 90 = 1;
UPDATE t SET v = vec(id % 5000 + 1, 24) WHERE id % 700 = 2;
SELECT changed() ~ '^added 0, changed [1-9][0-9]*, removed [1-9][0-9]*$';
SELECT exact_now(), changed();
-- All that the graph has is gone.
UPDATE t SET id = -id - 100;
SELECT changed() = format('added %s, changed 0, removed %s', count(*), count(*)) FROM t WHERE v IS NOT NULL;
SELECT exact_now(), changed();
-- Inner products, whose rounding is by lengths; in memory nothing is left to do.
CREATE TABLE products AS SELECT * FROM knn_graph('t', 'id', 'v', 6, 'exact', 'ip');
SELECT * FROM knn_graph_append('products', 't', 'id', 'v', metric => 'ip');
DELETE FROM t WHERE id % 100 = -7;
SELECT added, changed > 0 AS changed, removed > 0 AS removed FROM knn_graph_append('products', 't', 'id', 'v', metric => 'ip');
SELECT added, changed > 0 AS changed, removed > 0 AS removed FROM knn_graph_append('whole', 't', 'id', 'v');
RESET maintenance_work_mem;
SELECT exact_now(), changed();
SELECT * FROM knn_graph_append('products', 't', 'id', 'v', metric => 'ip');

\qecho rows without a direction, more than fit, and nothing else
SET maintenance_work_mem = '1MB';
SET client_min_messages = notice;
CREATE TABLE zeros AS SELECT i AS id, '[0,0]'::vector AS v FROM generate_series(1, 9000) AS i;
CREATE TABLE gz (src bigint, rank int, dst bigint, distance real);
SELECT * FROM knn_graph_append('gz', 'zeros', 'id', 'v', metric => 'cosine');
SELECT count(*) FROM knn_graph('zeros', 'id', 'v', 3, 'nn_descent', 'cosine');
RESET maintenance_work_mem;

SET client_min_messages = warning;
DROP SCHEMA knn_graph_large CASCADE;
