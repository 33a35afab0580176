-- maintenance_work_mem: an index that needs more says how much, or makes do with fewer lists. The
-- figures in the messages are left out; test/t/011_memory.pl looks at them.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET maintenance_work_mem = '1MB';
SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;
CREATE TABLE t (id int, v vector(64));
INSERT INTO t SELECT i, vec(i, 64) FROM generate_series(1, 10500) AS i;

\qecho lists that were asked for are had or refused
SELECT regexp_replace(error_of('CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 1000)'),
                      'is \d+ MB', 'is ? MB');
SELECT count(*) FROM pg_class WHERE relname = 't_v';
\qecho chosen lists are fewer
CREATE TABLE c (id int, v vector(200));
INSERT INTO c SELECT i, vec(i, 200) FROM generate_series(1, 2000) AS i;
SET client_min_messages = warning;
CREATE INDEX c_v ON c USING ivfpq (v);
RESET client_min_messages;
SELECT trained, rows FROM ivfpq_info('c_v');
SELECT lists AS few FROM ivfpq_info('c_v') \gset
SELECT * FROM compare_scan('c', 'v <-> vec(0, 200)', 'id > 0');
SELECT * FROM ivfpq_check('c_v', true);
RESET maintenance_work_mem;
REINDEX INDEX c_v;
SELECT lists > :few FROM ivfpq_info('c_v');
DROP TABLE c;
\qecho no lists at all would do
SET maintenance_work_mem = '1MB';
CREATE TABLE w (v vector(4000));
INSERT INTO w SELECT array_fill(i, ARRAY[4000])::vector FROM generate_series(1, 1000) AS i;
SELECT regexp_replace(error_of('CREATE INDEX ON w USING ivfpq (v) WITH (lists = 1)'),
                      'is \d+ MB', 'is ? MB');
DROP TABLE w;

\qecho training in VACUUM: VACUUM does its work all the same, and says what is missing
CREATE TABLE u (LIKE t) WITH (autovacuum_enabled = off);
CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 5000);
INSERT INTO u SELECT * FROM t;
DELETE FROM u WHERE id % 50 = 0;
SET client_min_messages = error;
VACUUM u;
SELECT trained, rows FROM ivfpq_info('u_v');
VACUUM u;
RESET client_min_messages;
SELECT count(*) FROM (SELECT id FROM u ORDER BY v <-> vec(0, 64)) AS s;
RESET maintenance_work_mem;
VACUUM u;
SELECT trained, lists, rows FROM ivfpq_info('u_v');
SELECT * FROM ivfpq_check('u_v', true);
DROP TABLE t, u;
