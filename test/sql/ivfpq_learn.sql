-- ivfpq_learn: the recall curve of given queries; what it tells, whom, and when it refuses.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE TABLE t (id int PRIMARY KEY, v vector(6));
INSERT INTO t SELECT i, vec(i, 6) FROM generate_series(1, 6000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 60, m = 3);
CREATE TABLE q (id int, v vector(6), other vector(5), word text);
-- midpoints: near the middle, where lists meet
INSERT INTO q SELECT i, (SELECT avg(x) FROM (VALUES (vec(i, 6, 7)), (vec(i, 6, 8))) AS s (x)), vec(i, 5), 'x' FROM generate_series(1, 400) AS i;
INSERT INTO q (id) SELECT i FROM generate_series(401, 410) AS i;

\qecho before
SELECT curve_source, curve_queries, curve_at BETWEEN now() - interval '1 hour' AND clock_timestamp(), by_query,
       threshold > 0, expected_recall BETWEEN 0.95 AND 1, expected_within BETWEEN 0 AND 0.05,
       learned_correction, learned_recall, learned_searches, learned_at
FROM ivfpq_info('t_v');
SELECT DISTINCT k, queries, threshold FROM ivfpq_recall_curve('t_v') ORDER BY k;
SELECT k, min(queries), max(queries), bool_and(threshold > 0), bool_and(probes BETWEEN 1 AND 60), max(recall) > 0.99
FROM ivfpq_recall_curve('t_v', by_query => true) GROUP BY k ORDER BY k;
-- more effort finds no less; with few candidates, those of more lists may displace each other
SELECT bool_and(recall >= by_threshold OR candidates < most), bool_and(recall >= by_candidates) FROM
    (SELECT recall, candidates, max(candidates) OVER (PARTITION BY k) AS most,
            lag(recall) OVER (PARTITION BY k, candidates ORDER BY threshold) AS by_threshold,
            lag(recall) OVER (PARTITION BY k, threshold ORDER BY candidates) AS by_candidates
     FROM ivfpq_recall_curve('t_v', true)) AS c;

\qecho learning
CREATE TABLE before AS SELECT k, probes, candidates, recall FROM ivfpq_recall_curve('t_v');
CREATE TEMP TABLE told AS SELECT * FROM ivfpq_learn('t_v', 'q', 'v');
SELECT k, used, old_expected BETWEEN 0.9 AND 1, old_recall BETWEEN 0 AND 1, old_probes BETWEEN 1 AND 60,
       old_candidates >= k, new_recall BETWEEN 0.95 AND 1, new_within BETWEEN 0 AND 0.05,
       new_probes BETWEEN 1 AND 60, new_candidates >= k
FROM told;
-- such queries need more; with more neighbors, they had most of the lists before
SELECT k, old_recall < old_expected, new_probes >= old_probes, new_recall > old_recall FROM told WHERE k <= 10;
SELECT count(*) > 0 FROM before JOIN ivfpq_recall_curve('t_v') AS c USING (k, probes, candidates) WHERE c.recall < before.recall;
SELECT curve_source, curve_queries, curve_at BETWEEN now() - interval '1 hour' AND clock_timestamp(),
       probes = (SELECT new_probes FROM told WHERE k = 10), candidates = (SELECT new_candidates FROM told WHERE k = 10),
       expected_recall = (SELECT new_recall FROM told WHERE k = 10)
FROM ivfpq_info('t_v');
SELECT DISTINCT k, queries FROM ivfpq_recall_curve('t_v') ORDER BY k;
SELECT * FROM ivfpq_check('t_v', heap_all_indexed => true);
-- again, with the same queries: what was expected is what there is
SELECT k, used FROM ivfpq_learn('t_v', 'q', 'v')
WHERE old_expected <> old_recall OR old_recall <> new_recall OR old_probes <> new_probes;
-- a sample of them
SELECT k, used FROM ivfpq_learn('t_v', 'q', 'v', queries => 100);
SELECT curve_queries FROM ivfpq_info('t_v');
-- memory for few queries with 1,000 neighbors
SET maintenance_work_mem = '4MB';
SELECT k, used < 400 FROM ivfpq_learn('t_v', 'q', 'v', 400);
RESET maintenance_work_mem;
-- rows of the table are queries, too; each finds itself
SELECT k, used, new_recall >= 0.95 FROM ivfpq_learn('t_v', 't', 'v', 300);
-- of a view
CREATE VIEW half AS SELECT id, v FROM q WHERE id <= 200;
SELECT k, used FROM ivfpq_learn('t_v', 'half', 'v') WHERE k = 10;
-- new queries after a new build
REINDEX INDEX t_v;
SELECT curve_source FROM ivfpq_info('t_v');
-- nothing, as for any strict function
SELECT * FROM ivfpq_learn(NULL, 'q', 'v');
SELECT * FROM ivfpq_learn('t_v', 'q', 'v', NULL);

