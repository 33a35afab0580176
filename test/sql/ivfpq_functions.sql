-- ivfpq_info, ivfpq_recall_curve, ivfpq_check, ivfpq_recall: what they tell, and whom.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE TABLE t (id int PRIMARY KEY, v vector(3));
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(1, 3000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 30, m = 2);

\qecho info
SELECT trained, dims, metric, lists, m, bits, rows, pending_rows, pages * 8192 = bytes,
       bytes = pg_relation_size('t_v'),
       8192 + model_bytes + list_bytes + pending_bytes + free_bytes = bytes,
       training_rows, rows_at_build, target_recall
FROM ivfpq_info('t_v');
SELECT empty_lists BETWEEN 0 AND 29, shortest_list <= median_list, median_list <= longest_list,
       longest_list BETWEEN 100 AND 3000, quantization_error BETWEEN 0 AND 1,
       probes BETWEEN 1 AND 30, candidates >= 10
FROM ivfpq_info('t_v');
CREATE INDEX t_attributes ON t USING ivfpq (v, id, (id % 7), (id::text || 'x'));
SELECT relname, attributes FROM pg_class AS c, ivfpq_info(c.oid) WHERE relname IN ('t_v', 't_attributes') ORDER BY 1;
SELECT * FROM ivfpq_check('t_attributes', true);
DROP INDEX t_attributes;
SET ivfpq.probes = 7;
SET ivfpq.candidates = 77;
SET ivfpq.target_recall = 0.5;
SELECT target_recall, probes, candidates FROM ivfpq_info('t_v');
RESET ivfpq.probes;
RESET ivfpq.candidates;
RESET ivfpq.target_recall;

\qecho recall curve
SELECT DISTINCT k FROM ivfpq_recall_curve('t_v') ORDER BY k;
SELECT bool_and(recall BETWEEN 0 AND 1), bool_and(probes BETWEEN 1 AND 30),
       bool_and(scanned BETWEEN 0 AND 3000), bool_and(candidates >= k)
FROM ivfpq_recall_curve('t_v');
-- more effort finds no less
SELECT bool_and(recall >= by_probes), bool_and(recall >= by_candidates) FROM
    (SELECT recall, lag(recall) OVER (PARTITION BY k, candidates ORDER BY probes) AS by_probes,
            lag(recall) OVER (PARTITION BY k, probes ORDER BY candidates) AS by_candidates
     FROM ivfpq_recall_curve('t_v')) AS c;

\qecho check
SELECT * FROM ivfpq_check('t_v');
SELECT * FROM ivfpq_check('t_v', heap_all_indexed => true);
SELECT * FROM ivfpq_check(NULL, true);
SELECT * FROM ivfpq_check('t_v', NULL);

\qecho recall
SELECT ivfpq_recall('t_v') BETWEEN 0.8 AND 1, ivfpq_recall('t_v', 20) BETWEEN 0.8 AND 1,
       ivfpq_recall('t_v', k => 100) BETWEEN 0.8 AND 1;
SET ivfpq.target_recall = 1;
SELECT ivfpq_recall('t_v', 10, 10), ivfpq_recall('t_v', 100000, 1), ivfpq_recall('t_v', 1, 10000);
RESET ivfpq.target_recall;
-- A row that is asked for takes no candidate's place: with twelve of them, codes that tell little, and
-- every row asked, the recall is that of thirteen by a query that finds its own row as well.
CREATE TABLE r AS SELECT i AS id, vec(i, 8)::vector(8) AS v FROM generate_series(1, 1200) AS i;
CREATE TEMP TABLE far AS SELECT r.id, max(n.d) AS far FROM r CROSS JOIN LATERAL
    (SELECT o.v <-> r.v AS d FROM r AS o ORDER BY o.v <-> r.v LIMIT 11) AS n GROUP BY r.id;
CREATE VIEW recall AS SELECT count(*) FILTER (WHERE n.d <= far AND n.id <> r.id) / 12000.0::float AS recall
    FROM r JOIN far USING (id) CROSS JOIN LATERAL (SELECT o.id, o.v <-> r.v AS d FROM r AS o ORDER BY o.v <-> r.v LIMIT 11) AS n;
SELECT recall AS exact FROM recall \gset
CREATE INDEX r_v ON r USING ivfpq (v) WITH (lists = 2, m = 1);
SET enable_seqscan = off;
SET ivfpq.probes = 2;
SET ivfpq.candidates = 13;
SELECT recall AS thirteen FROM recall \gset
SET ivfpq.candidates = 12;
SELECT recall AS twelve, ivfpq_recall('r_v', 1200, 10) AS told FROM recall \gset
SELECT :exact, :twelve < :thirteen, :told = :thirteen, :told BETWEEN 0.1 AND 0.9;
RESET enable_seqscan;
RESET ivfpq.probes;
RESET ivfpq.candidates;
DROP VIEW recall;
DROP TABLE far;
DROP TABLE r;
SELECT error_of(format($$SELECT ivfpq_recall('t_v', %s)$$, a))
FROM unnest(ARRAY['0', '-1', '100001', '10, 0', '10, -5', '10, 10001']) AS a;
SELECT ivfpq_recall(NULL), ivfpq_recall('t_v', NULL), ivfpq_recall('t_v', 1, NULL);
-- more than there is memory for
SELECT error_of($$SELECT ivfpq_recall('t_v', 100000, 10000)$$);
SET maintenance_work_mem = '1MB';
SELECT ivfpq_recall('t_v', 10, 10) BETWEEN 0.8 AND 1;
RESET maintenance_work_mem;
-- rows without a direction in single precision; one, as a query, has no neighbors
CREATE TABLE odd (v vector(2));
INSERT INTO odd SELECT ARRAY[cos(i), sin(i)]::real[]::vector FROM generate_series(1, 50) AS i;
INSERT INTO odd VALUES ('[1e-23,1e-23]'), ('[1e20,1e20]'), ('[0,0]');
CREATE INDEX odd_v ON odd USING ivfpq (v vector_cosine_ops);
SELECT round(ivfpq_recall('odd_v', 53, 40)::numeric, 4);
DROP TABLE odd;
-- nothing to measure
CREATE TABLE e (v vector(3));
CREATE INDEX e_v ON e USING ivfpq (v);
SELECT ivfpq_recall('e_v');
INSERT INTO e VALUES ('[1,2,3]');
SELECT ivfpq_recall('e_v');
INSERT INTO e VALUES ('[1,2,4]'), (NULL);
SELECT ivfpq_recall('e_v');

