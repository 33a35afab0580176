-- Quantizers: every kind of index answers as a sort does where it may look at everything, also after
-- inserts, deletes and VACUUM, and says what it is.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\set include :abs_srcdir '/include/quantizers.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE TABLE kinds (n int, options text);
INSERT INTO kinds VALUES
    (1, 'lists = 7, m = 3'),
    (2, 'lists = 7, m = 3, quantizer = pq'),
    (3, 'lists = 7, m = 3, quantizer = opq'),
    (4, 'lists = 7, quantizer = opq, m = 5'),
    (5, 'lists = 7, quantizer = opq, dims = 4, m = 3'),
    (6, 'quantizer = opq'),
    (7, 'quantizer = opq, dims = 1'),
    (8, 'lists = 7, m = 3, bits = 4'),
    (9, 'bits = 4'),
    (10, 'lists = 7, m = 5, bits = 4, quantizer = opq'),
    (11, 'lists = 7, bits = 4, quantizer = opq, dims = 4'),
    (12, 'lists = 7, m = 3, bits = 8');

SELECT n, ops, sound, answer, in_rounds
FROM kinds, (VALUES (0, 'vector_l2_ops', '<->'), (1, 'vector_ip_ops', '<#>'), (2, 'vector_cosine_ops', '<=>'))
            AS o(i, ops, op),
     try(options, ops, format('v %s correlated(-1, 12)', op), 300)
-- each quantizer with every operator, its other forms with one
WHERE n IN (1, 3, 5, 8, 10) OR n % 3 = i
ORDER BY n, ops;

\qecho what it says of itself, and how much less a rotation loses
CREATE INDEX t_pq ON t USING ivfpq (v) WITH (lists = 7, m = 3);
CREATE INDEX t_opq ON t USING ivfpq (v) WITH (lists = 7, m = 3, quantizer = 'opq');
CREATE INDEX t_four ON t USING ivfpq (v) WITH (lists = 7, m = 3, quantizer = 'opq', dims = 4);
CREATE INDEX t_two ON t USING ivfpq (v) WITH (lists = 7, m = 2, quantizer = 'opq', dims = 2);
CREATE INDEX t_halves ON t USING ivfpq (v) WITH (lists = 7, m = 3, bits = 4);
CREATE INDEX t_opq_halves ON t USING ivfpq (v) WITH (lists = 7, m = 3, bits = 4, quantizer = opq);
SELECT relname, quantizer, dims, code_dims, m, bits FROM pg_class AS c, ivfpq_info(c.oid)
WHERE relname ~ '^t_' ORDER BY relname;
SELECT o.quantization_error < 0.5 * p.quantization_error AS opq,
       f.quantization_error < 0.5 * p.quantization_error AS four_dimensions,
       t.quantization_error > 5 * f.quantization_error AS two_are_too_few
FROM ivfpq_info('t_pq') AS p, ivfpq_info('t_opq') AS o, ivfpq_info('t_four') AS f,
     ivfpq_info('t_two') AS t;
-- sixteen codewords twice are fewer than 256, and more dimensions each are not as bad when rotated
SELECT h.quantization_error > p.quantization_error AS halves,
       oh.quantization_error < 0.5 * h.quantization_error AS rotated_halves
FROM ivfpq_info('t_pq') AS p, ivfpq_info('t_halves') AS h, ivfpq_info('t_opq_halves') AS oh;
-- what the codes alone are worth: ten candidates for ten rows
SET ivfpq.probes = 7;
SET ivfpq.candidates = 10;
SELECT ivfpq_recall('t_opq', 50, 10) > ivfpq_recall('t_pq', 50, 10) AS opq,
       ivfpq_recall('t_four', 50, 10) > ivfpq_recall('t_pq', 50, 10) AS four_dimensions;
RESET ivfpq.probes;
RESET ivfpq.candidates;

