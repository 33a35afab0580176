-- The same rows and settings give the same index, byte for byte, in one process or several.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE EXTENSION pageinspect;
CREATE TABLE t (id int, v vector(20));
-- with ties: a tenth of the rows are there twice
INSERT INTO t SELECT i, vec(i % 11000, 20) FROM generate_series(1, 12000) AS i;

SET max_parallel_maintenance_workers = 0;
CREATE INDEX t_alone ON t USING ivfpq (v);
CREATE INDEX t_again ON t USING ivfpq (v);
ALTER TABLE t SET (parallel_workers = 1);
SET max_parallel_maintenance_workers = 4;
CREATE INDEX t_two ON t USING ivfpq (v);
ALTER TABLE t SET (parallel_workers = 3);
SET maintenance_work_mem = '256MB';
CREATE INDEX t_four ON t USING ivfpq (v);
CREATE INDEX CONCURRENTLY t_concurrent ON t USING ivfpq (v);
RESET maintenance_work_mem;
SELECT digest('t_again') = digest('t_alone') AS again, digest('t_two') = digest('t_alone') AS two,
       digest('t_four') = digest('t_alone') AS four,
       digest('t_concurrent') = digest('t_alone') AS concurrent;
REINDEX INDEX t_again;
SELECT digest('t_again') = digest('t_alone') AS again;
-- two indexes differ in their build id
SELECT count(DISTINCT substr(get_raw_page(i, 0), 33, 8))
FROM unnest(ARRAY['t_alone', 't_again', 't_two', 't_four']) AS i;
-- where rows lie is part of the rows
CREATE TABLE u AS SELECT * FROM t ORDER BY id DESC;
CREATE INDEX u_v ON u USING ivfpq (v);
SELECT digest('u_v') = digest('t_alone') AS other_places;

-- entries that are sorted in memory, or on disk where memory is short
CREATE TABLE s AS SELECT id, subvector(v, 1, 4)::vector(4) AS v FROM t, generate_series(1, 4) ORDER BY random();
SET max_parallel_maintenance_workers = 0;
CREATE INDEX s_memory ON s USING ivfpq (v) WITH (lists = 10);
SELECT flush_statistics();
SELECT temp_files AS files FROM pg_stat_database WHERE datname = current_database() \gset
SET maintenance_work_mem = '1MB';
CREATE INDEX s_disk ON s USING ivfpq (v) WITH (lists = 10);
SELECT flush_statistics();
SELECT temp_files > :files AS spilled FROM pg_stat_database WHERE datname = current_database();
RESET maintenance_work_mem;
RESET max_parallel_maintenance_workers;
SELECT digest('s_disk') = digest('s_memory') AS disk;
DROP TABLE s;

-- training in VACUUM as well
CREATE TABLE w (id int, v vector(20));
CREATE INDEX w_1 ON w USING ivfpq (v);
CREATE INDEX w_2 ON w USING ivfpq (v);
INSERT INTO w SELECT * FROM t;
VACUUM w;
SELECT trained, digest('w_1') = digest('w_2') FROM ivfpq_info('w_1');
DROP TABLE t, u, w;
DROP EXTENSION pageinspect;
