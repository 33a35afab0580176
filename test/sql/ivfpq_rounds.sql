-- How far a scan goes: rounds, bounds, and filters that leave little.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET enable_seqscan = off;
CREATE TABLE t (id int, kind int, v vector(3));
INSERT INTO t SELECT i, i % 2000, vec(i, 3) FROM generate_series(1, 20000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 100);
ANALYZE t;

-- Ids of a whole scan, in its order.
CREATE FUNCTION whole_scan() RETURNS TABLE (n bigint, id int, d float8) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE 'SELECT row_number() OVER (), s.* FROM
        (SELECT id, v <-> ''[99,99,99]'' FROM t ORDER BY v <-> ''[99,99,99]'') AS s';
END
$$;

\qecho a filter that leaves one row in 2000, and one in 20000
SELECT count(*) FROM (SELECT id FROM t WHERE kind = 77 ORDER BY v <-> '[1,2,3]' LIMIT 10) AS s;
SELECT count(*) FROM (SELECT id FROM t WHERE kind = 77 ORDER BY v <-> '[1,2,3]' LIMIT 11) AS s;
SELECT id FROM t WHERE id = 12345 ORDER BY v <-> '[1,2,3]' LIMIT 10;
SELECT id FROM t WHERE id = -1 ORDER BY v <-> '[1,2,3]' LIMIT 10;
-- the planner does not know how little this leaves
SELECT count(*) FROM (SELECT id FROM t WHERE (id * 7 + 3) % 4999 = 1 ORDER BY v <-> '[1,2,3]'
                      LIMIT 10) AS s;

\qecho relaxed_order: every row once, each round in order
SET ivfpq.probes = 1;
SET ivfpq.candidates = 50;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
-- each row is ranked once, though a list may give what the service has given before
SELECT ranked_rows FROM ivfpq_last_scan();
SELECT bool_and(d >= before) FROM
    (SELECT d, lag(d) OVER (ORDER BY n) AS before FROM whole_scan() WHERE n <= 20) AS s;

\qecho a plan that sorts rows of one distance only trusts the order of all
CREATE FUNCTION sorted_scan(most int) RETURNS TABLE (n bigint, id int, d float8) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT row_number() OVER (), x.* FROM (SELECT s.* FROM
        (SELECT id, v <-> ''[99,99,99]'' AS d FROM t ORDER BY v <-> ''[99,99,99]'') AS s ORDER BY s.d, s.id LIMIT %s) AS x', coalesce(most::text, 'ALL'));
END
$$;
SET enable_sort = off;
EXPLAIN (COSTS OFF) SELECT s.* FROM
    (SELECT id, v <-> '[99,99,99]' AS d FROM t ORDER BY v <-> '[99,99,99]') AS s ORDER BY s.d, s.id LIMIT 500;
SELECT most, count(*), count(DISTINCT id), bool_and(d > before OR d = before AND id > id_before) FROM
    (SELECT most, n, id, d, lag(d) OVER w AS before, lag(id) OVER w AS id_before
     FROM unnest('{1,49,50,51,500,19999,20000,NULL}'::int[]) AS most, sorted_scan(most)
     WINDOW w AS (PARTITION BY most ORDER BY n)) AS s GROUP BY most ORDER BY most;
-- with the effort that the index chooses, too
RESET ivfpq.probes;
RESET ivfpq.candidates;
SELECT most, count(*), count(DISTINCT id), bool_and(d > before OR d = before AND id > id_before) FROM
    (SELECT most, n, id, d, lag(d) OVER w AS before, lag(id) OVER w AS id_before
     FROM unnest('{10,500,20000,NULL}'::int[]) AS most, sorted_scan(most)
     WINDOW w AS (PARTITION BY most ORDER BY n)) AS s GROUP BY most ORDER BY most;
SET ivfpq.probes = 1;
SET ivfpq.candidates = 50;
RESET enable_sort;

\qecho strict_order: what comes too late is left out
SET ivfpq.iterative_scan = strict_order;
SELECT count(*) BETWEEN 50 AND 19999, count(*) = count(DISTINCT id) FROM whole_scan();
SELECT bool_and(d >= before) FROM
    (SELECT d, lag(d) OVER (ORDER BY n) AS before FROM whole_scan()) AS s;
-- nothing comes too late where all is in one round
SET ivfpq.probes = 100;
SET ivfpq.candidates = 20000;
SELECT count(*), count(DISTINCT id) FROM whole_scan();

