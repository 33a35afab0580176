-- Columns of type halfvec: indexes, their functions, and work on whole tables, beside the same
-- values as vector.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

-- Whole numbers from 0 to 255 are halves.
CREATE TABLE t (id int PRIMARY KEY, kind int, v vector(24), h halfvec(24));
INSERT INTO t SELECT i, i % 7, vec(i, 24), vec(i, 24) FROM generate_series(1, 6000) AS i;
INSERT INTO t VALUES (0, 1, NULL, NULL), (-1, 2, array_fill(0, ARRAY[24])::vector, array_fill(0, ARRAY[24])::halfvec);
SELECT bool_and(h::vector = v) FROM t;

\qecho a whole scan of each operator class finds what an exact one does
CREATE INDEX t_l2 ON t USING ivfpq (h) WITH (lists = 40);
CREATE INDEX t_ip ON t USING ivfpq (h halfvec_ip_ops) WITH (lists = 40);
CREATE INDEX t_cosine ON t USING ivfpq (h halfvec_cosine_ops) WITH (lists = 40);
CREATE FUNCTION whole_scans(query int) RETURNS TABLE (scan text, rows bigint, same_rows boolean, each_once boolean, in_order boolean) LANGUAGE sql AS $$
    SELECT s.* FROM unnest('{<->,<#>,<=>}'::text[]) AS o(name),
        compare_scan('t', format('h %s (SELECT h FROM t WHERE id = %s)', name, query), 'h IS NOT NULL AND id > 0') AS s
$$;
SELECT scan, rows, same_rows, each_once FROM whole_scans(77);
SET ivfpq.target_recall = 1;
SELECT * FROM whole_scans(78);
SELECT * FROM compare_scan('t', $$h <-> (SELECT v FROM t WHERE id = 77)$$, 'kind = 3');
RESET ivfpq.target_recall;

\qecho a query as text, as halfvec, as vector, which is rounded, and as null
SET enable_seqscan = off;
SELECT array_agg(id) = (SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY h <-> vec(5, 24)::halfvec LIMIT 10) AS s),
       array_agg(id) = (SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY h <-> (vec(5, 24)::text::vector + array_fill(0.001, ARRAY[24])::vector) LIMIT 10) AS s)
FROM (SELECT id FROM t ORDER BY h <-> (vec(5, 24)::text)::halfvec LIMIT 10) AS s;
SELECT id FROM t ORDER BY h <-> '[94,9,94,9,94,9,94,9,94,9,94,9,94,9,94,9,94,9,94,9,94,9,94,9]' LIMIT 3;
SELECT count(*) FROM (SELECT id FROM t ORDER BY h <-> NULL) AS s;
SELECT scans_of($$SELECT id FROM t ORDER BY h <-> '[1]' LIMIT 3$$);
SELECT error_of($$SELECT id FROM t ORDER BY h <-> '[1,2]' LIMIT 3$$);
RESET enable_seqscan;

\qecho the same index as on the same values of type vector
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40);
SELECT a.rows, a.lists, a.dims, a.metric, a.quantizer, (to_json(a)::jsonb - 'curve_at' - 'leaf_index') = (to_json(b)::jsonb - 'curve_at' - 'leaf_index') AS same
FROM ivfpq_info('t_l2') AS a, ivfpq_info('t_v') AS b;
SELECT indexrelid::regclass, opcname FROM pg_index JOIN pg_opclass ON pg_opclass.oid = indclass[0]
WHERE indrelid = 't'::regclass AND indexrelid <> 't_pkey'::regclass ORDER BY 1;

\qecho inserts, updates, deletes and VACUUM
INSERT INTO t SELECT i, i % 7, NULL, vec(i, 24)::halfvec FROM generate_series(6001, 7000) AS i;
UPDATE t SET h = vec(id + 50000, 24) WHERE id % 10 = 3;
DELETE FROM t WHERE id % 10 = 4;
VACUUM (INDEX_CLEANUP ON) t;
SELECT scan, rows, same_rows, each_once FROM whole_scans(6999);
SET ivfpq.target_recall = 1;
SELECT * FROM whole_scans(6999);
SELECT error_of($$INSERT INTO t (id, h) VALUES (-5, '[1,2]')$$);
SELECT * FROM ivfpq_check('t_l2', true);
SELECT * FROM ivfpq_check('t_cosine', true);
REINDEX INDEX t_l2;
SELECT * FROM whole_scans(6999);
RESET ivfpq.target_recall;

