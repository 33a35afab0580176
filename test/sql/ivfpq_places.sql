-- Where an index can be: on expressions, parts of a table, partitions, unlogged and temporary
-- tables, materialized views, in a tablespace; and how it can be made: concurrently, again.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;

\qecho expressions
CREATE TABLE t (id int, kind int, v vector(6), a real[]) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT i, i % 10, vec(i, 6), vec(i, 3)::real[] FROM generate_series(1, 3000) AS i;
CREATE INDEX t_first ON t USING ivfpq ((subvector(v, 1, 3)::vector(3))) WITH (lists = 10);
CREATE INDEX t_array ON t USING ivfpq ((a::vector(3)) vector_ip_ops) WITH (lists = 10);
CREATE INDEX t_null ON t USING ivfpq ((CASE WHEN id % 2 = 0 THEN v END::vector(6)))
    WITH (lists = 5);
SELECT * FROM compare_scan('t', $$subvector(v, 1, 3)::vector(3) <-> '[1,2,3]'$$);
SELECT * FROM compare_scan('t', $$a::vector(3) <#> '[1,2,3]'$$);
SELECT * FROM compare_scan('t', $$CASE WHEN id % 2 = 0 THEN v END::vector(6) <-> '[1,2,3,4,5,6]'$$,
                           'id % 2 = 0');
UPDATE t SET v = vec(id + 5000, 6), a = vec(id + 5000, 3)::real[] WHERE id % 7 = 0;
DELETE FROM t WHERE id % 11 = 0;
SELECT * FROM compare_scan('t', $$subvector(v, 1, 3)::vector(3) <-> '[1,2,3]'$$);
SELECT * FROM compare_scan('t', $$a::vector(3) <#> '[1,2,3]'$$);
VACUUM t;
SELECT * FROM compare_scan('t', $$subvector(v, 1, 3)::vector(3) <-> '[1,2,3]'$$);
SELECT rows FROM ivfpq_info('t_null');
SELECT * FROM ivfpq_check('t_first', true);
SELECT * FROM ivfpq_check('t_array', true);
SELECT * FROM ivfpq_check('t_null', true);
-- an expression that fails fails the statement, and leaves nothing behind
SELECT error_of('INSERT INTO t VALUES (0, 0, vec(0, 6), ARRAY[1, 2])');
SELECT error_of('CREATE INDEX t_bad ON t USING ivfpq ((subvector(v, 1, 2)::vector(3)))');
SELECT count(*) FROM pg_class WHERE relname = 't_bad';
DROP INDEX t_first, t_array, t_null;

\qecho parts of a table
CREATE INDEX t_part ON t USING ivfpq (v) WITH (lists = 10) WHERE kind IN (1, 2, 3, 4);
SELECT trained, rows = (SELECT count(*) FROM t WHERE kind IN (1, 2, 3, 4))
FROM ivfpq_info('t_part');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5,6]'$$, 'kind IN (1, 2, 3, 4)');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5,6]'$$, 'kind = 3');
UPDATE t SET kind = kind + 3;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5,6]'$$, 'kind IN (1, 2, 3, 4)');
-- not for queries that want other rows, nor for those without an order
SET enable_seqscan = off;
SELECT scans_of($$SELECT id FROM t ORDER BY v <-> '[1,2,3,4,5,6]'$$);
SELECT scans_of($$SELECT id FROM t WHERE kind = 5 ORDER BY v <-> '[1,2,3,4,5,6]'$$);
SELECT scans_of('SELECT count(*) FROM t WHERE kind IN (1, 2, 3, 4)');
SELECT scans_of('SELECT id FROM t WHERE kind = 3');
SELECT count(*) = count(*) FILTER (WHERE kind = 3) FROM t WHERE kind = 3;
RESET enable_seqscan;
VACUUM t;
SELECT rows = (SELECT count(*) FROM t WHERE kind IN (1, 2, 3, 4)) FROM ivfpq_info('t_part');
SELECT * FROM ivfpq_check('t_part', true);

\qecho built concurrently, and again
CREATE INDEX CONCURRENTLY t_v ON t USING ivfpq (v) WITH (lists = 20);
DROP INDEX t_part;
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_v'::regclass;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5,6]'$$);
DELETE FROM t WHERE id % 5 = 0;
REINDEX INDEX CONCURRENTLY t_v;
SELECT trained, rows = (SELECT count(*) FROM t) FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5,6]'$$);
REINDEX TABLE CONCURRENTLY t;
REINDEX TABLE t;
VACUUM FULL t;
SELECT trained, rows = (SELECT count(*) FROM t) FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5,6]'$$);
ALTER TABLE t ALTER COLUMN v TYPE vector(5) USING subvector(v, 1, 5);
SELECT trained, dims FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5]'$$);
SELECT error_of('CLUSTER t USING t_v');
SELECT * FROM ivfpq_check('t_v', true);
-- a column that loses its dimensions keeps the index it has, which keeps its own
ALTER TABLE t ALTER COLUMN v TYPE vector;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5]'$$);
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> NULL::vector) AS s;
RESET enable_seqscan;
SELECT error_of($$INSERT INTO t (id, v) VALUES (0, '[1,2]')$$);
SELECT error_of('REINDEX INDEX t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5]'$$);
ALTER TABLE t ALTER COLUMN v TYPE vector(5);
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5]'$$);
DROP INDEX CONCURRENTLY t_v;
CREATE INDEX CONCURRENTLY t_few ON t USING ivfpq (v) WHERE kind = 4;
SELECT trained FROM ivfpq_info('t_few');
REINDEX INDEX CONCURRENTLY t_few;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4,5]'$$, 'kind = 4');
DROP TABLE t;