\qecho VACUUM, and an index that trains itself
DELETE FROM t WHERE id % 2 = 0;
VACUUM t;
SELECT relname, problem FROM pg_class AS c, ivfpq_check(c.oid, true) WHERE relname ~ '^t_';
DROP INDEX t_pq, t_four, t_two, t_halves, t_opq_halves;
SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;
SELECT * FROM compare_scan('t', 'v <-> correlated(-1, 12)');
TRUNCATE t;
ALTER INDEX t_opq SET (dims = 6);
REINDEX INDEX t_opq;
INSERT INTO t SELECT i, correlated(i, 12) FROM generate_series(1, 10500) AS i;
SELECT trained, quantizer, code_dims FROM ivfpq_info('t_opq');
SELECT * FROM compare_scan('t', 'v <-> correlated(-1, 12)');
VACUUM t;
SELECT trained, quantizer, code_dims, pending_rows FROM ivfpq_info('t_opq');
SELECT * FROM ivfpq_check('t_opq', true);
SELECT * FROM compare_scan('t', 'v <-> correlated(-1, 12)');
INSERT INTO t SELECT i, correlated(i, 12) FROM generate_series(10501, 10600) AS i;
SELECT * FROM compare_scan('t', 'v <-> correlated(-1, 12)');
ALTER INDEX t_opq SET (bits = 4);
REINDEX INDEX t_opq;
SELECT trained, quantizer, code_dims, bits FROM ivfpq_info('t_opq');
TRUNCATE t;
INSERT INTO t SELECT i, correlated(i, 12) FROM generate_series(1, 10500) AS i;
VACUUM t;
SELECT trained, quantizer, code_dims, bits, pending_rows FROM ivfpq_info('t_opq');
INSERT INTO t SELECT i, correlated(i, 12) FROM generate_series(10501, 10600) AS i;
SELECT * FROM ivfpq_check('t_opq', true);
SELECT * FROM compare_scan('t', 'v <-> correlated(-1, 12)');

\qecho vectors that are hard to turn
CREATE TABLE h (id int, v vector(9)) WITH (autovacuum_enabled = off);
-- equal rows, dimensions that are empty, and values far from zero
INSERT INTO h SELECT i, '[0,0,0,0,0,0,0,0,0]' FROM generate_series(1, 1000) AS i;
INSERT INTO h SELECT 1000 + i, ('[' || i % 5 || ',0,0,' || i || ',0,0,0,0,1]')::vector
FROM generate_series(1, 1000) AS i;
INSERT INTO h SELECT 2000 + i, ('[' || 1e6 + i || ',0,' || 1e6 - i || ',0,0,0,1e6,0,1]')::vector
FROM generate_series(1, 1000) AS i;
INSERT INTO h SELECT 3000 + i, ('[1e-30,0,' || i || 'e-32,0,0,0,0,0,0]')::vector
FROM generate_series(1, 100) AS i;
CREATE INDEX h_v ON h USING ivfpq (v) WITH (quantizer = 'opq');
SELECT * FROM compare_scan('h', $$v <-> '[3,0,0,500,0,0,0,0,1]'$$);
SELECT * FROM ivfpq_check('h_v', true);
DROP INDEX h_v;
CREATE INDEX h_v ON h USING ivfpq (v vector_cosine_ops) WITH (quantizer = 'opq', dims = 3);
SELECT * FROM compare_scan('h', $$v <=> '[3,0,0,500,0,0,0,0,1]'$$);
SELECT * FROM ivfpq_check('h_v', true);
INSERT INTO h SELECT 4000 + i, '[3e38,3e38,3e38,3e38,3e38,3e38,3e38,3e38,-3e38]'
FROM generate_series(1, 5) AS i;
SELECT * FROM ivfpq_check('h_v', true);
REINDEX INDEX h_v;
SELECT * FROM ivfpq_check('h_v', true);
DELETE FROM h WHERE id > 4000;
DROP INDEX h_v;
CREATE INDEX h_v ON h USING ivfpq (v) WITH (bits = 4);
SELECT * FROM compare_scan('h', $$v <-> '[3,0,0,500,0,0,0,0,1]'$$);
SET ivfpq.candidates = 20;
SELECT same_rows, each_once FROM compare_scan('h', $$v <-> '[1000300,0,999700,0,0,0,1e6,0,1]'$$);
RESET ivfpq.candidates;
SELECT * FROM ivfpq_check('h_v', true);

\qecho refused before any work
CREATE TABLE w (v vector(2001));
SELECT error_of('CREATE INDEX ON w USING ivfpq (v) WITH (quantizer = opq)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (quantizer = opq, dims = 10)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (bits = 4, m = 5)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (bits = 4, quantizer = opq, dims = 1)');
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (bits = 5)');
SET maintenance_work_mem = '1MB';
SELECT error_of('CREATE INDEX ON h USING ivfpq (v) WITH (quantizer = opq)');
RESET maintenance_work_mem;

DROP TABLE t, h, w, kinds;
DROP FUNCTION try, correlated;