\qecho an index that begins empty, with a pending list
CREATE TABLE young (id int, h halfvec(24));
CREATE INDEX young_h ON young USING ivfpq (h halfvec_cosine_ops);
INSERT INTO young SELECT i, vec(i, 24)::halfvec FROM generate_series(1, 300) AS i;
SELECT trained, pending_rows FROM ivfpq_info('young_h');
SELECT * FROM compare_scan('young', $$h <=> (SELECT h FROM young WHERE id = 6)$$);
INSERT INTO young SELECT i, vec(i, 24)::halfvec FROM generate_series(301, 12000) AS i;
VACUUM young;
SELECT trained, pending_rows FROM ivfpq_info('young_h');
SET ivfpq.target_recall = 1;
SELECT * FROM compare_scan('young', $$h <=> (SELECT h FROM young WHERE id = 6)$$);

\qecho an expression on a vector column
CREATE INDEX t_x ON t USING ivfpq ((v::halfvec(24)) halfvec_cosine_ops) WITH (lists = 40);
SELECT * FROM compare_scan('t', $$v::halfvec(24) <=> (SELECT h FROM t WHERE id = 79)$$, 'v IS NOT NULL AND id > 0');
INSERT INTO t SELECT i, i % 7, vec(i, 24), NULL FROM generate_series(7001, 7200) AS i;
SELECT * FROM compare_scan('t', $$v::halfvec(24) <=> (SELECT v FROM t WHERE id = 7100)$$, 'v IS NOT NULL AND id > 0');
SELECT * FROM ivfpq_check('t_x', true);
SELECT ivfpq_recall('t_x', 20) > 0.9;
SELECT error_of('CREATE INDEX ON t USING ivfpq ((v::halfvec) halfvec_cosine_ops)');
SELECT error_of('CREATE INDEX ON t USING ivfpq (v halfvec_l2_ops)');
SELECT error_of($$INSERT INTO t (id, v) SELECT -7, array_fill(70000, ARRAY[24])::vector$$);
DELETE FROM t WHERE id > 7000;
RESET ivfpq.target_recall;
DROP INDEX t_x;

\qecho long rows, beside the table
CREATE TABLE long (id int, h halfvec(2000));
INSERT INTO long SELECT i, vec(i, 2000)::halfvec FROM generate_series(1, 400) AS i;
CREATE INDEX long_h ON long USING ivfpq (h) WITH (lists = 4);
SELECT * FROM compare_scan('long', $$h <-> (SELECT h FROM long WHERE id = 9)$$);
SELECT id FROM long ORDER BY h <-> (SELECT h FROM long WHERE id = 17) LIMIT 1;

\qecho functions that measure
SELECT ivfpq_recall('t_l2', 30) > 0.9, ivfpq_recall('t_cosine', 30) > 0.9;
SELECT k, used, new_recall > 0.9 FROM ivfpq_learn('t_l2', 't', 'h', 100);
SELECT k, used, new_recall > 0.9 FROM ivfpq_learn('t_ip', 't', 'v', 100);
SELECT quantizer, bits, recall_at_100 > 0.5 FROM ivfpq_compare('t', 'h', 3, 1000);

\qecho batches: the same as scans one by one
CREATE TABLE q AS SELECT id, vec(id + 9000, 24)::halfvec(24) AS h, vec(id + 9000, 24)::vector(24) AS v FROM generate_series(1, 30) AS id;
CREATE FUNCTION same_as_exact(text, text) RETURNS TABLE (queries bigint, rows bigint, same bigint) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT count(DISTINCT query), count(*), count(*) FILTER (WHERE f.distance = e.distance)
        FROM (%1$s) AS f JOIN (SELECT q.id AS query, s.* FROM q, LATERAL (SELECT row_number() OVER () AS rank, d::real AS distance FROM
            (SELECT %2$s AS d FROM t WHERE h IS NOT NULL ORDER BY 1 LIMIT 5) AS s) AS s) AS e USING (query, rank)', $1, $2);
END
$$;
SET ivfpq.target_recall = 1;
SELECT * FROM same_as_exact($$SELECT query, rank, distance FROM knn_search('t_l2', (SELECT array_agg(h ORDER BY id) FROM q), 5)$$, 't.h <-> q.h');
SELECT * FROM same_as_exact($$SELECT query, rank, distance FROM knn_search('t_l2', (SELECT array_agg(v ORDER BY id) FROM q), 5)$$, 't.h <-> q.h');
SELECT * FROM same_as_exact($$SELECT query, rank, distance FROM knn_search('t_l2', (SELECT array_agg(h ORDER BY id)::text FROM q), 5)$$, 't.h <-> q.h');
SELECT * FROM same_as_exact($$SELECT query, rank, distance FROM knn_search('t_ip', (SELECT array_agg(h ORDER BY id) FROM q), 5)$$, 't.h <#> q.h');
SELECT * FROM same_as_exact($$SELECT query, rank, distance FROM knn_search('t_cosine', (SELECT array_agg(h ORDER BY id) FROM q), 5)$$, 't.h <=> q.h');
SELECT * FROM same_as_exact($$SELECT query_key::int AS query, rank, distance FROM knn_join('q', 'id', 'h', 't_l2', 'id', 5)$$, 't.h <-> q.h');
SELECT * FROM same_as_exact($$SELECT query_key::int AS query, rank, distance FROM knn_join('q', 'id', 'v', 't_l2', 'id', 5)$$, 't.h <-> q.h');
SELECT count(*), bool_and(t.kind = 3 AND (t.h <-> q.h)::real = s.distance)
FROM knn_search('t_l2', (SELECT array_agg(h ORDER BY id) FROM q), 5, condition => 'kind = 3') AS s
    JOIN t ON t.ctid = s.ctid JOIN q ON q.id = s.query;
