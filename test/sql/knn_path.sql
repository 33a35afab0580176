-- knn_path and knn_components.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA knn_path_test;
SET search_path = knn_path_test, public, ivfpq_test;

-- 1 to 6 in small steps, and two short cuts with a large one; 20 and 21 apart
CREATE TABLE g (src bigint, rank int, dst bigint, distance real);
INSERT INTO g VALUES (1, 1, 2, 1), (2, 1, 3, 2), (3, 1, 4, 1), (4, 1, 5, 2), (5, 1, 6, 1),
                     (1, 2, 6, 5), (2, 2, 5, 3), (20, 1, 21, 0.5);
\qecho the largest edge is as small as can be
SELECT * FROM knn_path('g', 1, 6);
\qecho edges lead both ways
SELECT * FROM knn_path('g', 6, 1);
\qecho unless they are to be followed as they stand
SELECT * FROM knn_path('g', 1, 6, directed => true);
SELECT * FROM knn_path('g', 6, 1, directed => true);
\qecho of equal ones the shortest, then the one with the smallest sum
INSERT INTO g VALUES (2, 3, 7, 2), (7, 1, 5, 2);
SELECT * FROM knn_path('g', 1, 6);
INSERT INTO g VALUES (2, 4, 8, 2), (8, 1, 5, 1.5);
SELECT * FROM knn_path('g', 1, 6);
\qecho to itself, nowhere, and what is not there
SELECT * FROM knn_path('g', 3, 3);
SELECT * FROM knn_path('g', 1, 21);
SELECT error_of($$SELECT * FROM knn_path('g', 1, 99)$$);
SELECT error_of($$SELECT * FROM knn_path('g', -1, 1)$$);
SELECT * FROM knn_path(NULL, 1, 2);
SELECT * FROM knn_path('g', NULL, 2);

\qecho components
SELECT * FROM knn_components('g') ORDER BY node;
TRUNCATE g;
SELECT * FROM knn_components('g');
SELECT error_of($$SELECT * FROM knn_path('g', 1, 2)$$);
INSERT INTO g VALUES (-9223372036854775808, 1, 9223372036854775807, 1), (0, 1, 0, 0);
SELECT * FROM knn_components('g') ORDER BY node;
SELECT * FROM knn_path('g', 9223372036854775807, -9223372036854775808);

\qecho tables that are no graphs, other types that fit
CREATE TABLE n1 (src bigint, rank int, dst bigint);
CREATE TABLE n2 (src text, rank int, dst bigint, distance real);
CREATE TABLE n3 (src int, rank int, dst int, distance text);
CREATE TABLE n4 (src int, rank smallint, dst smallint, distance double precision);
CREATE VIEW n5 AS SELECT * FROM n4;
SELECT error_of(format($$SELECT * FROM knn_path(%L, 1, 2)$$, n)) FROM unnest(ARRAY['n1', 'n2', 'n3', 'n4', 'n5']) AS n;
SELECT error_of(format($$SELECT * FROM knn_components(%L)$$, n)) FROM unnest(ARRAY['n1', 'n2', 'n3', 'n4', 'n5']) AS n;
SELECT error_of($$SELECT * FROM knn_components(0)$$);
INSERT INTO n4 VALUES (1, 1, 2, 1), (2, 1, 1, 1);
SELECT * FROM knn_path('n5', 1, 2);
INSERT INTO n4 VALUES (1, 2, 3, NULL);
SELECT error_of($$SELECT * FROM knn_path('n4', 1, 2)$$);
UPDATE n4 SET distance = 'NaN' WHERE distance IS NULL;
SELECT * FROM knn_path('n4', 2, 3);

\qecho more edges than there is memory for
CREATE TABLE big AS SELECT i AS src, 1 AS rank, i + 1 AS dst, 1::real AS distance FROM generate_series(1, 30000) AS i;
SELECT count(*), sum(distance) FROM knn_path('big', 1, 30001);
SELECT count(DISTINCT component), count(*) FROM knn_components('big');
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT * FROM knn_path('big', 1, 30001)$$);
RESET maintenance_work_mem;

\qecho row security of the graph
CREATE ROLE path_reader;
GRANT USAGE ON SCHEMA knn_path_test TO path_reader;
GRANT SELECT ON big TO path_reader;
ALTER TABLE big ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON big TO path_reader USING (src <= 10);
SET ROLE path_reader;
SELECT count(*) FROM knn_path('big', 1, 11);
SELECT error_of($$SELECT * FROM knn_path('big', 1, 12)$$);
SELECT count(*) FROM knn_components('big');
RESET ROLE;
DROP OWNED BY path_reader;
DROP ROLE path_reader;
SET client_min_messages = warning;
DROP SCHEMA knn_path_test CASCADE;
