-- ivfpq_compare: what each quantizer would make of a column.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE TABLE t (id int, v vector(16), w vector(16), n int, "odd ""name" vector(3));
-- v: dimensions that hang together far apart; w: none that do
INSERT INTO t
SELECT i, (SELECT array_agg((hashint8extended(i * 9 + d % 4, 0) & 255)::real +
                            (hashint8extended(i * 40 + d, 1) & 15) ORDER BY d)::real[]::vector
           FROM generate_series(1, 16) AS d),
       vec(i, 16), i, vec(i, 3)
FROM generate_series(1, 4000) AS i;
INSERT INTO t VALUES (0, NULL, NULL, 0, NULL);

CREATE TABLE c AS SELECT * FROM ivfpq_compare('t', 'v', 4, 3000);
SELECT quantizer, bits, training_seconds > 0, rows_per_second > 0, error BETWEEN 0 AND 1,
       recall_at_1 BETWEEN 0 AND recall_at_10, recall_at_10 BETWEEN recall_at_1 AND recall_at_100,
       recall_at_100 > 0.2
FROM c;
\qecho a rotation helps, and halves lose something
SELECT o.error < 0.7 * p.error AS opq_loses_less, o.recall_at_10 > p.recall_at_10 AS finds_more,
       h.error > p.error AS halves_lose_more, oh.error < h.error AS rotated_halves
FROM c AS p, c AS o, c AS h, c AS oh
WHERE (p.quantizer, p.bits) = ('pq', 8) AND (o.quantizer, o.bits) = ('opq', 8)
  AND (h.quantizer, h.bits) = ('pq', 4) AND (oh.quantizer, oh.bits) = ('opq', 4);
SELECT l.error < o.error AS sums_lose_least, l.recall_at_10 >= o.recall_at_10 AS find_most
FROM c AS l, c AS o WHERE l.quantizer = 'lsq' AND (o.quantizer, o.bits) = ('opq', 8);
\qecho the same each time, more bytes are better, and what cannot be is left out
SELECT count(*) FROM ivfpq_compare('t', 'v', 4, 3000) AS a JOIN c USING (quantizer, bits)
WHERE abs(a.error - c.error) < 1e-4 AND abs(a.recall_at_10 - c.recall_at_10) < 0.01;
SELECT quantizer, bits, error < 0.001 FROM ivfpq_compare('t', 'w', 16, 1500) ORDER BY 1, 2;
SELECT bool_and(b.error < a.error) FROM ivfpq_compare('t', 'w', 2) AS a
JOIN ivfpq_compare('t', 'w', 8) AS b USING (quantizer, bits);
SELECT count(*) FROM ivfpq_compare('t', 'odd "name', 1);
\qecho mistakes
SELECT error_of($$SELECT * FROM ivfpq_compare('t', 'nowhere', 4)$$);
SELECT error_of($$SELECT * FROM ivfpq_compare('t', 'n', 4)$$);
SELECT error_of($$SELECT * FROM ivfpq_compare('t', 'v', 17)$$);
SELECT error_of($$SELECT * FROM ivfpq_compare('t', 'v', 0)$$);
SELECT error_of($$SELECT * FROM ivfpq_compare('t', 'v', 4, 10)$$);
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT * FROM ivfpq_compare('t', 'v', 4, 100000)$$);
RESET maintenance_work_mem;
CREATE TABLE few AS SELECT * FROM t LIMIT 500;
SELECT error_of($$SELECT * FROM ivfpq_compare('few', 'v', 4)$$);
CREATE TABLE mixed (v vector);
INSERT INTO mixed SELECT vec(i, 2 + i % 2) FROM generate_series(1, 2000) AS i;
SELECT error_of($$SELECT * FROM ivfpq_compare('mixed', 'v', 1)$$);
\qecho who may
CREATE ROLE regress_ivfpq_reader;
SET ROLE regress_ivfpq_reader;
SELECT ivfpq_test.error_of($$SELECT * FROM ivfpq_compare('public.t', 'v', 4)$$);
RESET ROLE;
GRANT SELECT (v) ON t TO regress_ivfpq_reader;
SET ROLE regress_ivfpq_reader;
SELECT count(*) FROM ivfpq_compare('public.t', 'v', 4, 1000);
SELECT ivfpq_test.error_of($$SELECT * FROM ivfpq_compare('public.t', 'w', 4)$$);
RESET ROLE;
REVOKE ALL ON t FROM regress_ivfpq_reader;
DROP ROLE regress_ivfpq_reader;
DROP TABLE t, c, few, mixed;
