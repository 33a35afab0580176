-- Ways to ask: parameters, subqueries, joins, cursors, prepared statements, NULL.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET enable_seqscan = off;
CREATE TABLE t (id int PRIMARY KEY, v vector(3));
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(1, 5000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40);
ANALYZE t;
-- The nearest rows are certain where every list is searched and more rows are ranked than wanted.
SET ivfpq.probes = 40;
SET ivfpq.candidates = 2000;

\qecho subqueries and joins
SELECT id FROM t ORDER BY v <-> (SELECT v FROM t WHERE id = 7) LIMIT 1;
SELECT a.id, array_agg(b.id ORDER BY b.d), min(b.d) FROM t AS a CROSS JOIN LATERAL
    (SELECT id, v <-> a.v AS d FROM t ORDER BY v <-> a.v LIMIT 3) AS b
WHERE a.id <= 5 GROUP BY a.id ORDER BY a.id;
-- the inner scan starts over with a NULL in between
SELECT q.n, b.id FROM (VALUES (1, '[1,2,3]'::vector), (2, NULL), (3, '[1,2,3]')) AS q(n, v)
    LEFT JOIN LATERAL (SELECT id FROM t ORDER BY t.v <-> q.v LIMIT 1) AS b ON q.v IS NOT NULL
ORDER BY q.n;
SELECT q.n, count(b.id), count(DISTINCT b.id)
FROM (VALUES (1, '[1,2,3]'::vector), (2, NULL), (3, '[0,0,0]')) AS q(n, v)
    CROSS JOIN LATERAL (SELECT id FROM t ORDER BY t.v <-> q.v) AS b
GROUP BY q.n ORDER BY q.n;
SELECT (SELECT id FROM t WHERE id <> o.id ORDER BY v <-> o.v LIMIT 1) FROM t AS o WHERE id <= 3
ORDER BY id;
SELECT count(*) FROM t AS o
WHERE id <= 20 AND o.id = (SELECT i.id FROM t AS i ORDER BY i.v <-> o.v, i.id LIMIT 1);
WITH near AS MATERIALIZED (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 20)
SELECT count(*) FROM near JOIN t USING (id);
SELECT id FROM t WHERE id IN (SELECT id FROM t ORDER BY v <-> '[9,9,9]' LIMIT 3)
ORDER BY v <-> '[9,9,9]' LIMIT 3;
(SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 2) UNION ALL
(SELECT id FROM t ORDER BY v <-> '[255,255,255]' LIMIT 2);

\qecho LIMIT, OFFSET
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 0) AS s;
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT NULL) AS s;
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 100000) AS s;
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]' OFFSET 4990) AS s;
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 2 OFFSET 2;
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 4;
SELECT count(*) FROM
    (SELECT id FROM t ORDER BY v <-> '[1,2,3]' FETCH FIRST 4 ROWS WITH TIES) AS s;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]') AS s;

\qecho NULL
PREPARE by_vector(vector) AS SELECT id FROM t ORDER BY v <-> $1;
SET plan_cache_mode = force_generic_plan;
CREATE TEMPORARY TABLE n AS EXECUTE by_vector(NULL);
SELECT count(*), count(DISTINCT id) FROM n;
DROP TABLE n;
RESET plan_cache_mode;

\qecho prepared statements
PREPARE nearest(vector, int) AS SELECT id FROM t ORDER BY v <-> $1 LIMIT $2;
EXPLAIN (COSTS OFF) EXECUTE nearest('[1,2,3]', 3);
EXECUTE nearest('[1,2,3]', 3);
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE nearest('[1,2,3]', 3);
EXECUTE nearest('[1,2,3]', 3);
EXECUTE nearest('[1,2,3]', 1);
EXECUTE nearest('[255,255,255]', 1);
SELECT error_of($$EXECUTE nearest('[1,2]', 1)$$);
-- the count behind LIMIT is known when the scan starts: as many rows as asked for, with no more
-- than one round
SET ivfpq.iterative_scan = off;
SET ivfpq.candidates = 0;
CREATE TEMPORARY TABLE n AS EXECUTE nearest('[1,2,3]', 1000);
SELECT count(*) FROM n;
DROP TABLE n;
RESET ivfpq.iterative_scan;
SET ivfpq.candidates = 2000;
RESET plan_cache_mode;
DO $$
DECLARE
    q vector := '[1,2,3]';
    nearest int;
