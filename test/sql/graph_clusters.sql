-- graph_hdbscan and graph_communities.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA graph_clusters_test;
SET search_path = graph_clusters_test, public, ivfpq_test;

-- two groups of points on a line with a point between them, and two points far away
CREATE TABLE points (id bigint PRIMARY KEY, x real);
INSERT INTO points VALUES (1, 0), (2, 1), (3, 2.5), (4, 4.5), (5, 7), (6, 30),
                          (11, 50), (12, 51), (13, 52.5), (14, 54.5), (15, 57), (16, 60),
                          (21, 500), (22, 530);
CREATE FUNCTION neighbors_of(k int) RETURNS TABLE (src bigint, rank int, dst bigint, distance real) LANGUAGE sql AS $$
    SELECT a.id, n.rank::int, n.id, n.distance
    FROM points AS a, LATERAL (SELECT row_number() OVER (ORDER BY abs(b.x - a.x), b.id) AS rank, b.id, abs(b.x - a.x) AS distance
                               FROM points AS b WHERE b.id <> a.id ORDER BY 1 LIMIT k) AS n $$;
CREATE TABLE g AS SELECT * FROM neighbors_of(4);

\qecho labels, probabilities and outlier scores
SELECT key, label, round(probability::numeric, 4), round(outlier_score::numeric, 4)
FROM graph_hdbscan('g', 4, 3) ORDER BY key;
\qecho fewer points make a cluster, and leaves
SELECT key, label, round(probability::numeric, 4) FROM graph_hdbscan('g', 2, 2, 'leaf') ORDER BY key;
\qecho all pairs add nothing here: the tree needs no other edges
CREATE TABLE complete AS SELECT * FROM neighbors_of(13);
SELECT key, label, round(probability::numeric, 4), round(outlier_score::numeric, 4)
FROM graph_hdbscan('complete', 4, 3) ORDER BY key;
\qecho components part at the root; a row with too few neighbors is noise
CREATE TABLE parted AS SELECT * FROM g WHERE (src < 10) = (dst < 10) AND (src < 20) = (dst < 20);
SELECT key, label, round(probability::numeric, 4), round(outlier_score::numeric, 4)
FROM graph_hdbscan('parted', 4, 3) ORDER BY key;
\qecho min_samples is min_cluster_size, or as many as lists have
SELECT count(*) FROM (SELECT * FROM graph_hdbscan('g') EXCEPT SELECT * FROM graph_hdbscan('g', 5, 5)) AS differ;
SELECT count(*) FROM (SELECT * FROM graph_hdbscan('g', 6) EXCEPT SELECT * FROM graph_hdbscan('g', 6, 5)) AS differ;

\qecho the order of rows in the table does not matter, nor the type of keys
CREATE TABLE g_text AS SELECT 'point ' || src AS src, rank, 'point ' || dst AS dst, distance FROM g ORDER BY distance DESC, dst, src;
SELECT count(*), sum((a.label = b.label AND a.probability = b.probability AND a.outlier_score = b.outlier_score)::int)
FROM graph_hdbscan('g', 4, 3) AS a JOIN graph_hdbscan_text('g_text', 4, 3) AS b ON b.key = 'point ' || a.key;
SELECT key, community FROM graph_communities_text('g_text', weights => 'uniform') ORDER BY key COLLATE "C";

\qecho communities: eight cliques of five, in a ring
CREATE TABLE ring AS
SELECT a AS src, row_number() OVER (PARTITION BY a ORDER BY b)::int AS rank, b AS dst, 1::real AS distance
FROM generate_series(0, 39) AS a, generate_series(0, 39) AS b
WHERE a <> b AND (a / 5 = b / 5 OR (b = (a + 1) % 40 AND a % 5 = 4));
SELECT community, array_agg(key ORDER BY key) FROM graph_communities('ring') GROUP BY community ORDER BY community;
\qecho a low resolution unites them
SELECT count(DISTINCT community) < 8, sum((key / 5 = 0)::int) FILTER (WHERE community = 0) IN (0, 5)
FROM graph_communities('ring', 0.1);
\qecho the constant Potts model: a pair within a community is worth its weight less the resolution
SELECT count(DISTINCT community) FROM graph_communities('ring', 0.5, 'cpm', 'uniform');
SELECT count(DISTINCT community) FROM graph_communities('ring', 1.5, 'cpm', 'uniform');
SELECT count(DISTINCT community) FROM graph_communities('ring', 0.001, 'cpm', 'uniform');
\qecho given weights
CREATE TABLE heavy AS SELECT src, rank, dst, CASE WHEN src / 5 = dst / 5 THEN 0.01 ELSE 100 END::real AS distance FROM ring;
SELECT community, array_agg(key ORDER BY key) FROM graph_communities('heavy', 1, weights => 'given')
GROUP BY community HAVING bool_or(key IN (4, 5)) ORDER BY community;
\qecho the same seed, the same communities, however many threads; until nothing is better
CREATE TABLE many AS
SELECT a AS src, j AS rank, (a / 50 * 50 + (a * 7 + j * j * 13) % 50 + CASE WHEN (a + j) % 17 = 0 THEN 50 ELSE 0 END) % 3000 AS dst,
       (1 + (a * j) % 7)::real AS distance
