-- embedding_layout and embedding_layout_text.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA embedding_layout_test;
SET search_path = embedding_layout_test, public, ivfpq_test;

-- Three clusters of 100 rows, each along a curve, far from each other
CREATE TABLE t (id int PRIMARY KEY, cluster int, v vector(4));
INSERT INTO t SELECT i, i % 3, ARRAY[(i % 3) * 1000, i % 17, i / 3, (i * i) % 23]::vector FROM generate_series(1, 300) AS i;
CREATE TABLE g AS SELECT * FROM knn_graph('t', 'id', 'v', 10, method => 'exact');
CREATE TABLE l AS SELECT * FROM embedding_layout('g', seed => 1);

\qecho every node once, somewhere
SELECT count(*), count(DISTINCT key), min(key), max(key), bool_and(abs(x) < 1000 AND abs(y) < 1000) FROM l;
\qecho the nearest in the picture are of the same cluster
SELECT count(*) FILTER (WHERE a.cluster = n.cluster) >= 0.99 * count(*)
FROM l JOIN t AS a ON a.id = l.key,
     LATERAL (SELECT b.cluster FROM l AS o JOIN t AS b ON b.id = o.key WHERE o.key <> l.key
              ORDER BY (o.x - l.x) ^ 2 + (o.y - l.y) ^ 2 LIMIT 5) AS n;
\qecho and near in the table: trustworthiness among five
WITH places AS (
    SELECT a.id AS a, b.id AS b, rank() OVER (PARTITION BY a.id ORDER BY a.v <-> b.v) AS before,
           row_number() OVER (PARTITION BY a.id ORDER BY (l.x - m.x) ^ 2 + (l.y - m.y) ^ 2) AS after
    FROM t AS a JOIN l ON l.key = a.id, t AS b JOIN l AS m ON m.key = b.id WHERE a.id <> b.id)
SELECT 1 - 2.0 / (300 * 5 * (2 * 300 - 3 * 5 - 1)) * sum(greatest(before - 5, 0)) > 0.95 FROM places WHERE after <= 5;
\qecho the same again: for the same seed, on any number of threads, in any order of the edges
CREATE FUNCTION differences(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM (SELECT * FROM l EXCEPT ALL %s) AS d', query) INTO number;
    RETURN number;
END
$$;
CREATE TABLE backwards AS SELECT * FROM g ORDER BY dst DESC, rank;
SELECT differences($$SELECT * FROM embedding_layout('g', seed => 1)$$);
SELECT differences($$SELECT * FROM embedding_layout('backwards', seed => 1)$$);
SET max_parallel_maintenance_workers = 0;
SELECT differences($$SELECT * FROM embedding_layout('g', seed => 1)$$);
SET max_parallel_maintenance_workers = 5;
SELECT differences($$SELECT * FROM embedding_layout('g', seed => 1)$$);
RESET max_parallel_maintenance_workers;
SELECT differences($$SELECT * FROM embedding_layout('g', seed => 2)$$) > 290;
SELECT differences($$SELECT * FROM embedding_layout('g', seed => 1, epochs => 10)$$) > 290;
\qecho points lie closer where they may
CREATE FUNCTION gap(min_dist float8) RETURNS float8 LANGUAGE sql AS $$
    WITH m AS MATERIALIZED (SELECT * FROM embedding_layout('g', min_dist => gap.min_dist))
    SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY d)
    FROM (SELECT (SELECT min((o.x - m.x) ^ 2 + (o.y - m.y) ^ 2) FROM m AS o WHERE o.key <> m.key) AS d FROM m) AS each
$$;
SELECT gap(0) < gap(0.9);

\qecho keys that are no integers
CREATE TABLE w (id uuid PRIMARY KEY, v vector(4));
INSERT INTO w SELECT format('%s-0000-0000-0000-000000000000', lpad(to_hex(id), 8, '0'))::uuid, v FROM t;
SELECT edges FROM knn_graph_create('w_graph', 'w', 'id', 'v', 10, method => 'exact');
\qecho the same layout, as these have the same order
SELECT count(*), count(*) FILTER (WHERE w.x = l.x AND w.y = l.y)
FROM embedding_layout_text('w_graph', seed => 1) AS w JOIN l ON lpad(to_hex(l.key), 8, '0') = split_part(w.key, '-', 1);
\qecho integers as text have another order, and another layout
SELECT count(*) FROM embedding_layout_text('g', seed => 1) AS w JOIN l ON l.key::text = w.key;
SELECT error_of($$SELECT * FROM embedding_layout('w_graph')$$);

\qecho graphs that hardly are any
CREATE TABLE e (src bigint, rank int, dst bigint, distance real);
SELECT * FROM embedding_layout('e');
INSERT INTO e VALUES (1, 1, 1, 0), (2, 1, 3, 'infinity'), (4, 1, 5, 'NaN'), (-9223372036854775808, 1, 9223372036854775807, 0);
SELECT key, x = x AND abs(x) < 1e6 AND abs(y) < 1e6 FROM embedding_layout('e') ORDER BY key;

\qecho mistakes
SELECT error_of($$SELECT * FROM embedding_layout('no_such_graph')$$);
SELECT error_of($$SELECT * FROM embedding_layout('t')$$);
SELECT error_of($$SELECT * FROM embedding_layout(NULL)$$);
SELECT error_of($$SELECT * FROM embedding_layout(0)$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', min_dist => -0.1)$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', min_dist => 2)$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', min_dist => 'NaN')$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', min_dist => NULL)$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', spread => 0)$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', spread => 'infinity')$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', epochs => 0)$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', epochs => 10001)$$);
SELECT error_of($$SELECT * FROM embedding_layout('g', seed => NULL)$$);
INSERT INTO e VALUES (1, 2, 2, NULL);
SELECT error_of($$SELECT * FROM embedding_layout('e')$$);
\qecho memory
CREATE TABLE many AS SELECT i AS src, 1 AS rank, i + 1 AS dst, 1::real AS distance FROM generate_series(1, 20000) AS i;
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT * FROM embedding_layout('many')$$);
DELETE FROM many WHERE src > 10000;
SELECT error_of($$SELECT * FROM embedding_layout('many')$$);
SET maintenance_work_mem = '4MB';
SELECT count(*) FROM embedding_layout('many', epochs => 1);
RESET maintenance_work_mem;
\qecho rights
CREATE ROLE embedding_layout_reader;
GRANT USAGE ON SCHEMA embedding_layout_test TO embedding_layout_reader;
SET ROLE embedding_layout_reader;
SELECT error_of($$SELECT * FROM embedding_layout('g')$$);
RESET ROLE;
ALTER TABLE g ENABLE ROW LEVEL SECURITY;
CREATE POLICY third ON g TO embedding_layout_reader USING (src % 3 = 0 AND dst % 3 = 0);
GRANT SELECT ON g TO embedding_layout_reader;
SET ROLE embedding_layout_reader;
SELECT count(*), bool_and(key % 3 = 0) FROM embedding_layout('g', epochs => 1);
RESET ROLE;
\qecho cancel
SET statement_timeout = 100;
SELECT count(*) FROM embedding_layout('g', epochs => 10000);
RESET statement_timeout;

\set ECHO none
SET client_min_messages = warning;
DROP SCHEMA embedding_layout_test CASCADE;
DROP ROLE embedding_layout_reader;