\qecho queries of type vector are rounded as a cast to halfvec would
SELECT bool_and(s.distance = (t.h <-> (SELECT array_agg(0.1::float8 * d) FROM generate_series(1, 24) AS d)::halfvec)::real)
FROM knn_search('t_l2', ARRAY[(SELECT array_agg(0.1::float8 * d) FROM generate_series(1, 24) AS d)::vector], 5) AS s JOIN t ON t.ctid = s.ctid;
SELECT bool_and(s.distance = (t.v <-> (SELECT array_agg(0.1::float8 * d) FROM generate_series(1, 24) AS d)::halfvec::vector)::real)
FROM knn_search('t_v', ARRAY[(SELECT array_agg(0.1::float8 * d) FROM generate_series(1, 24) AS d)::halfvec], 5) AS s JOIN t ON t.ctid = s.ctid;
RESET ivfpq.target_recall;
SELECT error_of($$SELECT * FROM knn_search('t_l2', '{"[1,2]"}'::halfvec[], 5)$$),
       error_of($$SELECT * FROM knn_search('t_l2', '{"[1,2]"}', 5)$$),
       error_of($$SELECT * FROM knn_search('t_l2', '[1,2]', 5)$$),
       error_of($$SELECT * FROM knn_search('t_l2', ARRAY[array_fill(70000, ARRAY[24])::vector], 5)$$);

\qecho k-means: the same clusters as of the same values in a column of type vector
CREATE TABLE c AS SELECT id, h FROM t WHERE h IS NOT NULL;
ALTER TABLE c ADD v vector(24);
UPDATE c SET v = h;
SELECT bool_and(a.size = b.size AND a.centroid = b.centroid), sum(a.size)
FROM kmeans('c', 'h', 5) AS a JOIN kmeans('c', 'v', 5) AS b USING (cluster);
WITH m AS MATERIALIZED (SELECT array_agg(centroid ORDER BY cluster) AS all FROM kmeans('c', 'v', 5))
SELECT bool_and(kmeans_assign(h, m.all) = kmeans_assign(v, m.all)) AS by_vectors,
       bool_and(kmeans_assign(h, m.all::halfvec[]) = kmeans_assign(v, m.all::halfvec[]::vector[])) AS by_halves
FROM c, m;
SELECT kmeans_assign('[1,2]'::halfvec, '{"[9,9]","[1,1]","[0,0]"}'::halfvec[]), kmeans_assign('[1,2]'::halfvec, '{"[9,9]","[1,1]"}'::vector[]);
SELECT error_of($$SELECT kmeans_assign('[1,2]'::halfvec, '{"[9,9,9]"}'::halfvec[])$$);

\qecho graphs: the same as of the same values in a column of type vector
SELECT count(*), count(*) FILTER (WHERE a.distance = b.distance) AS same
FROM knn_graph('c', 'id', 'h', 4, method => 'exact') AS a FULL JOIN knn_graph('c', 'id', 'v', 4, method => 'exact') AS b USING (src, rank);
SELECT count(*) FROM knn_graph('c', 'id', 'h', 4, method => 'exact') AS g JOIN c AS x ON x.id = src JOIN c AS y ON y.id = dst
WHERE (x.h <-> y.h)::real <> g.distance;
CREATE TABLE g AS SELECT * FROM knn_graph('c', 'id', 'h', 4, method => 'exact');
SELECT knn_graph_recall('g', 'c', 'id', 'h');
INSERT INTO c SELECT i, vec(i, 24)::halfvec FROM generate_series(20001, 20010) AS i;
SELECT added FROM knn_graph_append('g', 'c', 'id', 'h');

\qecho tables without a number of dimensions
SELECT error_of('CREATE TABLE n (h halfvec); CREATE INDEX ON n USING ivfpq (h)');
DROP TABLE t, q, c, g, young, long;
DROP FUNCTION same_as_exact, whole_scans;