\qecho what is not an ivfpq index
CREATE VIEW w AS SELECT 1;
CREATE SEQUENCE s;
SELECT f, r, error_of(format('SELECT %s(%L::regclass)', f, r))
FROM unnest(ARRAY['ivfpq_info', 'ivfpq_recall_curve', 'ivfpq_check', 'ivfpq_recall']) AS f,
     unnest(ARRAY['t', 't_pkey', 'w', 's', 'pg_class_oid_index']) AS r;
SELECT f, error_of(format('SELECT %s(1)', f))
FROM unnest(ARRAY['ivfpq_info', 'ivfpq_recall_curve', 'ivfpq_check', 'ivfpq_recall']) AS f;

\qecho an index that is not valid
CREATE TABLE bad (v vector);
INSERT INTO bad VALUES ('[1,2]'), ('[1,2,3]');
CREATE INDEX CONCURRENTLY bad_v ON bad USING ivfpq ((v::vector(3)));
SELECT f, error_of(format('SELECT %s(%L)', f, 'bad_v'))
FROM unnest(ARRAY['ivfpq_info', 'ivfpq_recall_curve', 'ivfpq_check', 'ivfpq_recall']) AS f;
DELETE FROM bad WHERE v = '[1,2]';
REINDEX INDEX CONCURRENTLY bad_v;
SELECT trained FROM ivfpq_info('bad_v');

\qecho privileges
CREATE ROLE regress_ivfpq_reader;
SET ROLE regress_ivfpq_reader;
SELECT f, error_of(format('SELECT %s(%L)', f, 't_v'))
FROM unnest(ARRAY['ivfpq_info', 'ivfpq_recall_curve', 'ivfpq_check', 'ivfpq_recall']) AS f;
RESET ROLE;
GRANT SELECT ON t TO regress_ivfpq_reader;
SET ROLE regress_ivfpq_reader;
SELECT f, error_of(format('SELECT %s(%L)', f, 't_v'))
FROM unnest(ARRAY['ivfpq_info', 'ivfpq_recall_curve', 'ivfpq_check', 'ivfpq_recall']) AS f;
RESET ROLE;

\qecho row security
-- a policy hides all rows: nothing is told of them, but to those it does not apply to
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
SET ROLE regress_ivfpq_reader;
SELECT count(*) FROM t;
SELECT f, error_of(format('SELECT %s(%L)', f, 't_v'))
FROM unnest(ARRAY['ivfpq_info', 'ivfpq_recall_curve', 'ivfpq_recall']) AS f;
RESET ROLE;
SELECT rows FROM ivfpq_info('t_v');

\qecho code of an expression has the rights of the owner, and leaves the session as it was
CREATE SCHEMA regress_ivfpq_schema AUTHORIZATION regress_ivfpq_reader;
SET ROLE regress_ivfpq_reader;
SET search_path = regress_ivfpq_schema, public;
CREATE FUNCTION spy(v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_user <> 'regress_ivfpq_reader' THEN RAISE 'this is %', current_user; END IF;
    PERFORM set_config('ivfpq.probes', '1', false);
    RETURN v;
END
$$;
CREATE TABLE trap (v vector(2));
CREATE INDEX trap_v ON trap USING ivfpq ((regress_ivfpq_schema.spy(v)::vector(2)));
INSERT INTO trap SELECT ARRAY[i, 1]::vector FROM generate_series(1, 10) AS i;
RESET ROLE;
SET search_path = public, ivfpq_test;
RESET ivfpq.probes;
SELECT ivfpq_recall('regress_ivfpq_schema.trap_v', 10, 3);
SELECT * FROM ivfpq_check('regress_ivfpq_schema.trap_v', true);
SELECT current_user = session_user, current_setting('ivfpq.probes');
-- an error restores as much
CREATE OR REPLACE FUNCTION regress_ivfpq_schema.spy(v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN RAISE 'no'; END $$;
SELECT error_of($$SELECT ivfpq_recall('regress_ivfpq_schema.trap_v', 10, 3)$$);
SELECT current_user = session_user;
DROP SCHEMA regress_ivfpq_schema CASCADE;
DROP TABLE t, e, bad;
DROP VIEW w;
DROP SEQUENCE s;
DROP ROLE regress_ivfpq_reader;
