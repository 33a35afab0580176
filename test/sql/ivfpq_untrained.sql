-- An index on too little to learn from: right answers without training, and training by itself.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;

CREATE TABLE t (id int, v vector(4)) WITH (autovacuum_enabled = off);
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 25);
CREATE INDEX t_ip ON t USING ivfpq (v vector_ip_ops);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (m = 2);
CREATE INDEX t_few ON t USING ivfpq (v) WHERE id < 5000;
CREATE INDEX t_expression ON t USING ivfpq ((subvector(v, 1, 2)::vector(2)));
INSERT INTO t SELECT i, vec(i, 4) FROM generate_series(1, 9000) AS i;

\qecho untrained: exact, whatever the settings
SELECT trained, rows, pending_rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4]'$$);
SELECT * FROM compare_scan('t', $$v <#> '[1,2,3,4]'$$);
SELECT * FROM compare_scan('t', $$v <=> '[1,2,3,4]'$$);
SET ivfpq.probes = 1;
SET ivfpq.candidates = 1;
SET work_mem = '64kB';
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4]'$$);
RESET work_mem;
SELECT ivfpq_recall('t_v', 10, 10);
SELECT count(*) FROM ivfpq_recall_curve('t_v');
SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;

\qecho VACUUM takes the dead out of it, and leaves it untrained
DELETE FROM t WHERE id % 2 = 0;
VACUUM t;
SELECT trained, rows, pending_rows, free_bytes > 0 FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4]'$$);
SELECT * FROM ivfpq_check('t_v', true);
DELETE FROM t;
VACUUM t;
SELECT rows, pending_bytes FROM ivfpq_info('t_v');
SELECT pg_relation_size('t_v') AS size \gset
INSERT INTO t SELECT i, vec(i, 4) FROM generate_series(1, 9000) AS i;
SELECT pg_relation_size('t_v') = :size;

\qecho 10000 rows: it trains itself in VACUUM, as it was asked to
INSERT INTO t SELECT i, vec(i, 4) FROM generate_series(9001, 10000) AS i;
INSERT INTO t SELECT i, NULL FROM generate_series(10001, 12000) AS i;
VACUUM t;
SELECT c.relname, i.trained, i.rows, i.pending_rows, i.pending_bytes, i.rows_at_build,
       CASE WHEN c.relname = 't_v' THEN i.lists END AS lists,
       CASE WHEN c.relname = 't_cosine' THEN i.m END AS m