\qecho unlogged
CREATE UNLOGGED TABLE u (id int, v vector(3));
CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 7);
INSERT INTO u SELECT i, vec(i, 3) FROM generate_series(1, 2000) AS i;
SELECT * FROM compare_scan('u', $$v <-> '[1,2,3]'$$);
REINDEX INDEX u_v;
DELETE FROM u WHERE id % 2 = 0;
VACUUM u;
SELECT * FROM compare_scan('u', $$v <-> '[1,2,3]'$$);
ALTER TABLE u SET LOGGED;
SELECT trained, lists FROM ivfpq_info('u_v');
INSERT INTO u SELECT i, vec(i, 3) FROM generate_series(2001, 3000) AS i;
SELECT * FROM compare_scan('u', $$v <-> '[1,2,3]'$$);
ALTER TABLE u SET UNLOGGED;
SELECT * FROM compare_scan('u', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('u_v', true);
DROP TABLE u;

\qecho temporary
CREATE TEMPORARY TABLE p (id int, v vector(3));
INSERT INTO p SELECT i, vec(i, 3) FROM generate_series(1, 2000) AS i;
CREATE INDEX p_v ON p USING ivfpq (v) WITH (lists = 7);
INSERT INTO p SELECT i, vec(i, 3) FROM generate_series(2001, 3000) AS i;
DELETE FROM p WHERE id % 2 = 0;
VACUUM p;
SELECT * FROM compare_scan('p', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('p_v', true);
CREATE TEMPORARY TABLE d (id int, v vector(3)) ON COMMIT DELETE ROWS;
CREATE INDEX d_v ON d USING ivfpq (v) WITH (lists = 7);
BEGIN;
INSERT INTO d SELECT i, vec(i, 3) FROM generate_series(1, 2000) AS i;
REINDEX INDEX d_v;
SELECT * FROM compare_scan('d', $$v <-> '[1,2,3]'$$);
COMMIT;
SELECT * FROM compare_scan('d', $$v <-> '[1,2,3]'$$);
BEGIN;
INSERT INTO d VALUES (1, '[1,2,3]');
SELECT * FROM compare_scan('d', $$v <-> '[1,2,3]'$$);
COMMIT;
SELECT trained, rows FROM ivfpq_info('d_v');
SELECT * FROM ivfpq_check('d_v', true);
-- a table of this transaction shrinks in place as well
BEGIN;
CREATE TABLE s (id int, v vector(3));
INSERT INTO s SELECT i, vec(i, 3) FROM generate_series(1, 30000) AS i;
CREATE INDEX s_v ON s USING ivfpq (v) WITH (lists = 7, m = 3);
SELECT * FROM compare_scan('s', $$v <-> '[1,2,3]'$$);
TRUNCATE s;
SELECT * FROM compare_scan('s', $$v <-> '[1,2,3]'$$);
INSERT INTO s SELECT i, vec(i, 3) FROM generate_series(1, 2000) AS i;
SELECT * FROM compare_scan('s', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('s_v', true);
COMMIT;
DROP TABLE p, d, s;

\qecho materialized views
CREATE MATERIALIZED VIEW mv AS
    SELECT i AS id, vec(i, 3)::vector(3) AS v FROM generate_series(1, 1500) AS i;
CREATE INDEX mv_v ON mv USING ivfpq (v) WITH (lists = 7);
SELECT * FROM compare_scan('mv', $$v <-> '[1,2,3]'$$);
REFRESH MATERIALIZED VIEW mv;
SELECT * FROM compare_scan('mv', $$v <-> '[1,2,3]'$$);
DROP MATERIALIZED VIEW mv;

\qecho tablespaces
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE ivfpq_space LOCATION '';
CREATE TABLE t (id int, v vector(3));
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(1, 1500) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 7) TABLESPACE ivfpq_space;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
ALTER INDEX t_v SET TABLESPACE pg_default;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
REINDEX (TABLESPACE ivfpq_space) INDEX t_v;
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(1501, 1600) AS i;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('t_v', true);
DROP TABLE t;
DROP TABLESPACE ivfpq_space;

\qecho partitions
CREATE TABLE t (id int, v vector(3)) PARTITION BY RANGE (id);
CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (1500);
CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (1500) TO (2900);
CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (2900) TO (10000);
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(1, 3000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 9);
CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (10000) TO (20000);
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(10001, 10100) AS i;
SELECT c.relname, i.trained, i.lists, i.rows FROM pg_class AS c, ivfpq_info(c.oid) AS i
WHERE c.relname LIKE 't\__\_v\_idx' ORDER BY c.relname;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$, 'id < 2000');
SET enable_seqscan = off;
SET max_parallel_workers_per_gather = 0;
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 5;
SELECT v, v <-> '[1,2,3]' FROM t ORDER BY v <-> '[1,2,3]' LIMIT 5;
RESET enable_seqscan;
RESET max_parallel_workers_per_gather;
SELECT v, v <-> '[1,2,3]' FROM t ORDER BY v <-> '[1,2,3]' LIMIT 5;
UPDATE t SET id = 15000 + id WHERE id < 100;
ALTER TABLE t DETACH PARTITION t_2;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM compare_scan('t_2', $$v <-> '[1,2,3]'$$);
SELECT leaf_index, rows FROM ivfpq_info('t_v') ORDER BY leaf_index::text;
SELECT c.relname, p.* FROM pg_class AS c, ivfpq_check(c.oid, true) AS p
WHERE c.relname LIKE 't\__\_v\_idx' ORDER BY c.relname;
DROP TABLE t, t_2;
