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

SET client_min_messages = warning;
DROP SCHEMA knn_graph_large CASCADE;
