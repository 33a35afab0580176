-- Refinement codes: the option, what the index says of them, and answers by them.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE TABLE t (id int, a int, v vector(60));
INSERT INTO t SELECT i, i % 10, vec(i, 60) FROM generate_series(1, 5000) AS i;

\qecho the option
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 8);
SELECT refine, refinement_bytes FROM ivfpq_info('t_v');
ALTER INDEX t_v SET (refine = int8);
SELECT refine FROM ivfpq_info('t_v');
REINDEX INDEX t_v;
SELECT refine, refinement_bytes > 5000 * (60 + 16), refinement_bytes < 5000 * (60 + 16) * 2,
       8192 + model_bytes + list_bytes + refinement_bytes + pending_bytes + free_bytes = bytes FROM ivfpq_info('t_v');
ALTER INDEX t_v RESET (refine);
ALTER INDEX t_v SET (refine = none);
SELECT error_of('ALTER INDEX t_v SET (refine = half)');
DROP INDEX t_v;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 8, refine = auto);
SELECT refine FROM ivfpq_info('t_v');
DROP INDEX t_v;
SELECT error_of('CREATE INDEX ON t USING ivfpq (v) WITH (refine = int8, quantizer = opq, dims = 30)');
SELECT error_of('CREATE INDEX ON t USING ivfpq (v) WITH (refine = int8, quantizer = opq)');
CREATE TABLE wide (id int, v vector(8001));
SELECT error_of('CREATE INDEX ON wide USING ivfpq (v) WITH (refine = int8)');
CREATE INDEX wide_v ON wide USING ivfpq (v) WITH (refine = auto);
SELECT refine FROM ivfpq_info('wide_v');
DROP TABLE wide;

\qecho long vectors have them by default, and short codes of four bits
CREATE TABLE long (id int, v vector(501), h halfvec(501));
INSERT INTO long SELECT i, vec(i, 501), vec(i, 501)::halfvec(501) FROM generate_series(1, 1200) AS i;
CREATE INDEX long_v ON long USING ivfpq (v);
SELECT refine, bits, m FROM ivfpq_info('long_v');
SELECT * FROM ivfpq_check('long_v', true);
ALTER INDEX long_v SET (m = 60);
REINDEX INDEX long_v;
SELECT refine, bits, m FROM ivfpq_info('long_v');
ALTER INDEX long_v SET (refine = none);
ALTER INDEX long_v RESET (m);
REINDEX INDEX long_v;
SELECT refine, bits, m FROM ivfpq_info('long_v');
ALTER INDEX long_v RESET (refine);
CREATE INDEX long_h ON long USING ivfpq (h);
SELECT refine, bits, m FROM ivfpq_info('long_h');
DROP TABLE long;

-- The distances of the k nearest, by the index and by a sequential scan, for several queries; null: the same.
CREATE FUNCTION differs(operator text, k int, condition text DEFAULT 'true') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT array_agg(d) FROM (SELECT v %1$s $1 AS d FROM t WHERE %2$s
                          ORDER BY v %1$s $1 LIMIT %3$s) AS s', operator, condition, coalesce(k::text, 'ALL'));
    by_index float8[];
    exact float8[];
BEGIN
    FOR q IN 1 .. 5 LOOP
        PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
                set_config('enable_indexscan', 'on', true);
        EXECUTE query INTO by_index USING vec(-q, 60);
        PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
                set_config('enable_indexscan', 'off', true);
        EXECUTE query INTO exact USING vec(-q, 60);
        IF by_index IS DISTINCT FROM exact THEN
            RETURN format('query %s: %s instead of %s', q, by_index[1:3], exact[1:3]);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE FUNCTION all_differ(operator text) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT d FROM unnest('{1,2,10,100,1000,NULL}'::int[]) AS k, unnest('{true,a = 3,id % 7 = 1}'::text[]) AS c,
                  differs(operator, k, c) AS d WHERE d IS NOT NULL