FROM generate_series(0, 2999) AS a, generate_series(1, 8) AS j;
SET max_parallel_maintenance_workers = 0;
CREATE TABLE alone AS SELECT * FROM graph_communities('many', seed => 5);
SET max_parallel_maintenance_workers = 3;
SELECT count(*) FROM (SELECT * FROM graph_communities('many', seed => 5) EXCEPT SELECT * FROM alone) AS differ;
SELECT count(*), count(DISTINCT community) BETWEEN 20 AND 80 FROM graph_communities('many', seed => 5, iterations => NULL);
RESET max_parallel_maintenance_workers;

\qecho no edges
CREATE TABLE empty (LIKE g);
SELECT * FROM graph_hdbscan('empty');
SELECT * FROM graph_communities('empty');

\qecho mistakes
SELECT error_of(q) FROM unnest(ARRAY[
    $$SELECT * FROM graph_hdbscan('no_such_graph')$$,
    $$SELECT * FROM graph_hdbscan(0)$$,
    $$SELECT * FROM graph_hdbscan('points')$$,
    $$SELECT * FROM graph_hdbscan('g_text')$$,
    $$SELECT * FROM graph_hdbscan(NULL)$$,
    $$SELECT * FROM graph_hdbscan('g', 1)$$,
    $$SELECT * FROM graph_hdbscan('g', NULL)$$,
    $$SELECT * FROM graph_hdbscan('g', 5, 0)$$,
    $$SELECT * FROM graph_hdbscan('g', 5, 6)$$,
    $$SELECT * FROM graph_hdbscan('g', selection => 'best')$$,
    $$SELECT * FROM graph_hdbscan('g', selection => NULL)$$,
    $$SELECT * FROM graph_communities('points')$$,
    $$SELECT * FROM graph_communities('g', 0)$$,
    $$SELECT * FROM graph_communities('g', 'infinity')$$,
    $$SELECT * FROM graph_communities('g', 'NaN')$$,
    $$SELECT * FROM graph_communities('g', NULL)$$,
    $$SELECT * FROM graph_communities('g', quality => 'best')$$,
    $$SELECT * FROM graph_communities('g', weights => 'best')$$,
    $$SELECT * FROM graph_communities('g', seed => NULL)$$,
    $$SELECT * FROM graph_communities('g', iterations => 0)$$]) AS q;
CREATE TABLE negative AS SELECT src, rank, dst, -distance AS distance FROM g;
SELECT error_of($$SELECT * FROM graph_hdbscan('negative')$$);
SELECT error_of($$SELECT * FROM graph_communities('negative')$$);
SELECT count(*) FROM graph_communities('negative', weights => 'uniform');
UPDATE negative SET distance = 'infinity' WHERE src = 1;
UPDATE negative SET distance = 1 WHERE src <> 1;
SELECT error_of($$SELECT * FROM graph_communities('negative', weights => 'given')$$);
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT * FROM graph_hdbscan('many')$$);
SET maintenance_work_mem = '1200kB';
SELECT error_of($$SELECT * FROM graph_communities('many')$$);
RESET maintenance_work_mem;

\qecho only what the caller may read
CREATE ROLE graph_clusters_reader;
GRANT USAGE ON SCHEMA graph_clusters_test, ivfpq_test TO graph_clusters_reader;
SET ROLE graph_clusters_reader;
SELECT error_of($$SELECT * FROM graph_hdbscan('g')$$);
RESET ROLE;
GRANT SELECT ON g TO graph_clusters_reader;
ALTER TABLE g ENABLE ROW LEVEL SECURITY;
CREATE POLICY low ON g FOR SELECT USING (src < 7 AND dst < 7);
SET ROLE graph_clusters_reader;
SELECT key FROM graph_communities('g') ORDER BY key;
RESET ROLE;

\set ECHO none
SET client_min_messages = warning;
DROP SCHEMA graph_clusters_test CASCADE;
DROP OWNED BY graph_clusters_reader;
DROP ROLE graph_clusters_reader;
