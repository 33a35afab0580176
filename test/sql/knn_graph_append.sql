-- knn_graph_append: what it notices, compared with graphs that are made anew.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA knn_graph_append_test;
SET search_path = knn_graph_append_test, public, ivfpq_test;
CREATE TABLE t (id int PRIMARY KEY, v vector(12));
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1, 2000) AS i;
-- Differences from an exact graph, by distance: neighbors at equal distances may be in any order.
CREATE FUNCTION differences(graph text, k int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE answer bigint;
BEGIN
    EXECUTE format('WITH made AS (SELECT src, rank, distance FROM knn_graph(''t'', ''id'', ''v'', %2$s, ''exact'')),
        edges AS (SELECT src, rank, dst, distance FROM %1$s), given AS (SELECT src, rank, distance FROM edges)
        SELECT (SELECT count(*) FROM (TABLE made EXCEPT ALL TABLE given) AS a) +
               (SELECT count(*) FROM (TABLE given EXCEPT ALL TABLE made) AS b) +
               (SELECT count(*) FROM edges LEFT JOIN t AS x ON x.id = src LEFT JOIN t AS y ON y.id = dst
                WHERE distance IS DISTINCT FROM (x.v <-> y.v)::real OR src = dst)', graph, k) INTO answer;
    RETURN answer;
END
$$;
CREATE FUNCTION append(graph text, OUT said text, OUT differ bigint, OUT again text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SELECT format(''%%s %%s'', added, removed) FROM knn_graph_append(%L, ''t'', ''id'', ''v'')', graph) INTO said;
    differ := differences(CASE graph WHEN 'c' THEN '(SELECT src, rank::int, dst, distance FROM c,
        ROWS FROM (unnest(neighbors), unnest(distances)) WITH ORDINALITY AS l (dst, distance, rank)) AS s' ELSE graph END, 6);
    again := knn_graph_append(graph::regclass, 't', 'id', 'v')::text;
END
$$;
SET client_min_messages = warning;
SELECT edges FROM knn_graph_create('g', 't', 'id', 'v', 6, 'exact');
SELECT edges FROM knn_graph_create('c', 't', 'id', 'v', 6, 'exact', compact => true);

\qecho rows added, removed and changed, at once
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(2001, 2020) AS i;
DELETE FROM t WHERE id IN (3, 777, 1999, 2000);
UPDATE t SET v = vec(id + 5000, 12) WHERE id IN (1, 500, 1000, 2010);
SELECT * FROM append('g');
SELECT * FROM append('c');
\qecho a key that comes back with another vector
DELETE FROM t WHERE id = 40;
INSERT INTO t SELECT 40, vec(9040, 12);
SELECT * FROM append('g');
\qecho a vector that becomes null, and a key that changes
UPDATE t SET v = NULL WHERE id = 41;
UPDATE t SET id = -42 WHERE id = 42;
SELECT * FROM append('g');
SELECT * FROM append('c');

\qecho a table of the graph that is not as it was written
ALTER TABLE g DROP CONSTRAINT g_pkey;
DELETE FROM g WHERE src = 100 AND rank = 2;
DELETE FROM g WHERE src = 101 AND rank = 6;
DELETE FROM g WHERE src = 102;
DELETE FROM g WHERE dst = 103;
INSERT INTO g SELECT * FROM g WHERE src = 104 AND rank = 3;
UPDATE g SET rank = rank - 1 WHERE src = 105;
UPDATE g SET rank = 7 - rank WHERE src = 106;
UPDATE g SET dst = src WHERE src = 107 AND rank = 1;
UPDATE g SET dst = 123456 WHERE src = 108 AND rank = 4;
INSERT INTO g VALUES (200000, 1, 1, 2), (200000, 2, 3, 2), (200001, 1, 200000, 1);
SELECT * FROM append('g');
\qecho a longer list behind many shorter ones
INSERT INTO g SELECT src, 7, dst, distance FROM g WHERE src = 110 AND rank = 6;
SELECT added, changed, removed FROM knn_graph_append('g', 't', 'id', 'v');
SELECT differences('g', 7);
\qecho fewer neighbors
SELECT added, changed, removed FROM knn_graph_append('g', 't', 'id', 'v', k => 6);
SELECT differences('g', 6);

\qecho rows of this transaction, and of one that was rolled back
BEGIN;
DELETE FROM t WHERE id = 50;
SAVEPOINT here;
INSERT INTO t SELECT 3000, vec(3000, 12);
SELECT * FROM append('g');
ROLLBACK TO here;
SELECT * FROM append('g');
COMMIT;
VACUUM g;
SELECT * FROM append('g');
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO t SELECT 3001, vec(3001, 12);
SELECT * FROM append('g');
COMMIT;
\qecho columns beside those of an edge, some of them null or of a later date
ALTER TABLE g ADD note text, ADD more int DEFAULT 7;
UPDATE g SET note = 'seen' WHERE src % 3 = 0;
CREATE TABLE turned AS SELECT note, distance, dst, more, rank, src FROM g;
DELETE FROM t WHERE id = 60;
SELECT * FROM append('g');
SELECT * FROM append('turned');
UPDATE g SET distance = NULL WHERE src = 61 AND rank = 1;
SELECT error_of($$SELECT knn_graph_append('g', 't', 'id', 'v')$$);
\qecho more than it compares: a descent
CREATE TABLE d AS TABLE turned;
DELETE FROM d WHERE src % 4 <> 0;
SELECT added, changed > 0 AS changed, removed FROM knn_graph_append('d', 't', 'id', 'v');
SELECT count(*) = 6 * (SELECT count(v) FROM t), knn_graph_recall('d', 't', 'id', 'v', 1000) >= 0.98 FROM d;
\qecho by parts: with room for the rows, but not for a descent
CREATE TABLE p AS TABLE turned;
SET maintenance_work_mem = '1MB';
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(4001, 4020) AS i;
SELECT * FROM append('p');
RESET maintenance_work_mem;
SELECT * FROM append('c');
DROP SCHEMA knn_graph_append_test CASCADE;
