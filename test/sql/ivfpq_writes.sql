-- INSERT, UPDATE, DELETE, COPY and VACUUM: the index follows the table, and reuses its space.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;

CREATE TABLE t (id int PRIMARY KEY, note text, v vector(3)) 
WITH (fillfactor = 50, autovacuum_enabled = off);
INSERT INTO t SELECT i, 'a', vec(i, 3) FROM generate_series(1, 5000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 20);

\qecho HOT updates leave the index alone, others add an entry
UPDATE t SET note = 'b' WHERE id % 10 = 0;
SELECT rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
UPDATE t SET v = vec(id + 10000, 3) WHERE id % 10 = 1;
SELECT rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
-- a chain of versions, the last under the old entry
UPDATE t SET note = 'c' WHERE id % 10 IN (0, 1);
UPDATE t SET note = 'd' WHERE id % 10 IN (0, 1);
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
VACUUM t;
SELECT rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('t_v', true);

\qecho what was rolled back is not found
BEGIN;
INSERT INTO t SELECT 10000 + i, 'r', '[1,2,3]' FROM generate_series(1, 500) AS i;
UPDATE t SET v = '[1,2,3]' WHERE id % 3 = 0;
ROLLBACK;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
VACUUM t;
SELECT rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);

\qecho COPY, ON CONFLICT
COPY t (id, v) FROM stdin;
20001	[1,2,3]
20002	\N
20003	[4,5,6]
\.
INSERT INTO t VALUES (20001, 'e', '[7,8,9]'), (20004, 'e', '[7,8,9]')
ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO t VALUES (20001, 'f', '[0,0,0]') ON CONFLICT DO NOTHING;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$, 'v IS NOT NULL');
SELECT * FROM ivfpq_check('t_v', true);

\qecho rows removed come out of the index, pages are given back and used again
-- The pages of an index are counted with and without a life of deleting and inserting.
CREATE FUNCTION pages_of(index regclass) RETURNS bigint LANGUAGE sql AS
    'SELECT pg_relation_size(index) / current_setting(''block_size'')::int';
DELETE FROM t;
VACUUM t;
SELECT rows, list_bytes, empty_lists, free_bytes > 0,
       model_bytes + free_bytes + 8192 = bytes FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
INSERT INTO t SELECT i, 'a', vec(i, 3) FROM generate_series(1, 20000) AS i;
SELECT pages_of('t_v') AS pages \gset
DELETE FROM t;
VACUUM t;
INSERT INTO t SELECT i, 'a', vec(i, 3) FROM generate_series(1, 20000) AS i;
SELECT pages_of('t_v') = :pages;
DELETE FROM t;
VACUUM t;
INSERT INTO t SELECT i, 'a', vec(-i, 3) FROM generate_series(1, 15000) AS i;
SELECT pages_of('t_v') = :pages;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('t_v', true);
-- some rows of every page
DELETE FROM t WHERE id % 2 = 0;
VACUUM t;
SELECT rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('t_v', true);
-- the rows of one list; the first and the last of each; all but one
DELETE FROM t WHERE v <-> '[50,50,50]' < 60;
VACUUM t;
DELETE FROM t WHERE id < 1000 OR id > 14000;
VACUUM t;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('t_v', true);
DELETE FROM t WHERE id <> 5001;
VACUUM t;
SELECT rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('t_v', true);
DROP TABLE t;

\qecho the same with pages of few entries, and several indexes at once
CREATE TABLE t (id int, v vector(600)) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT i, vec(i, 600) FROM generate_series(1, 1500) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 2, m = 600);
CREATE INDEX t_ip ON t USING ivfpq (v vector_ip_ops) WITH (lists = 3, m = 1);
CREATE INDEX t_late ON t USING ivfpq (v) WHERE id > 1000;
SELECT pages_of('t_v') AS pages \gset
DELETE FROM t WHERE id % 3 <> 0;
VACUUM (PARALLEL 2) t;
SELECT list_bytes / 8192 BETWEEN 63 AND 64, free_bytes > 0, rows FROM ivfpq_info('t_v');
INSERT INTO t SELECT i, vec(i, 600) FROM generate_series(2001, 3000) AS i;
SELECT pages_of('t_v') <= :pages + 3;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM t ORDER BY v <-> vec(0, 600)) AS s;
SELECT * FROM ivfpq_check('t_v', true);
SELECT * FROM ivfpq_check('t_ip', true);
SELECT * FROM ivfpq_check('t_late', true);
SET min_parallel_index_scan_size = 0;
DELETE FROM t WHERE id % 2 = 0;
VACUUM (PARALLEL 2) t;
SELECT * FROM ivfpq_check('t_v', true);
SELECT * FROM ivfpq_check('t_ip', true);
SELECT * FROM ivfpq_check('t_late', true);
SELECT same_rows, each_once FROM compare_scan('t', 'v <#> vec(0, 600)');
VACUUM (INDEX_CLEANUP OFF) t;
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t;
ANALYZE t;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('t', 't_v', 't_ip') ORDER BY relname;
DROP FUNCTION pages_of;
DROP TABLE t;