BEGIN
    FOR i IN 1 .. 10 LOOP
        SELECT id INTO nearest FROM t ORDER BY v <-> q LIMIT 1;
        q := (SELECT v FROM t WHERE id = i);
        SELECT id INTO nearest FROM t ORDER BY v <-> q LIMIT 1;
        IF (SELECT v FROM t WHERE id = nearest) <> q THEN RAISE 'row % not found', i; END IF;
    END LOOP;
END
$$;

\qecho cursors
-- in pieces, each row once
SET ivfpq.probes = 1;
SET ivfpq.candidates = 1;
BEGIN;
CREATE TEMPORARY TABLE got (id int, part int) ON COMMIT DROP;
DO $$
DECLARE
    c refcursor;
    next_id int;
    parts int[] := ARRAY[1, 7, 100, 1, 1000, 3, 5000];
BEGIN
    OPEN c FOR SELECT id FROM t ORDER BY v <-> '[1,2,3]';
    FOR i IN 1 .. cardinality(parts) LOOP
        FOR j IN 1 .. parts[i] LOOP
            FETCH c INTO next_id;
            EXIT WHEN NOT FOUND;
            INSERT INTO got VALUES (next_id, i);
        END LOOP;
    END LOOP;
    CLOSE c;
END
$$;
SELECT count(*), count(DISTINCT id) FROM got;
COMMIT;
SET ivfpq.probes = 40;
SET ivfpq.candidates = 2000;
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM t ORDER BY v <-> '[1,2,3]';
FETCH 2 FROM c;
-- a cursor sees what was there when it was opened
DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 5);
INSERT INTO t SELECT -i, '[1,2,3]' FROM generate_series(1, 10) AS i;
UPDATE t SET v = '[1,2,3]' WHERE id BETWEEN 100 AND 200;
SAVEPOINT a;
FETCH 2 FROM c;
ROLLBACK TO a;
FETCH 2 FROM c;
MOVE FORWARD ALL IN c;
FETCH 1 FROM c;
FETCH BACKWARD 1 FROM c;
ROLLBACK;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 6;
FETCH 4 FROM c;
FETCH BACKWARD 2 FROM c;
FETCH LAST FROM c;
FETCH FIRST FROM c;
COMMIT;
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY v <-> '[1,2,3]';
FETCH 2 FROM h;
COMMIT;
DELETE FROM t WHERE id > 4000;
VACUUM t;
FETCH 2 FROM h;
MOVE FORWARD ALL IN h;
CLOSE h;
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(4001, 5000) AS i;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]') AS s;

\qecho subtransactions
BEGIN;
SAVEPOINT a;
INSERT INTO t VALUES (10001, '[1,2,3]'), (10002, '[1,2,3]');
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 2;
SAVEPOINT b;
DELETE FROM t WHERE id = 10001;
UPDATE t SET v = '[1,2,3]' WHERE id = 5;
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 2;
ROLLBACK TO b;
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 2;
ROLLBACK TO a;
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 1;
RELEASE a;
COMMIT;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3]') AS s;

\qecho locking, changing what was found
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 2 FOR UPDATE;
WITH near AS (SELECT id FROM t ORDER BY v <-> '[200,200,200]' LIMIT 5)
UPDATE t SET v = '[200,200,200]' FROM near WHERE t.id = near.id;
SELECT count(*) FROM (SELECT v FROM t ORDER BY v <-> '[200,200,200]' LIMIT 7) AS s
WHERE v = '[200,200,200]';
DELETE FROM t USING (SELECT id FROM t ORDER BY v <-> '[200,200,200]' LIMIT 3) AS near
WHERE t.id = near.id;
SELECT count(*) FROM (SELECT v FROM t ORDER BY v <-> '[200,200,200]' LIMIT 7) AS s
WHERE v = '[200,200,200]';

\qecho compiled expressions
SET jit = on;
SET jit_above_cost = 0;
SET jit_inline_above_cost = 0;
SET jit_optimize_above_cost = 0;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$, 'id % 3 = 1 AND v <-> ''[9,9,9]'' > 50');
RESET jit;
RESET jit_above_cost;
RESET jit_inline_above_cost;
RESET jit_optimize_above_cost;

\qecho isolation levels
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 1;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT id FROM t ORDER BY v <-> '[1,2,3]' LIMIT 1;
COMMIT;

\qecho an index scan counts as one
SELECT flush_statistics();
SELECT idx_scan > 50 FROM pg_stat_user_indexes WHERE indexrelname = 't_v';
SELECT * FROM ivfpq_check('t_v', true);
DROP TABLE t;
