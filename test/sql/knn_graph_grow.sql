-- knn_graph_merge and knn_graph_append: graphs that grow.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA knn_graph_grow_test;
SET search_path = knn_graph_grow_test, public, ivfpq_test;

CREATE TABLE t (id int PRIMARY KEY, v vector(12));
INSERT INTO t SELECT i, vec(i % 400, 12) + vec(i, 12, 5) FROM generate_series(1, 3000) AS i;
CREATE FUNCTION sound(graph regclass, k int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    EXECUTE format('SELECT format(''%%s rows, %%s short, %%s wrong, %%s of unknown rows'', count(DISTINCT src),
               (SELECT count(*) FROM (SELECT FROM %1$s GROUP BY src
                                      HAVING count(*) <> %2$s OR max(rank) <> %2$s) AS s),
               count(*) FILTER (WHERE distance <> (x.v <-> y.v)::real OR src = dst),
               count(*) FILTER (WHERE x.id IS NULL OR y.id IS NULL))
        FROM %1$s LEFT JOIN t AS x ON x.id = src LEFT JOIN t AS y ON y.id = dst', graph, k) INTO answer;
    RETURN answer;
END
$$;

\qecho merge
CREATE TABLE t1 AS SELECT * FROM t WHERE id % 3 = 0;
CREATE TABLE t2 AS SELECT * FROM t WHERE id % 3 <> 0;
SET client_min_messages = warning;
SELECT edges, recall FROM knn_graph_create('g1', 't1', 'id', 'v', 10);
SELECT edges, recall FROM knn_graph_create('g2', 't2', 'id', 'v', 10);
RESET client_min_messages;
CREATE TABLE g AS SELECT * FROM knn_graph_merge('g1', 't1', 'g2', 't2', 'id', 'v');
SELECT sound('g', 10), knn_graph_recall('g', 't', 'id', 'v', 1000) >= 0.98;
-- fewer neighbors than the graphs have; the other way round
CREATE TABLE g5 AS SELECT * FROM knn_graph_merge('g2', 't2', 'g1', 't1', 'id', 'v', k => 5, seed => 9);
SELECT sound('g5', 5), knn_graph_recall('g5', 't', 'id', 'v', 1000) >= 0.98;
-- one row, and none
CREATE TABLE one AS SELECT 5000 AS id, vec(7, 12) AS v;
CREATE TABLE no_rows (id int, v vector);
CREATE TABLE empty_graph (src bigint, rank int, dst bigint, distance real);
SELECT count(*), count(*) FILTER (WHERE src = 5000), count(*) FILTER (WHERE dst = 5000) > 0
FROM knn_graph_merge('g1', 't1', 'empty_graph', 'one', 'id', 'v');
SELECT count(*) FROM (SELECT * FROM knn_graph_merge('empty_graph', 'no_rows', 'g1', 't1', 'id', 'v')
                      EXCEPT TABLE g1) AS s;
SELECT count(*) FROM knn_graph_merge('empty_graph', 'no_rows', 'empty_graph', 'no_rows', 'id', 'v');
SELECT error_of(format('SELECT * FROM knn_graph_merge(%s)', a)) FROM unnest(ARRAY[
    $$'g1', 't1', 'g1', 't1', 'id', 'v'$$,
    $$'g1', 't1', 'g2', 't2', 'id', 'v', 11$$,
    $$'g1', 't1', 'g2', 't2', 'id', 'v', 0$$,
    $$'g1', 't1', 'g2', 't2', 'id', 'v', metric => 'l1'$$,
    $$'g1', 't1', 'g2', 't2', 'id', 'v', metric => NULL$$,
    $$'g1', 't1', 't2', 't2', 'id', 'v'$$,
    $$NULL, 't1', 'g2', 't2', 'id', 'v'$$]) AS a;
CREATE TABLE other AS SELECT 6000 AS id, '[1,2]'::vector AS v;
SELECT error_of($$SELECT * FROM knn_graph_merge('g1', 't1', 'empty_graph', 'other', 'id', 'v')$$);
SET maintenance_work_mem = '1MB';
CREATE TABLE parts AS SELECT * FROM knn_graph_merge('g1', 't1', 'g2', 't2', 'id', 'v');
SELECT sound('parts', 10), knn_graph_recall('parts', 't', 'id', 'v', 500) >= 0.98;
RESET maintenance_work_mem;

\qecho append: nothing new
CREATE TABLE a AS SELECT * FROM knn_graph('t', 'id', 'v', 10, 'exact');
SELECT * FROM knn_graph_append('a', 't', 'id', 'v');
\qecho append: rows added
INSERT INTO t SELECT i, vec(i % 400, 12) + vec(i, 12, 5) FROM generate_series(3001, 3300) AS i;
SELECT added, changed > 0 AS changed, removed FROM knn_graph_append('a', 't', 'id', 'v');
SELECT sound('a', 10), knn_graph_recall('a', 't', 'id', 'v', 1000) >= 0.98;
\qecho append: rows removed, and changed
DELETE FROM t WHERE id % 50 = 0;
UPDATE t SET v = vec(id + 3, 12) + vec(id, 12, 6) WHERE id % 70 = 1;
SELECT added, changed > 0 AS changed, removed FROM knn_graph_append('a', 't', 'id', 'v');
SELECT sound('a', 10), knn_graph_recall('a', 't', 'id', 'v', 1000) >= 0.98;
SELECT * FROM knn_graph_append('a', 't', 'id', 'v');
\qecho append: more neighbors than before
SELECT added, changed, removed FROM knn_graph_append('a', 't', 'id', 'v', k => 12);
SELECT sound('a', 12), knn_graph_recall('a', 't', 'id', 'v', 1000) >= 0.98;
\qecho append: from nothing, row by row
CREATE TABLE small (id int, v vector(12));
CREATE TABLE small_graph (src bigint, rank int, dst bigint, distance real, PRIMARY KEY (src, rank));
SELECT * FROM knn_graph_append('small_graph', 'small', 'id', 'v', 3);
INSERT INTO small SELECT * FROM t ORDER BY id LIMIT 1;
SELECT * FROM knn_graph_append('small_graph', 'small', 'id', 'v', 3);
INSERT INTO small SELECT * FROM t ORDER BY id OFFSET 1 LIMIT 1;
SELECT * FROM knn_graph_append('small_graph', 'small', 'id', 'v', 3);
INSERT INTO small SELECT * FROM t ORDER BY id OFFSET 2 LIMIT 8;
SELECT * FROM knn_graph_append('small_graph', 'small', 'id', 'v', 3);
SELECT knn_graph_recall('small_graph', 'small', 'id', 'v');
TRUNCATE small;
SELECT * FROM knn_graph_append('small_graph', 'small', 'id', 'v');
SELECT count(*) FROM small_graph;
SELECT error_of(format('SELECT * FROM knn_graph_append(%s)', a)) FROM unnest(ARRAY[
    $$'a', 't', 'id', 'v', metric => 'l1'$$,
    $$'a', 't', 'id', 'v', 0$$,
    $$'t', 't', 'id', 'v'$$,
    $$'a', 't', 'id', 'nothing'$$,
    $$0, 't', 'id', 'v'$$,
    $$NULL, 't', 'id', 'v'$$]) AS a;
SET client_min_messages = warning;
DROP SCHEMA knn_graph_grow_test CASCADE;