\qecho off: one round
SET ivfpq.iterative_scan = off;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
SET ivfpq.candidates = 150;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
-- a LIMIT above the candidates raises them
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 777) AS s;
-- and LIMIT and OFFSET may be as large as they can
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]'
                      LIMIT 9223372036854775807 OFFSET 9223372036854775807) AS s;
SELECT count(*) = (SELECT count(*) - 3 FROM t)
FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 9223372036854775807 OFFSET 3) AS s;
RESET ivfpq.iterative_scan;

\qecho max_probes: lists are a bound
SET ivfpq.probes = 1;
SET ivfpq.max_probes = 3;
SELECT count(*) BETWEEN 1 AND 5000, count(*) = count(DISTINCT id) FROM whole_scan();
SET ivfpq.probes = 50;
CREATE TEMPORARY TABLE three AS SELECT * FROM whole_scan();
SET ivfpq.probes = 3;
SELECT count(*) = (SELECT count(*) FROM three) FROM whole_scan();
SET ivfpq.max_probes = 100;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
SET ivfpq.max_probes = 32768;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
RESET ivfpq.max_probes;

\qecho max_scan_tuples: no further round behind it
SET ivfpq.probes = 1;
SET ivfpq.candidates = 150;
SET ivfpq.max_scan_tuples = 1;
SELECT count(*) BETWEEN 1 AND 150, count(*) = count(DISTINCT id) FROM whole_scan();
SET ivfpq.max_scan_tuples = 1000;
SELECT count(*) BETWEEN 1000 AND 3000, count(*) = count(DISTINCT id) FROM whole_scan();
SET ivfpq.max_scan_tuples = 20000;
SELECT count(*) FROM whole_scan();
RESET ivfpq.max_scan_tuples;

\qecho target_recall: more recall, more effort; all of it: every list
RESET ivfpq.probes;
RESET ivfpq.candidates;
CREATE TEMPORARY TABLE effort (recall float8, probes int, candidates int);
DO $$
DECLARE
    target text;
BEGIN
    FOREACH target IN ARRAY '{0, 0.5, 0.9, 0.99, 0.999, 1}'::text[] LOOP
        PERFORM set_config('ivfpq.target_recall', target, true);
        INSERT INTO effort SELECT target_recall, probes, candidates FROM ivfpq_info('t_v');
    END LOOP;
END
$$;
SELECT probes FROM effort WHERE recall = 1;
SELECT min(probes * candidates) < max(probes * candidates) FROM effort WHERE recall < 1;
SET ivfpq.target_recall = 1;
SELECT ivfpq_recall('t_v', 50, 10);
SET ivfpq.target_recall = 0;
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 10) AS s;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
RESET ivfpq.target_recall;

\qecho little work_mem: more rounds, the same rows
SET work_mem = '64kB';
SELECT count(*), count(DISTINCT id) FROM whole_scan();
SET ivfpq.candidates = 1000000;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 5000) AS s;
RESET work_mem;
RESET ivfpq.candidates;

\qecho settings that change while a cursor is open
DO $$
DECLARE
    c refcursor;
    next_id int;
    ids int[] := '{}';
BEGIN
    PERFORM set_config('ivfpq.probes', '5', true), set_config('ivfpq.candidates', '10', true);
    OPEN c FOR SELECT id FROM t ORDER BY v <-> '[1,2,3]';
    LOOP
        FETCH c INTO next_id;
        EXIT WHEN NOT FOUND;
        ids := ids || next_id;
        IF cardinality(ids) % 500 = 0 THEN
            PERFORM set_config('ivfpq.probes', (1 + next_id % 100)::text, true),
                    set_config('ivfpq.candidates', (1 + next_id)::text, true),
                    set_config('work_mem', (64 + next_id % 1000)::text, true);
        END IF;
    END LOOP;
    RAISE NOTICE '% rows, % different', cardinality(ids),
        (SELECT count(DISTINCT i) FROM unnest(ids) AS i);
END
$$;

\qecho the same on an untrained index
TRUNCATE t;
INSERT INTO t SELECT i, i % 2000, vec(i, 3) FROM generate_series(1, 5000) AS i;
SELECT trained FROM ivfpq_info('t_v');
SET ivfpq.candidates = 10;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
SELECT ranked_rows FROM ivfpq_last_scan();
SELECT bool_and(d >= before) FROM
    (SELECT d, lag(d) OVER (ORDER BY n) AS before FROM whole_scan()) AS s;
SET ivfpq.iterative_scan = strict_order;
SELECT count(*), count(DISTINCT id) FROM whole_scan();
SET ivfpq.max_scan_tuples = 100;
SELECT count(*) BETWEEN 100 AND 400 FROM whole_scan();
DROP FUNCTION whole_scan;
DROP TABLE t;
