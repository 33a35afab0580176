-- knn_graph: its edges against plain SQL, every method and metric, odd tables, mistakes, rights.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA knn_graph_test;
SET search_path = knn_graph_test, public, ivfpq_test;

SET max_parallel_maintenance_workers = 1;
CREATE TABLE t (id int PRIMARY KEY, v vector(6));
INSERT INTO t SELECT i, vec(i, 6) FROM generate_series(1, 2000) AS i;

\qecho exact: all edges, as SQL finds them
CREATE TABLE g AS SELECT * FROM knn_graph('t', 'id', 'v', 7);
CREATE TABLE truth AS
SELECT a.id AS src, row_number() OVER (PARTITION BY a.id ORDER BY n.d, n.id) AS rank, n.id AS dst, n.d
FROM t AS a, LATERAL (SELECT b.id, a.v <-> b.v AS d FROM t AS b WHERE b.id <> a.id
                      ORDER BY d, b.id LIMIT 7) AS n;
SELECT count(*), count(DISTINCT src), min(rank), max(rank) FROM g;
SELECT count(*) FROM (SELECT src, rank, dst, distance FROM g
                      EXCEPT SELECT src, rank, dst, d::real FROM truth) AS s;
SELECT pg_typeof(src), pg_typeof(rank), pg_typeof(dst), pg_typeof(distance) FROM g LIMIT 1;

\qecho every method with every metric: sound, and as good as promised
CREATE FUNCTION operator_of(metric text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE metric WHEN 'l2' THEN '<->' WHEN 'cosine' THEN '<=>' WHEN 'l1' THEN '<+>'
                       WHEN 'inner_product' THEN '<#>' WHEN 'ip' THEN '<#>' END
$$;
CREATE FUNCTION check_graph(r regclass, k int, method text, metric text, OUT edges bigint,
                            OUT each_full boolean, OUT sound boolean, OUT distances boolean,
                            OUT recall_reached boolean)
LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('made') IS NOT NULL THEN
        DROP TABLE made;
    END IF;
    EXECUTE format('CREATE TEMP TABLE made AS SELECT * FROM knn_graph(%L, %L, %L, %s, %L, %L, seed => 3)',
                   r, 'id', 'v', k, method, metric);
    SELECT count(*), count(*) FILTER (WHERE n = k) = count(*) FROM
        (SELECT src, count(*) AS n FROM made GROUP BY src) AS s INTO edges, each_full;
    edges := (SELECT count(*) FROM made);
    sound := NOT EXISTS (SELECT FROM made WHERE src = dst)
             AND NOT EXISTS (SELECT FROM made GROUP BY src, dst HAVING count(*) > 1)
             AND NOT EXISTS (SELECT FROM made GROUP BY src HAVING max(rank) <> count(*) OR min(rank) <> 1)
             AND NOT EXISTS (SELECT FROM (SELECT distance, lag(distance) OVER (PARTITION BY src ORDER BY rank)
                                          AS before FROM made) AS s WHERE before > distance);
    EXECUTE format('SELECT bool_and(abs(m.distance - (a.v %1$s b.v)) <= 1e-5 * greatest(1, abs(m.distance)))
                    FROM made AS m JOIN %2$s AS a ON a.id = m.src JOIN %2$s AS b ON b.id = m.dst',
                   operator_of(metric), r) INTO distances;
    recall_reached := knn_graph_recall('made', r, 'id', 'v', 300, metric) >=
                      CASE method WHEN 'exact' THEN 1 ELSE 0.97 END;
END
$$;
SELECT method, metric, c.*
FROM unnest(ARRAY['exact', 'nn_descent']) AS method, unnest(ARRAY['l2', 'cosine', 'l1']) AS metric,
     check_graph('t', 10, method, metric) AS c;
SELECT * FROM check_graph('t', 10, 'exact', 'inner_product');
SELECT * FROM check_graph('t', 10, 'exact', 'ip');
-- rows of about the same length, as embeddings are
CREATE TABLE u AS SELECT id, l2_normalize(v - '[127,127,127,127,127,127]') AS v FROM t;
SELECT * FROM check_graph('u', 10, 'nn_descent', 'ip');

\qecho by the index of the table
SELECT error_of($$SELECT * FROM knn_graph('t', 'id', 'v', 10, 'ivfpq')$$);
CREATE INDEX t_part ON t USING ivfpq (v) WHERE id < 1500;
SELECT error_of($$SELECT * FROM knn_graph('t', 'id', 'v', 10, 'ivfpq')$$) LIKE '55000 %';
DROP INDEX t_part;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 20);
SET ivfpq.target_recall = 1;
SELECT * FROM check_graph('t', 10, 'ivfpq', 'l2');
RESET ivfpq.target_recall;
SELECT error_of($$SELECT * FROM knn_graph('t', 'id', 'v', 10, 'ivfpq', 'cosine')$$) LIKE '55000 %';
SELECT error_of($$SELECT * FROM knn_graph('t', 'id', 'v', 10, 'ivfpq', 'l1')$$) LIKE '55000 %';
CREATE INDEX t_c ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 20);
SET ivfpq.target_recall = 1;
SELECT * FROM check_graph('t', 10, 'ivfpq', 'cosine');
RESET ivfpq.target_recall;
SELECT count(DISTINCT src), min(n), max(n) FROM
    (SELECT src, count(*) AS n FROM knn_graph('t', 'id', 'v', 10, 'ivfpq', probes => 1) GROUP BY src) AS s;