$$;

\qecho all lists, all candidates: what comes out is what a sort of the table gives
SET ivfpq.probes = 8;
SET ivfpq.candidates = 10000;
CREATE INDEX t_v ON t USING ivfpq (v, a) WITH (lists = 8, refine = int8);
SELECT * FROM all_differ('<->');
DROP INDEX t_v;
CREATE INDEX t_v ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 8, refine = int8, bits = 4);
SELECT * FROM all_differ('<=>');
DROP INDEX t_v;
CREATE INDEX t_v ON t USING ivfpq (v vector_ip_ops, a) WITH (lists = 8, refine = int8, m = 5);
SELECT * FROM all_differ('<#>');
DROP INDEX t_v;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 8, refine = int8);

\qecho few rows are visited
SET enable_seqscan = off;
SET ivfpq.executor = cpu;
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> vec(-1, 60) LIMIT 10) AS s;
SELECT candidates, ranked_rows BETWEEN 10 AND 40 FROM ivfpq_last_scan();
SET pgwarp.debug_refine = off;
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> vec(-1, 60) LIMIT 10) AS s;
SELECT candidates, ranked_rows FROM ivfpq_last_scan();
RESET pgwarp.debug_refine;

\qecho a cursor that goes on beyond what was expected: in order, each row once
SET ivfpq.candidates = 300;
SET ivfpq.probes = 2;
SET cursor_tuple_fraction = 0.0001;
BEGIN;
DECLARE c CURSOR FOR SELECT id, v <-> vec(-2, 60) AS d FROM t ORDER BY v <-> vec(-2, 60);
CREATE TEMP TABLE fetched (n serial, id int, d float8);
CREATE FUNCTION fetch_some(rows int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c refcursor := 'c';
    row record;
BEGIN
    FOR i IN 1 .. rows LOOP
        FETCH c INTO row;
        EXIT WHEN NOT FOUND;
        INSERT INTO fetched (id, d) VALUES (row.id, row.d);
    END LOOP;
END
$$;
SELECT fetch_some(rows) FROM unnest('{1,1,5,20,73}'::int[]) AS rows;
SELECT count(*), count(DISTINCT id), bool_and(d >= before) FROM
    (SELECT id, d, lag(d) OVER (ORDER BY n) AS before FROM fetched) AS s;
SELECT fetch_some(10000);
SELECT count(*), count(DISTINCT id) FROM fetched;
ROLLBACK;

-- a scan of all rows visits each once
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> vec(-2, 60)) AS s;
SELECT ranked_rows FROM ivfpq_last_scan();

\qecho strict order
SET ivfpq.iterative_scan = strict_order;
SELECT count(*) > 100, bool_and(d >= before) FROM
    (SELECT d, lag(d) OVER () AS before FROM
        (SELECT v <-> vec(-3, 60) AS d FROM t ORDER BY v <-> vec(-3, 60) LIMIT 400) AS s) AS w;
RESET ivfpq.iterative_scan;

\qecho one round only: all its candidates, in order
SET ivfpq.iterative_scan = off;
SELECT count(*), bool_and(d >= before) FROM
    (SELECT d, lag(d) OVER () AS before FROM
        (SELECT v <-> vec(-3, 60) AS d FROM t ORDER BY v <-> vec(-3, 60)) AS s) AS w;
RESET ivfpq.iterative_scan;

\qecho a bound on the distance, and an exact search
SELECT count(*) = (SELECT count(*) FROM t WHERE v <-> vec(-1, 60) < 700) FROM
    (SELECT id FROM t WHERE v <-> vec(-1, 60) < 700 ORDER BY v <-> vec(-1, 60)) AS s;
RESET ivfpq.probes;
RESET ivfpq.candidates;
SET ivfpq.target_recall = 1;
SELECT * FROM all_differ('<->');
RESET ivfpq.target_recall;

