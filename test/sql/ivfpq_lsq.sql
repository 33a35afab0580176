-- Additive codes (quantizer = 'lsq'): answers as a sort gives them where the scan may look at
-- everything, also after inserts, deletes and VACUUM; what the index says of itself; what is refused.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\set include :abs_srcdir '/include/quantizers.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SELECT ops, options, sound, answer, in_rounds
FROM (VALUES ('vector_l2_ops', '<->', 'lists = 7, m = 3, quantizer = lsq'),
             ('vector_ip_ops', '<#>', 'lists = 7, m = 2, quantizer = lsq, rounds = 1'),
             ('vector_cosine_ops', '<=>', 'lists = 7, m = 1, quantizer = lsq, bits = 8'))
     AS o(ops, op, options),
     try(options, ops, format('v %s correlated(-1, 12)', op), 100)
ORDER BY ops;

\qecho what it says of itself, how much less it loses, and what that is worth
CREATE INDEX t_pq ON t USING ivfpq (v) WITH (lists = 7, m = 3);
CREATE INDEX t_lsq ON t USING ivfpq (v) WITH (lists = 7, m = 3, quantizer = 'lsq', rounds = 32);
SELECT relname, quantizer, dims, code_dims, m, bits FROM pg_class AS c, ivfpq_info(c.oid)
WHERE relname ~ '^t_' ORDER BY relname;
SELECT l.quantization_error > 0 AS measured, l.quantization_error < 0.5 * p.quantization_error AS less
FROM ivfpq_info('t_pq') AS p, ivfpq_info('t_lsq') AS l;
-- ten candidates for ten rows
SET ivfpq.probes = 7;
SET ivfpq.candidates = 10;
SELECT ivfpq_recall('t_lsq', 50, 10) > ivfpq_recall('t_pq', 50, 10) + 0.1 AS finds_more;
-- entries of inserts are as good as those of the build
INSERT INTO t SELECT 100000 + i, correlated(100000 + i, 12) FROM generate_series(1, 3000) AS i;
DELETE FROM t WHERE id < 100000;
VACUUM t;
SELECT ivfpq_recall('t_lsq', 50, 10) > ivfpq_recall('t_pq', 50, 10) + 0.1 AS inserts_as_well;
RESET ivfpq.probes;
RESET ivfpq.candidates;
SELECT relname, problem FROM pg_class AS c, ivfpq_check(c.oid, true) WHERE relname ~ '^t_';
\qecho many queries at once look into the same codes
SELECT count(*), bool_and(s.distance = (t.v <-> q.v)::real) AS exact
FROM knn_search('t_lsq', ARRAY[correlated(-1, 12), correlated(-2, 12)], 5, 7) AS s
JOIN t ON t.ctid = s.ctid
JOIN (VALUES (1, correlated(-1, 12)), (2, correlated(-2, 12))) AS q(n, v) ON q.n = s.query;
DROP INDEX t_pq;

\qecho REINDEX, and an index that trains itself
SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;
ALTER INDEX t_lsq SET (m = 2, rounds = 4);
REINDEX INDEX t_lsq;
SELECT trained, quantizer, m FROM ivfpq_info('t_lsq');
SELECT * FROM compare_scan('t', 'v <-> correlated(-1, 12)');
TRUNCATE t;
INSERT INTO t SELECT i, correlated(i, 12) FROM generate_series(1, 10500) AS i;
SELECT trained, quantizer FROM ivfpq_info('t_lsq');
VACUUM t;
SELECT trained, quantizer, m, pending_rows FROM ivfpq_info('t_lsq');
INSERT INTO t SELECT i, correlated(i, 12) FROM generate_series(10501, 10600) AS i;
SELECT * FROM ivfpq_check('t_lsq', true);
SELECT * FROM compare_scan('t', 'v <-> correlated(-1, 12)');

\qecho two such indexes, and vectors that are hard to encode
CREATE TABLE h (id int, v vector(9)) WITH (autovacuum_enabled = off);
-- equal rows, dimensions that are empty, and values far from zero
INSERT INTO h SELECT i, '[0,0,0,0,0,0,0,0,0]' FROM generate_series(1, 1000) AS i;
INSERT INTO h SELECT 1000 + i, ('[' || i % 5 || ',0,0,' || i || ',0,0,0,0,1]')::vector
FROM generate_series(1, 1000) AS i;
INSERT INTO h SELECT 2000 + i, ('[' || 1e6 + i || ',0,' || 1e6 - i || ',0,0,0,1e6,0,1]')::vector
FROM generate_series(1, 1000) AS i;
INSERT INTO h SELECT 3000 + i, ('[1e-30,0,' || i || 'e-32,0,0,0,0,0,0]')::vector
FROM generate_series(1, 100) AS i;
CREATE INDEX h_v ON h USING ivfpq (v) WITH (quantizer = 'lsq', m = 2);
CREATE INDEX h_w ON h USING ivfpq (v vector_cosine_ops) WITH (quantizer = 'lsq', m = 1);
SELECT * FROM compare_scan('h', $$v <-> '[3,0,0,500,0,0,0,0,1]'$$);
SELECT * FROM compare_scan('h', $$v <=> '[3,0,0,500,0,0,0,0,1]'$$);
INSERT INTO h SELECT 4000 + i, '[3e38,3e38,3e38,3e38,3e38,3e38,3e38,3e38,-3e38]'
FROM generate_series(1, 5) AS i;
SELECT * FROM ivfpq_check('h_v', true);
SELECT * FROM ivfpq_check('h_w', true);
REINDEX INDEX h_v;
SELECT * FROM ivfpq_check('h_v', true);

\qecho refused before any work
CREATE TABLE w (v vector(2001));
SELECT error_of('CREATE INDEX ON w USING ivfpq (v) WITH (quantizer = lsq)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (quantizer = lsq, m = 10)');
SELECT error_of('CREATE INDEX ON w USING ivfpq (v) WITH (quantizer = lsq, m = 17)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (quantizer = lsq, bits = 4)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (quantizer = lsq, dims = 4)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (rounds = 4)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (quantizer = lsq, rounds = -1)');
SET maintenance_work_mem = '8MB';
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (quantizer = lsq, m = 9)');
RESET maintenance_work_mem;

DROP TABLE t, h, w;
DROP FUNCTION try, correlated;
