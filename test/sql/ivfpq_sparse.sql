-- Indexes on a part of a table that a few random blocks do not show: partial indexes, rows in one
-- region, vectors that are mostly null. From 1000 rows on an index trains.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
SET client_min_messages = warning;
\set ECHO all

-- 30 tenants of 2000 rows, one after the other, on 3500 blocks
CREATE TABLE t (id int, tenant int, filler text, v vector(4)) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT i, i / 2000, repeat('x', 400), ARRAY[i % 101, i % 103, i % 107, i % 109]::vector
FROM generate_series(0, 59999) AS i;
SELECT pg_relation_size('t') / 8192 > 3000;

\qecho partial indexes of equal size have the same lists
DO $$
BEGIN
    FOR i IN 1 .. 8 LOOP
        EXECUTE format('CREATE INDEX t_%s ON t USING ivfpq (v) WHERE tenant = %s', i, i * 3);
    END LOOP;
END
$$;
SELECT i.trained, i.rows, i.lists, i.training_rows, count(*)
FROM pg_class AS c, ivfpq_info(c.oid) AS i WHERE c.relname ~ '^t_\d+$' GROUP BY 1, 2, 3, 4;
REINDEX INDEX t_7;
REINDEX INDEX CONCURRENTLY t_8;
SELECT i.trained, i.rows, i.lists, count(*)
FROM pg_class AS c, ivfpq_info(c.oid) AS i WHERE c.relname ~ '^t_\d+$' GROUP BY 1, 2, 3;
SELECT scan, rows, same_rows, each_once
FROM compare_scan('t', $$v <-> '[1,2,3,4]'$$, 'tenant = 21');
SELECT relname, p.* FROM pg_class AS c, ivfpq_check(c.oid, true) AS p WHERE relname ~ '^t_\d+$';

\qecho 1000 rows and 999
CREATE INDEX t_1000 ON t USING ivfpq (v) WHERE id BETWEEN 50001 AND 51000;
CREATE INDEX CONCURRENTLY t_1000_concurrently ON t USING ivfpq (v) WHERE id BETWEEN 50001 AND 51000;
CREATE INDEX t_999 ON t USING ivfpq (v) WHERE id BETWEEN 50001 AND 50999;
CREATE INDEX t_1000_scattered ON t USING ivfpq (v) WHERE id % 60 = 7;
SELECT relname, trained, rows FROM pg_class AS c, ivfpq_info(c.oid) AS i
WHERE relname ~ '^t_(1000|999)' ORDER BY relname;

\qecho vectors that are mostly null, or of an expression
ALTER TABLE t ADD w vector(4);
UPDATE t SET w = v WHERE id % 20 = 7;
VACUUM t;
CREATE INDEX t_w ON t USING ivfpq (w);
CREATE INDEX t_e ON t USING ivfpq ((CASE WHEN tenant = 5 THEN v END::vector(4)));
SELECT relname, trained, rows, lists, training_rows FROM pg_class AS c, ivfpq_info(c.oid)
WHERE relname IN ('t_w', 't_e') ORDER BY relname;
SELECT * FROM ivfpq_check('t_w', true);

\qecho lists for the whole table, by a look at some blocks
CREATE INDEX t_v ON t USING ivfpq (v);
SELECT trained, rows, lists BETWEEN 415 AND 445 FROM ivfpq_info('t_v');
CREATE INDEX t_half ON t USING ivfpq (v) WHERE tenant % 2 = 0;
SELECT trained, rows, lists BETWEEN 280 AND 325 FROM ivfpq_info('t_half');

\qecho nothing at all
CREATE INDEX t_none ON t USING ivfpq (v) WHERE id < 0;
SELECT trained, rows FROM ivfpq_info('t_none');
DROP TABLE t;