SHOW ivfpq.probes;
CREATE TABLE twice AS SELECT id % 1999 AS id, v FROM t;
CREATE INDEX ON twice USING ivfpq (v);
SELECT error_of($$SELECT * FROM knn_graph('twice', 'id', 'v', 10, 'ivfpq')$$);
TRUNCATE twice;
INSERT INTO twice VALUES (1, '[1,1,1,1,1,1]'), (2, NULL), (3, '[1,1,1,1,1,1]'), (4, '[2,1,1,1,1,1]');
SELECT * FROM knn_graph('twice', 'id', 'v', 10, 'ivfpq') ORDER BY src, rank;

\qecho one seed, one graph, whatever the threads
CREATE TABLE g1 AS SELECT * FROM knn_graph('t', 'id', 'v', 5, 'nn_descent', seed => 7);
SET max_parallel_maintenance_workers = 0;
SELECT count(*) FROM (SELECT * FROM knn_graph('t', 'id', 'v', 5, 'nn_descent', seed => 7)
                      EXCEPT TABLE g1) AS s;
RESET max_parallel_maintenance_workers;

\qecho knobs
SELECT count(*) FROM knn_graph('t', 'id', 'v', 3, 'nn_descent', samples => 4, iterations => 1);

\qecho beyond maintenance_work_mem: parts are merged
CREATE TABLE many (id int, v vector(24));
INSERT INTO many SELECT i, vec(i % 1500, 24) + vec(i, 24, 5) FROM generate_series(1, 5000) AS i;
SET maintenance_work_mem = '1MB';
SELECT count(*) FROM (SELECT * FROM knn_graph('t', 'id', 'v', 7, 'exact') EXCEPT TABLE g) AS s;
SELECT count(*) FROM (SELECT * FROM knn_graph('t', 'id', 'v', 7, 'exact')) AS s;
SELECT * FROM check_graph('many', 10, 'nn_descent', 'l2');
SELECT * FROM check_graph('many', 10, 'nn_descent', 'cosine');
RESET maintenance_work_mem;

\qecho small and odd tables
CREATE TABLE o (id bigint, v vector);
SELECT * FROM knn_graph('o', 'id', 'v', 3);
INSERT INTO o VALUES (10, NULL);
SELECT * FROM knn_graph('o', 'id', 'v', 3);
INSERT INTO o VALUES (-5, '[1,2]');
SELECT * FROM knn_graph('o', 'id', 'v', 3);
INSERT INTO o VALUES (9223372036854775807, '[1,3]');
SELECT * FROM knn_graph('o', 'id', 'v', 3);
SELECT * FROM knn_graph('o', 'id', 'v', 1000, 'nn_descent');
TRUNCATE o;
INSERT INTO o SELECT i, '[4,4,4]' FROM generate_series(1, 300) AS i;
SELECT count(*), count(DISTINCT src), max(distance) FROM knn_graph('o', 'id', 'v', 10, 'exact');
SELECT count(*), count(DISTINCT src), max(distance) FROM knn_graph('o', 'id', 'v', 10, 'nn_descent');
SELECT count(*), count(DISTINCT src) FROM knn_graph('o', 'id', 'v', 299, 'nn_descent', 'l1');
SELECT count(*), count(DISTINCT src) FROM knn_graph('o', 'id', 'v', 300, 'exact', 'cosine');
INSERT INTO o VALUES (400, '[0,0,0]'), (401, NULL), (402, '[0,0,0]');
SELECT count(DISTINCT src) FROM knn_graph('o', 'id', 'v', 10, 'exact', 'cosine');
SELECT count(DISTINCT src) FROM knn_graph('o', 'id', 'v', 10, 'exact', 'l2');
TRUNCATE o;
INSERT INTO o VALUES (1, '[3e38]'), (2, '[-3e38]'), (3, '[0]');
SELECT * FROM knn_graph('o', 'id', 'v', 2, 'exact') ORDER BY src, rank;
SELECT * FROM knn_graph('o', 'id', 'v', 2, 'nn_descent') ORDER BY src, rank;

