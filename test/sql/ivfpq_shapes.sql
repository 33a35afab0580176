-- Tables of every shape: the index holds each row with a vector once, whatever the vectors are, and
-- a scan that may look at everything answers as a sort would.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
-- Everything in the first round: exact order throughout.
SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;

\qecho no rows, one row, too few to train
CREATE TABLE t (id int, v vector(3)) WITH (autovacuum_enabled = off);
SET client_min_messages = notice;
CREATE INDEX t_v ON t USING ivfpq (v);
SET client_min_messages = warning;
SELECT trained, dims, metric, lists, m, rows, pending_rows, pages, probes FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
INSERT INTO t VALUES (1, '[1,2,3]');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(2, 999) AS i;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
REINDEX INDEX t_v;
SELECT trained, rows, pending_rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
\qecho enough to train
INSERT INTO t VALUES (1000, '[0,0,0]');
REINDEX INDEX t_v;
SELECT trained, rows, pending_rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('t_v', true);
-- NULL is not indexed, and does not count
INSERT INTO t SELECT 1000 + i, NULL FROM generate_series(1, 500) AS i;
UPDATE t SET v = NULL WHERE id % 3 = 0;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$, 'v IS NOT NULL');
VACUUM t;
SELECT rows FROM ivfpq_info('t_v');
REINDEX INDEX t_v;
SELECT trained, rows FROM ivfpq_info('t_v');
SELECT * FROM ivfpq_check('t_v', true);
UPDATE t SET v = vec(id, 3) WHERE id % 3 = 0;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$, 'v IS NOT NULL');
TRUNCATE t;
SELECT trained, rows, pending_rows FROM ivfpq_info('t_v');
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
INSERT INTO t SELECT i, vec(i, 3) FROM generate_series(1, 10) AS i;
SELECT * FROM compare_scan('t', $$v <-> '[1,2,3]'$$);
-- created and truncated in one transaction, where the file stays the same
BEGIN;
CREATE TABLE s AS SELECT i AS id, vec(i, 3)::vector(3) AS v FROM generate_series(1, 2000) AS i;
CREATE INDEX s_v ON s USING ivfpq (v);
SELECT * FROM compare_scan('s', $$v <-> '[1,2,3]'$$);
TRUNCATE s;
SELECT * FROM compare_scan('s', $$v <-> '[1,2,3]'$$);
INSERT INTO s SELECT i, vec(i, 3) FROM generate_series(1, 20) AS i;
SELECT * FROM compare_scan('s', $$v <-> '[1,2,3]'$$);
SAVEPOINT a;
TRUNCATE s;
INSERT INTO s SELECT i, vec(i, 3) FROM generate_series(1, 30) AS i;
ROLLBACK TO a;
COMMIT;
SELECT * FROM compare_scan('s', $$v <-> '[1,2,3]'$$);
SELECT * FROM ivfpq_check('s_v', true);
DROP TABLE s, t;

-- Builds a table from a query of ids and vectors, indexes it, adds a tenth of its rows again by
-- INSERT, and compares.
CREATE FUNCTION try_shape(dims int, contents text, options text, class text, distance text)
RETURNS TABLE (scan text, rows bigint, same_rows boolean, each_once boolean, in_order boolean,
               lists int, m int, problems bigint)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE shape (id serial, v vector(%s))', dims);
    EXECUTE 'INSERT INTO shape (v) ' || contents;
    EXECUTE format('CREATE INDEX shape_v ON shape USING ivfpq (v %s) WITH (%s)', class, options);
    INSERT INTO shape (v) SELECT s.v FROM shape AS s WHERE s.id % 10 = 0;
    RETURN QUERY
        SELECT s.*, i.lists, i.m, (SELECT count(*) FROM ivfpq_check('shape_v', true))
        FROM compare_scan('shape', distance) AS s, ivfpq_info('shape_v') AS i;
    DROP TABLE shape;
END
$$;

\qecho fewer rows than lists
SELECT * FROM try_shape(3, 'SELECT vec(i, 3) FROM generate_series(1, 1000) AS i',
                        'lists = 3000, m = 3', '', $$v <-> '[7,7,7]'$$);
\qecho all rows equal
SELECT * FROM try_shape(3, $$SELECT '[1,2,3]'::vector FROM generate_series(1, 3000) AS i$$,
                        'lists = 20, m = 3', '', $$v <-> '[7,7,7]'$$);
SELECT * FROM try_shape(3, $$SELECT '[0,0,0]'::vector FROM generate_series(1, 1500) AS i$$,
                        'lists = 20, m = 3', '', $$v <-> '[7,7,7]'$$);
SELECT * FROM try_shape(3, $$SELECT '[0,0,0]'::vector FROM generate_series(1, 1500) AS i$$,
                        'lists = 20, m = 3', 'vector_cosine_ops', $$v <=> '[7,7,7]'$$);
\qecho few different rows
SELECT * FROM try_shape(3, 'SELECT vec(i % 7, 3) FROM generate_series(1, 3000) AS i',
                        'lists = 20, m = 3', '', $$v <-> '[7,7,7]'$$);
\qecho one dimension
SELECT * FROM try_shape(1, 'SELECT vec(i, 1) FROM generate_series(1, 2000) AS i',
                        'lists = 10, m = 1', '', $$v <-> '[7]'$$);
