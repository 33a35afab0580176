-- A trained index whose pending list is long, as a VACUUM leaves it that fails while it moves rows:
-- every scan visits those rows, and the planner knows.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set SHOW_CONTEXT never
\set ECHO all

CREATE FUNCTION pass(id int, v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE COST 1 AS $$
BEGIN
    IF id = current_setting('test.fail_at', true)::int
       AND (SELECT trained FROM public.ivfpq_info('public.t_v')) THEN
        RAISE 'row % is not for moving', id;
    END IF;
    RETURN v;
END
$$;
CREATE TABLE t (id int, v vector(4)) WITH (autovacuum_enabled = off);
CREATE INDEX t_v ON t USING ivfpq ((pass(id, v)::vector(4))) WITH (lists = 50);
INSERT INTO t SELECT i, vec(i, 4) FROM generate_series(1, 15000) AS i;
-- exact, and dearer than a sequential scan
ANALYZE t;
SELECT scans_of($$SELECT id FROM t ORDER BY pass(id, v)::vector(4) <-> '[1,2,3,4]' LIMIT 10$$);
SET test.fail_at = 1000;
VACUUM ANALYZE t;
SELECT trained, pending_rows > 13000 FROM ivfpq_info('t_v');
\qecho most rows are pending: a sequential scan
SELECT scans_of($$SELECT id FROM t ORDER BY pass(id, v)::vector(4) <-> '[1,2,3,4]' LIMIT 10$$);
\qecho scans are right all the same, with little memory too
SET test.fail_at = 0;
SELECT * FROM compare_scan('t', $$pass(id, v)::vector(4) <-> '[1,2,3,4]'$$, 'id > 0');
SET work_mem = '64kB';
SELECT scan, rows, same_rows, each_once
FROM compare_scan('t', $$pass(id, v)::vector(4) <-> '[1,2,3,4]'$$, 'id > 0');
RESET work_mem;
\qecho few rows are pending: the index
SET test.fail_at = 1500;
VACUUM ANALYZE t;
SELECT trained, pending_rows BETWEEN 1 AND 1000 FROM ivfpq_info('t_v');
SELECT scans_of($$SELECT id FROM t ORDER BY pass(id, v)::vector(4) <-> '[1,2,3,4]' LIMIT 10$$);
\qecho none is
SET test.fail_at = 0;
VACUUM ANALYZE t;
SELECT trained, pending_rows FROM ivfpq_info('t_v');
SELECT scans_of($$SELECT id FROM t ORDER BY pass(id, v)::vector(4) <-> '[1,2,3,4]' LIMIT 10$$);
SELECT * FROM ivfpq_check('t_v', true);
DROP TABLE t;
DROP FUNCTION pass;