\qecho views, partitions, other types of keys
CREATE VIEW w AS SELECT id::smallint AS s, v AS "V v" FROM t WHERE id <= 50;
SELECT count(*), max(dst) FROM knn_graph('w', 's', 'V v', 4);
CREATE TABLE p (id bigint, v vector(6)) PARTITION BY HASH (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE p2 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO p SELECT * FROM t;
SELECT count(*) FROM (SELECT src, rank, distance FROM knn_graph('p', 'id', 'v', 7)
                      EXCEPT SELECT src, rank, distance FROM g) AS s;

\qecho mistakes
CREATE TABLE wrong (id int, name text, v vector, a real[]);
INSERT INTO wrong VALUES (1, 'a', '[1]', '{1}'), (1, 'b', '[2]', '{2}');
SELECT error_of(format('SELECT * FROM knn_graph(%s)', a)) FROM unnest(ARRAY[
    $$'wrong', 'id', 'v', 3$$,
    $$'wrong', 'name', 'v', 3$$,
    $$'wrong', 'id', 'a', 3$$,
    $$'wrong', 'nothing', 'v', 3$$,
    $$'wrong', 'id', 'nothing', 3$$,
    $$'nothing', 'id', 'v', 3$$,
    $$0, 'id', 'v', 3$$,
    $$'t_pkey', 'id', 'v', 3$$,
    $$'t', 'id', 'v', 0$$,
    $$'t', 'id', 'v', -1$$,
    $$'t', 'id', 'v', 1001$$,
    $$'t', 'id', 'v', NULL$$,
    $$NULL, 'id', 'v', 3$$,
    $$'t', NULL, 'v', 3$$,
    $$'t', 'id', NULL, 3$$,
    $$'t', 'id', 'v', 3, NULL$$,
    $$'t', 'id', 'v', 3, 'auto', NULL$$,
    $$'t', 'id', 'v', 3, seed => NULL$$,
    $$'t', 'id', 'v', 3, 'hnsw'$$,
    $$'t', 'id', 'v', 3, 'exact', 'hamming'$$,
    $$'t', 'id', 'v', 3, samples => 0$$,
    $$'t', 'id', 'v', 3, samples => 257$$,
    $$'t', 'id', 'v', 3, iterations => 0$$,
    $$'t', 'id', 'v', 3, 'exact', samples => 5$$,
    $$'t', 'id', 'v', 3, 'ivfpq', iterations => 5$$,
    $$'t', 'id', 'v', 3, 'ivfpq', probes => 0$$,
    $$'t', 'id', 'v', 3, 'nn_descent', probes => 5$$,
    $$'t', 'id', 'v', 3, probes => 5$$]) AS a;
TRUNCATE wrong;
INSERT INTO wrong VALUES (1, 'a', '[1]', '{1}'), (2, 'b', '[2,3]', '{2}');
SELECT error_of($$SELECT * FROM knn_graph('wrong', 'id', 'v', 3)$$);
UPDATE wrong SET id = NULL, v = '[1]';
SELECT error_of($$SELECT * FROM knn_graph('wrong', 'id', 'v', 3)$$);

\qecho rights and row security
CREATE ROLE graph_reader;
GRANT USAGE ON SCHEMA knn_graph_test TO graph_reader;
SET ROLE graph_reader;
SELECT error_of($$SELECT * FROM knn_graph('t', 'id', 'v', 3)$$);
RESET ROLE;
GRANT SELECT (id) ON t TO graph_reader;
SET ROLE graph_reader;
SELECT error_of($$SELECT * FROM knn_graph('t', 'id', 'v', 3)$$);
SELECT error_of($$SELECT knn_graph_recall('g', 't', 'id', 'v')$$);
SELECT error_of($$SELECT * FROM knn_path('g', 1, 2)$$);
SELECT error_of($$SELECT * FROM knn_components('g')$$);
RESET ROLE;
GRANT SELECT ON t TO graph_reader;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON t TO graph_reader USING (id % 2 = 0);
SET ROLE graph_reader;
SELECT count(*), count(DISTINCT src), count(*) FILTER (WHERE src % 2 = 1 OR dst % 2 = 1)
FROM knn_graph('t', 'id', 'v', 7);
SELECT count(*), count(DISTINCT src), count(*) FILTER (WHERE src % 2 = 1 OR dst % 2 = 1)
FROM knn_graph('t', 'id', 'v', 7, 'ivfpq');
SELECT error_of($$SELECT knn_graph_recall('g', 't', 'id', 'v')$$);
SELECT error_of($$SELECT knn_graph_append('g', 't', 'id', 'v')$$);
RESET ROLE;
ALTER TABLE t DISABLE ROW LEVEL SECURITY;
GRANT SELECT ON g TO graph_reader;
SET ROLE graph_reader;
SELECT knn_graph_recall('g', 't', 'id', 'v');
SELECT error_of($$SELECT knn_graph_append('g', 't', 'id', 'v')$$);
SELECT error_of($$SELECT knn_graph_create('mine', 't', 'id', 'v', 3)$$) LIKE '%permission denied%';
RESET ROLE;

\qecho recall
SELECT knn_graph_recall('g', 't', 'id', 'v'), knn_graph_recall('g', 't', 'id', 'v', 2000),
       knn_graph_recall('g', 't', 'id', 'v', 1);
CREATE TABLE half AS SELECT * FROM g WHERE rank % 2 = 1;
SELECT knn_graph_recall('half', 't', 'id', 'v', 2000) = 4 / 7.0::float8;
CREATE TABLE fewer AS SELECT * FROM g WHERE src <= 1000;
SELECT knn_graph_recall('fewer', 't', 'id', 'v', 2000);
CREATE TABLE lies AS SELECT src, rank, 1 + (src + rank * 37) % 2000 AS dst, 0::real AS distance FROM g;
SELECT knn_graph_recall('lies', 't', 'id', 'v', 2000) < 0.05;
SELECT knn_graph_recall('g', 'o', 'id', 'v'), knn_graph_recall('g', NULL, 'id', 'v');
TRUNCATE o;
SELECT knn_graph_recall('g', 'o', 'id', 'v');
SELECT error_of(format('SELECT knn_graph_recall(%s)', a)) FROM unnest(ARRAY[
    $$'t', 't', 'id', 'v'$$, $$'g', 't', 'id', 'v', 0$$, $$'g', 't', 'id', 'v', 100001$$,
    $$'g', 't', 'id', 'v', 10, 'nothing'$$, $$'g', 't', 'v', 'v'$$]) AS a;

\qecho a table with a primary key, and how good it is
SELECT created, edges, seconds > 0, recall FROM knn_graph_create('"Made ""here"""', 't', 'id', 'v', 4, 'exact');
CREATE SCHEMA s;
SELECT created, edges, recall >= 0.95
FROM knn_graph_create('s.graph', 't', 'id', 'v', 4, 'nn_descent', 'cosine');
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 's.graph'::regclass AND contype = 'p';
-- a name that is taken: an error before any work, without a statement that the user has not written
SELECT knn_graph_create('s.graph', 't', 'id', 'v', 4);
-- nor is one shown under other errors
SELECT knn_graph_create('g9', 't', 'id', 'v', 3, 'none');
DO $$ BEGIN PERFORM knn_graph_create('g9', 't', 'id', 'nothing', 3); END $$;
CREATE FUNCTION broken(bigint) RETURNS vector LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY[1 / ($1 - $1)];
END $$;
CREATE VIEW all_broken AS SELECT id, broken(id)::vector(1) AS v FROM t;
DO $$ BEGIN PERFORM knn_graph_create('g9', 'all_broken', 'id', 'v', 3); END $$;
DROP VIEW all_broken;
DROP FUNCTION broken;
SELECT error_of($$SELECT knn_graph_create('g9', 't', 'id', 'v', 0)$$);
SELECT error_of($$SELECT knn_graph_create(NULL, 't', 'id', 'v', 3)$$);
SELECT to_regclass('g9');

\qecho nothing is left behind
SELECT count(*) FROM pg_stat_progress_knn_graph;
DROP OWNED BY graph_reader;
DROP ROLE graph_reader;
DROP TABLE s.graph;
DROP SCHEMA s;

\qecho graphs that were not made here; a name that is found elsewhere
CREATE TABLE small AS SELECT i AS id, vec(i, 4) AS v FROM generate_series(1, 50) AS i;
CREATE TABLE odd (src bigint, rank int, dst bigint, distance real);
INSERT INTO odd VALUES (1, 2000000000, 2, 1), (77777, 1, 3, 1), (2, 1, 3, 1);
SELECT error_of($$SELECT knn_graph_recall('odd', 'small', 'id', 'v')$$);
UPDATE odd SET rank = 1 WHERE src = 1;
SELECT knn_graph_recall('odd', 'small', 'id', 'v') BETWEEN 0 AND 0.1;
CREATE TEMP TABLE named (i int);
SELECT created, edges FROM knn_graph_create('named', 'small', 'id', 'v', 3);
SELECT count(*) FROM knn_graph_test.named;
SELECT count(*) FROM pg_temp.named;
SET client_min_messages = warning;
DROP SCHEMA knn_graph_test CASCADE;