FROM pg_class AS c, ivfpq_info(c.oid) AS i WHERE c.relname LIKE 't\_%' ORDER BY c.relname;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3,4]'$$, 'v IS NOT NULL');
SELECT * FROM compare_scan('t', $$v <#> '[1,2,3,4]'$$, 'v IS NOT NULL');
SELECT * FROM compare_scan('t', $$v <=> '[1,2,3,4]'$$, 'v IS NOT NULL');
SELECT * FROM compare_scan('t', $$subvector(v, 1, 2)::vector(2) <-> '[1,2]'$$, 'v IS NOT NULL');
SELECT c.relname, p.* FROM pg_class AS c, ivfpq_check(c.oid, true) AS p WHERE c.relname LIKE 't\_%';
-- the pages the pending list had are free, and the recall curve is there
SELECT model_bytes + list_bytes + free_bytes + 8192 = bytes, free_bytes > 0 FROM ivfpq_info('t_v');
SELECT count(*) > 0, max(recall) > 0.9 FROM ivfpq_recall_curve('t_v');
RESET ivfpq.probes;
RESET ivfpq.candidates;
SELECT ivfpq_recall('t_v', 100, 10) > 0.85;
-- once trained, it goes on like any other
INSERT INTO t SELECT i, vec(i, 4) FROM generate_series(20001, 20500) AS i;
SELECT rows, pending_rows FROM ivfpq_info('t_v');
DELETE FROM t WHERE id % 4 = 0;
VACUUM t;
VACUUM t;
SELECT rows, pending_rows, lists FROM ivfpq_info('t_v');
SELECT * FROM ivfpq_check('t_v', true);

\qecho exactly enough rows, of several sizes
CREATE FUNCTION trained_with(rows int, dims int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE e_%s_%s (v vector(%2$s)) WITH (autovacuum_enabled = off)',
                   rows, dims);
    EXECUTE format('CREATE INDEX ON e_%s_%s USING ivfpq (v) WITH (lists = 4)', rows, dims);
    EXECUTE format('INSERT INTO e_%s_%s SELECT vec(i, %2$s) FROM generate_series(1, %1$s) AS i',
                   rows, dims);
    RETURN NULL;
END
$$;
SET client_min_messages = warning;
SELECT trained_with(10000, dims), trained_with(9999, dims) FROM unnest(ARRAY[2, 64]) AS dims;
VACUUM e_10000_2, e_9999_2, e_10000_64, e_9999_64;
SELECT relname, trained FROM pg_class AS c, ivfpq_info(c.oid) WHERE relname ~ '^e_.*_v_idx'
ORDER BY relname;
DROP TABLE t, e_10000_2, e_9999_2, e_10000_64, e_9999_64;
DROP FUNCTION trained_with;

\qecho in a VACUUM with workers, whatever the transactions are by default; an expression waits
CREATE FUNCTION parse(t text) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN t::public.vector(2);
EXCEPTION WHEN others THEN
    RETURN translate(t, '()', '[]')::public.vector(2);
END
$$;
CREATE TABLE t (id int PRIMARY KEY, v vector(2), t text) WITH (autovacuum_enabled = off);
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 4);
CREATE INDEX t_some ON t USING ivfpq (v) WITH (lists = 4) WHERE parse(t) IS NOT NULL;
CREATE INDEX t_parse ON t USING ivfpq ((parse(t)::vector(2))) WITH (lists = 4);
INSERT INTO t SELECT i, ARRAY[i, i % 7]::vector, format('(%s,%s)', i, i % 7)
FROM generate_series(1, 10000) AS i;
SET min_parallel_index_scan_size = 0;
SET default_transaction_isolation = 'repeatable read';
VACUUM (PARALLEL 2) t;
SELECT relname, trained, pending_rows FROM pg_class AS c, ivfpq_info(c.oid)
WHERE relname IN ('t_v', 't_some', 't_parse') ORDER BY relname;
VACUUM (PARALLEL 0) t;
SELECT trained, pending_rows FROM ivfpq_info('t_parse');
SELECT scan, same_rows, each_once
FROM compare_scan('t', $$parse(t)::vector(2) <-> '[1,2]'$$);
SELECT scan, same_rows, each_once FROM compare_scan('t', $$v <-> '[1,2]'$$);
SELECT c.relname, p.* FROM pg_class AS c, ivfpq_check(c.oid, true) AS p
WHERE relname IN ('t_v', 't_some', 't_parse');
RESET min_parallel_index_scan_size;
RESET default_transaction_isolation;
DROP TABLE t;
DROP FUNCTION parse;

\qecho an expression that fails leaves it untrained, and VACUUM goes on
CREATE TABLE failing (id int, v vector(4)) WITH (autovacuum_enabled = off);
CREATE FUNCTION fails_at_will(v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_setting('test.fails', true) = 'yes' THEN
        RAISE EXCEPTION 'this fails at will';
    END IF;
    RETURN v;
END
$$;
CREATE INDEX failing_v ON failing USING ivfpq ((fails_at_will(v)::vector(4))) WITH (lists = 10);
CREATE INDEX failing_id ON failing (id);
INSERT INTO failing SELECT i, vec(i, 4) FROM generate_series(1, 11000) AS i;
DELETE FROM failing WHERE id % 100 = 0;
SET test.fails = 'yes';
\set VERBOSITY default
\set SHOW_CONTEXT never
VACUUM failing;
VACUUM failing;
\set VERBOSITY terse
SELECT trained, rows, pending_rows, pending_reason, pending_since BETWEEN now() - interval '1 hour' AND now() AS recent
FROM ivfpq_info('failing_v');
-- 14 estimates the table's from one page.
SELECT relname, round(reltuples::numeric, -2) FROM pg_class WHERE relname LIKE 'failing%' ORDER BY relname;
RESET test.fails;
VACUUM failing;
SELECT trained, rows, pending_rows, pending_reason IS NULL AND pending_since IS NULL AS done FROM ivfpq_info('failing_v');
SET ivfpq.target_recall = 1;
SELECT * FROM compare_scan('failing', $$fails_at_will(v)::vector(4) <-> '[1,2,3,4]'$$);
SELECT * FROM ivfpq_check('failing_v', true);
