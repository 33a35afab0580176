-- What a scan to the end of an index costs, and in which order rows come: with little memory, many
-- rounds, many pending rows, large LIMITs.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE TABLE t (id int, v vector(4)) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT i, vec(i, 4) FROM generate_series(1, 30000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 60);
ANALYZE t;
SET enable_seqscan = off;

-- How often a query reads the index, in readings of all its pages, at most; its rows; and whether
-- they come in order.
CREATE FUNCTION readings(query text, OUT readings numeric, OUT rows bigint, OUT each_once boolean,
                         OUT in_order boolean)
LANGUAGE plpgsql AS $$
DECLARE
    before bigint := pg_stat_get_xact_blocks_fetched('t_v'::regclass);
BEGIN
    EXECUTE 'SELECT count(*), count(*) = count(DISTINCT id), bool_and(d >= before) FROM
             (SELECT id, d, coalesce(lag(d) OVER (), d) AS before FROM (' || query || ') AS s) AS s'
        INTO rows, each_once, in_order;
    readings := ceil((pg_stat_get_xact_blocks_fetched('t_v'::regclass) - before)::numeric /
                     (pg_relation_size('t_v') / current_setting('block_size')::int));
END
$$;

\qecho to the end, with little memory and with much, whatever the first round is
SET work_mem = '64kB';
-- the first also reads lists for the service
SELECT readings <= 5, rows, each_once FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]'$$);
SELECT readings <= 4, rows FROM readings($$SELECT id, v <-> '[9,9,9,9]' AS d FROM t
    WHERE id = 12345 ORDER BY v <-> '[9,9,9,9]' LIMIT 2$$);
SET ivfpq.probes = 1;
SET ivfpq.candidates = 10;
SELECT readings <= 4, rows, each_once FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]'$$);
RESET work_mem;
SELECT readings <= 4, rows, each_once FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]'$$);
RESET ivfpq.probes;
RESET ivfpq.candidates;

\qecho a LIMIT that is known comes in order
SELECT rows, each_once, in_order FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 20000$$);
SELECT rows, each_once, in_order FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 12000 OFFSET 3000$$);
SELECT rows, each_once, in_order FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 1000000000000$$);
SET work_mem = '64kB';
SELECT rows, each_once, in_order FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 20000$$);
-- also where lists are few, and rows are dead
SET ivfpq.probes = 1;
DELETE FROM t WHERE id % 3 = 0;
SELECT rows, each_once, in_order FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 2000$$);
RESET ivfpq.probes;
RESET work_mem;

\qecho cursors read on, and start over, with rows in files
SET work_mem = '64kB';
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 15000;
DECLARE d CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 15000;
MOVE 10000 IN c;
\echo :ROW_COUNT
SAVEPOINT s;
MOVE 1000 IN c;
\echo :ROW_COUNT
ROLLBACK TO s;
MOVE FORWARD ALL IN c;
\echo :ROW_COUNT
MOVE 10000 IN d;
\echo :ROW_COUNT
COMMIT;
MOVE FORWARD ALL IN d;
\echo :ROW_COUNT
CLOSE d;
-- a scan that is rescanned before its end
SELECT id, n FROM (VALUES (1), (2), (4)) AS k(id), LATERAL
    (SELECT count(*) AS n FROM (SELECT 1 FROM t WHERE t.id % 2 = k.id % 2
                                ORDER BY v <-> vec(k.id, 4) LIMIT 6000) AS s) AS s;
RESET work_mem;

\qecho the pending list of an index without a model, with little memory
SET client_min_messages = warning;
TRUNCATE t;
RESET client_min_messages;
INSERT INTO t SELECT i, vec(i, 4) FROM generate_series(1, 30000) AS i;
SET work_mem = '64kB';
SELECT readings <= 3, rows, each_once, in_order FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]'$$);
SELECT readings <= 3, rows, each_once, in_order FROM readings(
    $$SELECT id, v <-> '[9,9,9,9]' AS d FROM t ORDER BY v <-> '[9,9,9,9]' LIMIT 20000$$);
RESET work_mem;
RESET enable_seqscan;
DROP FUNCTION readings;
DROP TABLE t;