SELECT * FROM try_shape(1, 'SELECT vec(i, 1) FROM generate_series(1, 2000) AS i',
                        'lists = 10, m = 1', 'vector_ip_ops', $$v <#> '[7]'$$);
SELECT * FROM try_shape(1, 'SELECT vec(i, 1) FROM generate_series(1, 2000) AS i',
                        'lists = 10, m = 1', 'vector_cosine_ops', $$v <=> '[7]'$$);
\qecho m that does not divide the dimensions, m = 1, m = dims
SELECT s.* FROM unnest(ARRAY[1, 2, 3, 7, 10, 22, 23]) AS m,
    try_shape(23, 'SELECT vec(i, 23) FROM generate_series(1, 1500) AS i', 'lists = 10, m = ' || m,
              '', $$v <-> vec(0, 23)$$) AS s;
\qecho long vectors
SELECT * FROM try_shape(255, 'SELECT vec(i, 255) FROM generate_series(1, 1100) AS i',
                        'lists = 10, m = 50', '', $$v <-> vec(0, 255)$$);
-- Sums of thousands of squares round differently on different machines; a step between neighbors of at
-- least one part in a thousand does not.
CREATE FUNCTION long_vec(i int, dims int) RETURNS vector LANGUAGE sql IMMUTABLE AS $$
    SELECT array_fill((1.01::float8 ^ i)::real, ARRAY[dims])::vector
$$;
SELECT s.* FROM unnest(ARRAY[2000, 2001, 2038, 2039]) AS dims,
    try_shape(dims, format('SELECT long_vec(i, %s) FROM generate_series(1, 1001) AS i', dims),
              'lists = 4, m = 8', '', format('v <-> array_fill(0, ARRAY[%s])::vector', dims)) AS s;
-- more than the default memory has room for: the sample is smaller than the table
SELECT * FROM try_shape(16000, 'SELECT long_vec(i, 16000) FROM generate_series(1, 1001) AS i',
                        'lists = 2, m = 5', '', $$v <-> array_fill(0, ARRAY[16000])::vector$$);

\qecho distances that overflow
CREATE FUNCTION huge_vec(i int) RETURNS vector LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE i % 4 WHEN 0 THEN vec(i, 4) WHEN 1 THEN ARRAY[1e30, -1e30, i, 1e30]::vector
                      WHEN 2 THEN ARRAY[i, 3e38, -3e38, -i]::vector
                      ELSE ARRAY[1e-40, 1e-30 * i, -1e-42, 0]::vector END
$$;
SELECT s.*
FROM unnest(ARRAY['[1,2,3,4]', '[1e30,1,1,1]', '[3e38,-3e38,3e38,-3e38]', '[1e-45,0,0,0]']) AS query,
    unnest(ARRAY['', 'vector_ip_ops', 'vector_cosine_ops'], ARRAY['<->', '<#>', '<=>'])
    AS c(class, operator),
    try_shape(4, 'SELECT huge_vec(i) FROM generate_series(1, 4400) AS i', 'lists = 10, m = 4',
              c.class,
              format('v %s %L', c.operator, query)) AS s;

-- many lists whose distances are no numbers
SELECT same_rows, each_once
FROM unnest(ARRAY['[1,2,3,4]', '[3e38,-3e38,3e38,-3e38]', '[1e30,1e30,1e30,1e30]']) AS query,
    try_shape(4, 'SELECT ARRAY[i % 50 - 25, i % 49 - 25, i % 47 - 25, i % 43 - 20]::vector
                             * array_fill(1e37, ARRAY[4])::vector FROM generate_series(1, 2000) AS i',
              'lists = 500, m = 4', 'vector_ip_ops', format('v <#> %L', query));

\qecho zero vectors have no direction: last under cosine, first or last under the others
CREATE TABLE z (id int, v vector(3));
INSERT INTO z SELECT i, CASE WHEN i % 2 = 0 THEN '[0,0,0]' ELSE vec(i, 3) END
FROM generate_series(1, 2000) AS i;
CREATE INDEX z_v ON z USING ivfpq (v vector_cosine_ops) WITH (lists = 5);
SELECT * FROM compare_scan('z', $$v <=> '[1,1,1]'$$);
SELECT * FROM compare_scan('z', $$v <=> '[0,0,0]'$$);
SET enable_seqscan = off;
SELECT min(n) FROM (SELECT v, row_number() OVER () AS n
                    FROM (SELECT v FROM z ORDER BY v <=> '[1,1,1]') AS s) AS s
WHERE v = '[0,0,0]';
-- also in rounds of a few
SET ivfpq.probes = 1;
SET ivfpq.candidates = 1;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM z ORDER BY v <=> '[1,1,1]') AS s;
RESET ivfpq.probes;
RESET ivfpq.candidates;
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM z ORDER BY v <=> '[1,1,1]') AS s;
RESET enable_seqscan;
DROP TABLE z;

\qecho a table with one row a page has as many rows to learn from as any other
CREATE UNLOGGED TABLE sparse (v vector(3), filler text) WITH (fillfactor = 10);
ALTER TABLE sparse ALTER filler SET STORAGE PLAIN;
INSERT INTO sparse SELECT vec(i, 3), repeat('x', 700) FROM generate_series(1, 20000) AS i;
SELECT pg_relation_size('sparse') / 8192;
CREATE INDEX sparse_v ON sparse USING ivfpq (v) WITH (lists = 300);
SELECT training_rows > 0.9 * 64 * 300 AS enough FROM ivfpq_info('sparse_v');
DROP TABLE sparse;
DROP FUNCTION try_shape, long_vec, huge_vec;
