-- ALTER INDEX ... SET and RESET on an ivfpq index: what is kept until a REINDEX is said, and what no
-- REINDEX could use is refused at once.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE TABLE t (id int, v vector(8));
INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(1, 1200) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 5, m = 4);
CREATE INDEX t_default ON t USING ivfpq (v);

-- the first command of a session, which loads the library only now
\c -
ALTER INDEX t_v SET (lists = 9);
SET search_path = public, ivfpq_test;
SELECT reloptions, lists FROM pg_class, ivfpq_info(oid) WHERE relname = 't_v';
-- back to what it was built with, and the same once more: nothing to say
ALTER INDEX t_v SET (lists = 5);
ALTER INDEX t_v SET (lists = 5);
-- RESET asks for a choice, or for nothing new
ALTER INDEX t_v RESET (lists);
ALTER INDEX t_v RESET (m, lists);
ALTER INDEX t_v RESET (bits);
ALTER INDEX t_v SET (lists = 5, m = 4, bits = 8, quantizer = pq);
ALTER INDEX t_v SET (bits = 4);
ALTER INDEX t_v SET (bits = 0, quantizer = opq, dims = 6);
ALTER INDEX t_v RESET (dims, quantizer, bits);
-- a number that the build chose by itself is no news either
SELECT format('lists = %s, m = %s', lists, m) AS chosen FROM ivfpq_info('t_default') \gset
ALTER INDEX t_default SET (:chosen);
ALTER INDEX t_default RESET (lists, m);
ALTER INDEX t_default SET (lists = 0, m = 0);
-- after the REINDEX the new options are those of the index
ALTER INDEX t_v SET (lists = 9, m = 2);
REINDEX INDEX t_v;
SELECT lists, m FROM ivfpq_info('t_v');
ALTER INDEX t_v SET (lists = 9);

-- what no REINDEX could use: refused, and nothing changes
SELECT o, error_of(format('ALTER INDEX t_v SET (%s)', o))
FROM unnest(ARRAY['m = 9', 'm = 5, bits = 4', 'bits = 5', 'dims = 4', 'rounds = 3', 'lists = 2000000',
                  'quantizer = opq, dims = 9', 'quantizer = opq, dims = 1',
                  'quantizer = lsq, bits = 4', 'fillfactor = 50']) WITH ORDINALITY AS u(o, n)
ORDER BY n;
SELECT reloptions FROM pg_class WHERE relname = 't_v';
-- what fits only in the end is given in one command
ALTER INDEX t_v SET (m = 6, quantizer = opq, dims = 6);
SELECT error_of('ALTER INDEX t_v RESET (quantizer)');
ALTER INDEX t_v RESET (quantizer, dims);

-- an index that waits for rows trains itself with the options it was built with
CREATE TABLE few (v vector(8));
CREATE UNLOGGED TABLE u (v vector(8));
SET client_min_messages = warning;
CREATE INDEX few_v ON few USING ivfpq (v);
CREATE INDEX u_v ON u USING ivfpq (v);
RESET client_min_messages;
ALTER INDEX u_v SET (lists = 3);
ALTER INDEX few_v SET (lists = 3, m = 2);
SET client_min_messages = warning;
REINDEX INDEX few_v;
RESET client_min_messages;
ALTER INDEX few_v SET (lists = 3);
SELECT error_of('ALTER INDEX few_v SET (m = 9)');

-- other changes of the index, other indexes and other names
ALTER INDEX t_v RENAME TO "T v";
ALTER INDEX "T v" SET (lists = 3);
ALTER INDEX "T v" SET TABLESPACE pg_default;
COMMENT ON INDEX "T v" IS 'an index';
CREATE INDEX t_id ON t (id);
ALTER INDEX t_id SET (fillfactor = 50);
ALTER TABLE t SET (fillfactor = 50);
-- rolled back
BEGIN;
ALTER INDEX "T v" SET (lists = 4);
ROLLBACK;
-- a column that has lost its dimensions: those of the index count
ALTER TABLE few ALTER COLUMN v TYPE vector;
ALTER INDEX few_v SET (m = 8);
SELECT error_of('ALTER INDEX few_v SET (m = 9)');

DROP TABLE t, few, u;