\qecho few rows; inner products
CREATE TABLE few AS SELECT i AS id, vec(i, 6)::vector(6) AS v FROM generate_series(1, 1200) AS i;
CREATE INDEX few_v ON few USING ivfpq (v) WITH (lists = 10);
CREATE INDEX few_ip ON few USING ivfpq (v vector_ip_ops) WITH (lists = 10);
DELETE FROM few WHERE id > 50;
SELECT k, used, new_recall > 0.95 FROM ivfpq_learn('few_v', 'q', 'v');
SELECT by_query, threshold > 0 FROM ivfpq_info('few_ip');
SELECT count(*) > 0 FROM ivfpq_recall_curve('few_ip', by_query => true);
SELECT k, used, new_recall > 0.9 FROM ivfpq_learn('few_ip', 'q', 'v');
DELETE FROM few;
SELECT error_of($$SELECT ivfpq_learn('few_v', 'q', 'v')$$);
SELECT curve_source FROM ivfpq_info('few_v');

\qecho directions: rows and queries without one do not count
CREATE TABLE c AS SELECT i AS id, vec(i, 6)::vector(6) AS v FROM generate_series(1, 2000) AS i;
INSERT INTO c VALUES (0, '[0,0,0,0,0,0]');
CREATE INDEX c_v ON c USING ivfpq (v vector_cosine_ops) WITH (lists = 20);
CREATE TABLE cq AS SELECT CASE WHEN i % 3 = 0 THEN '[0,0,0,0,0,0]' ELSE vec(i, 6, 3) END::vector(6) AS v FROM generate_series(1, 99) AS i;
SELECT k, used FROM ivfpq_learn('c_v', 'cq', 'v') WHERE k = 10;
DELETE FROM cq WHERE ctid IN (SELECT ctid FROM cq WHERE v <> '[0,0,0,0,0,0]' LIMIT 3);
SELECT error_of($$SELECT ivfpq_learn('c_v', 'cq', 'v')$$);

\qecho errors
SELECT a, error_of(format($$SELECT ivfpq_learn(%s)$$, a)) FROM unnest(ARRAY[
    $$'t_v', 'q', 'v', 63$$, $$'t_v', 'q', 'v', 100001$$, $$'t_v', 'q', 'v', -1$$,
    $$'t', 'q', 'v'$$, $$'t_pkey', 'q', 'v'$$, $$1, 'q', 'v'$$, $$'t_v', 1, 'v'$$, $$'t_v', 'q', 'nothing'$$,
    $$'t_v', 'q', 'id'$$, $$'t_v', 'q', 'word'$$, $$'t_v', 'q', 'other'$$, $$'t_v', 't_v', 'v'$$]) AS a;
CREATE TABLE mixed (v vector);
SELECT error_of($$SELECT ivfpq_learn('t_v', 'mixed', 'v')$$);
INSERT INTO mixed SELECT vec(i, 6) FROM generate_series(1, 100) AS i;
INSERT INTO mixed VALUES ('[1,2,3]');
SELECT error_of($$SELECT ivfpq_learn('t_v', 'mixed', 'v')$$);
DELETE FROM mixed WHERE v = '[1,2,3]';
SELECT k, used FROM ivfpq_learn('t_v', 'mixed', 'v') WHERE k = 10;
CREATE TABLE scarce AS SELECT v FROM q WHERE id < 64 OR id > 400;
SELECT error_of($$SELECT ivfpq_learn('t_v', 'scarce', 'v')$$);
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT ivfpq_learn('t_v', 'q', 'v', 10000)$$);
RESET maintenance_work_mem;
CREATE TABLE u (v vector(6));
CREATE INDEX u_v ON u USING ivfpq (v);
SELECT error_of($$SELECT ivfpq_learn('u_v', 'q', 'v')$$);
BEGIN READ ONLY;
SELECT ivfpq_learn('t_v', 'q', 'v');
ROLLBACK;

\qecho privileges: the owner of the table, who may read the queries
CREATE ROLE regress_ivfpq_learner;
CREATE ROLE regress_ivfpq_owner;
GRANT SELECT ON t, q TO regress_ivfpq_learner;
SET ROLE regress_ivfpq_learner;
SELECT error_of($$SELECT ivfpq_learn('t_v', 'q', 'v')$$);
RESET ROLE;
ALTER TABLE t OWNER TO regress_ivfpq_owner;
SET ROLE regress_ivfpq_owner;
SELECT error_of($$SELECT ivfpq_learn('t_v', 'q', 'v')$$);
RESET ROLE;
GRANT SELECT ON q TO regress_ivfpq_owner;
ALTER TABLE q ENABLE ROW LEVEL SECURITY;
CREATE POLICY first_ones ON q USING (id <= 100);
SET ROLE regress_ivfpq_owner;
SELECT k, used FROM ivfpq_learn('t_v', 'q', 'v') WHERE k = 10;
RESET ROLE;
-- a superuser who learns from queries: the owner's code cannot read them
ALTER TABLE q DISABLE ROW LEVEL SECURITY;
REVOKE ALL ON q FROM regress_ivfpq_owner;
SELECT k, used FROM ivfpq_learn('t_v', 'q', 'v') WHERE k = 10;

DROP TABLE t, q, before, few, c, cq, mixed, scarce, u CASCADE;
DROP ROLE regress_ivfpq_learner, regress_ivfpq_owner;