\qecho rows that change
SET ivfpq.probes = 8;
SET ivfpq.candidates = 10000;
DELETE FROM t WHERE id % 3 = 0;
UPDATE t SET v = vec(id, 60, 7) WHERE id % 5 = 0;
SELECT * FROM all_differ('<->');
SELECT * FROM ivfpq_check('t_v', true);
DELETE FROM t WHERE id < 3000;
VACUUM (INDEX_CLEANUP ON) t;
INSERT INTO t SELECT i, i % 10, vec(i, 60) FROM generate_series(10000, 12000) AS i;
SELECT * FROM all_differ('<->');
SELECT * FROM ivfpq_check('t_v', true);
SELECT 8192 + model_bytes + list_bytes + refinement_bytes + pending_bytes + free_bytes = bytes FROM ivfpq_info('t_v');
DELETE FROM t;
VACUUM (INDEX_CLEANUP ON) t;
SELECT rows, list_bytes, refinement_bytes FROM ivfpq_info('t_v');
SELECT * FROM ivfpq_check('t_v', true);

\qecho vectors that a code cannot stand for, and zero vectors
INSERT INTO t SELECT i, i % 10, CASE i % 3 WHEN 0 THEN array_fill(3e38::float4, ARRAY[60])::vector
    WHEN 1 THEN array_fill(0, ARRAY[60])::vector ELSE array_fill(1e-45::float4, ARRAY[60])::vector END
    FROM generate_series(1, 300) AS i;
INSERT INTO t SELECT i, i % 10, vec(i, 60) FROM generate_series(1000, 3000) AS i;
SELECT * FROM all_differ('<->');
SELECT * FROM ivfpq_check('t_v', true);
REINDEX INDEX t_v;
SELECT * FROM all_differ('<->');
SELECT * FROM ivfpq_check('t_v', true);
DROP INDEX t_v;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 8, refine = int8, bits = 4);
SELECT * FROM all_differ('<->');
SELECT * FROM ivfpq_check('t_v', true);

\qecho tiny vectors: squares of their errors are zero
CREATE TABLE tiny (id int, v vector(60));
INSERT INTO tiny SELECT i, (SELECT array_agg(x * 1e-23) FROM unnest(vec(i, 60)::real[]) AS x)::vector
    FROM generate_series(1, 1200) AS i;
CREATE INDEX tiny_v ON tiny USING ivfpq (v) WITH (lists = 4, refine = int8);
SELECT * FROM ivfpq_check('tiny_v', true);

\qecho codes of four bits, far from the origin: rounded tables would not tell which rows are near
CREATE TABLE far (id int, v vector(60));
INSERT INTO far SELECT i, (SELECT array_agg(x + 10000) FROM unnest(vec(i, 60)::real[]) AS x)::vector
    FROM generate_series(1, 3000) AS i;
CREATE INDEX far_v ON far USING ivfpq (v) WITH (lists = 4, refine = int8, bits = 4);
SET ivfpq.probes = 4;
SET ivfpq.candidates = 100;
CREATE FUNCTION nearest_far(q int) RETURNS int[] LANGUAGE sql AS $$
    SELECT array_agg(id) FROM (SELECT id FROM far ORDER BY v <->
        (SELECT array_agg(x + 10000) FROM unnest(vec(-q, 60)::real[]) AS x)::vector LIMIT 10) AS s
$$;
SET enable_seqscan = off;
CREATE TABLE by_refinement AS SELECT q, nearest_far(q) AS ids FROM generate_series(1, 10) AS q;
SET pgwarp.debug_refine = off;
SELECT count(*), count(*) FILTER (WHERE ids = nearest_far(q)) AS same FROM by_refinement;
RESET pgwarp.debug_refine;
DROP TABLE tiny, far, by_refinement;
DROP FUNCTION nearest_far;
DROP TABLE t;
DROP FUNCTION all_differ, differs;
