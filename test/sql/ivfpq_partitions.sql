-- Functions on indexes of partitioned tables: the rows of all partitions.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
-- Two levels, columns in another order, a dropped column, partitions without rows, with few, and with
-- an index of each kind.
CREATE TABLE p (id int, v vector(12), kind int, h halfvec(12)) PARTITION BY RANGE (id);
CREATE TABLE p_first PARTITION OF p FOR VALUES FROM (0) TO (3000);
CREATE TABLE p_second (gone text, h halfvec(12), v vector(12), kind int, id int);
ALTER TABLE p_second DROP COLUMN gone;
ALTER TABLE p ATTACH PARTITION p_second FOR VALUES FROM (3000) TO (6000);
CREATE TABLE p_nested PARTITION OF p FOR VALUES FROM (6000) TO (10000) PARTITION BY LIST (kind);
CREATE TABLE p_nested_even PARTITION OF p_nested FOR VALUES IN (0, 2);
CREATE TABLE p_nested_odd PARTITION OF p_nested FOR VALUES IN (1, 3);
CREATE TABLE p_empty PARTITION OF p FOR VALUES FROM (10000) TO (20000);
CREATE TABLE p_few PARTITION OF p FOR VALUES FROM (20000) TO (30000);
INSERT INTO p SELECT i, vec(i, 12), i % 4, vec(i, 12) FROM generate_series(1, 8999) AS i;
INSERT INTO p SELECT i, NULL, 0, NULL FROM generate_series(9000, 9010) AS i;
INSERT INTO p SELECT i, vec(i, 12), i % 4, vec(i, 12) FROM generate_series(20001, 20050) AS i;
CREATE INDEX p_l2 ON p USING ivfpq (v, kind) WITH (lists = 20, m = 6);
CREATE INDEX p_ip ON p USING ivfpq (v vector_ip_ops) WITH (lists = 20, m = 6);
CREATE INDEX p_cosine ON p USING ivfpq (v vector_cosine_ops) WITH (lists = 20, m = 6);
CREATE INDEX p_half ON p USING ivfpq (h) WITH (lists = 20, m = 6);
ANALYZE p;
CREATE TABLE q (id bigint, v vector(12), kind int);
INSERT INTO q SELECT i, vec(i, 12, 7), i % 4 FROM generate_series(1, 80) AS i;
INSERT INTO q VALUES (NULL, NULL, 0), (81, NULL, 1);
CREATE FUNCTION all_queries() RETURNS vector[] LANGUAGE sql AS
    'SELECT array_agg(v ORDER BY id) FROM q WHERE v IS NOT NULL';

-- Both functions beside the exact rows of the whole table: how many, with how many equal distances,
-- and how many lead to a row that has the distance.
CREATE FUNCTION compare(i regclass, o text, column_name text DEFAULT 'v', k int DEFAULT 10, condition text DEFAULT NULL,
                        on_equal text[] DEFAULT NULL)
    RETURNS TABLE (function text, rows bigint, expected bigint, same bigint, sound bigint) LANGUAGE plpgsql AS $$
DECLARE
    distance text := format('(p.%I OPERATOR(public.%s) q.v::text::%s)::real', column_name, o,
                            CASE column_name WHEN 'h' THEN 'halfvec' ELSE 'vector' END);
BEGIN
    EXECUTE format('CREATE TEMP TABLE exact AS
        SELECT q.id, n.* FROM q, LATERAL
            (SELECT row_number() OVER (ORDER BY d) AS rank, d FROM
                (SELECT %1$s AS d FROM p WHERE %2$I IS NOT NULL AND (%3$s) AND (%4$s)) AS s ORDER BY d LIMIT %5$s) AS n
        WHERE q.v IS NOT NULL', distance, column_name, coalesce(condition, 'true'),
        coalesce((SELECT string_agg(format('p.%1$I = q.%1$I', e), ' AND ') FROM unnest(on_equal) AS e), 'true'), k);
    CREATE TEMP TABLE found AS SELECT 'knn_join' AS f, j.query_key AS id, j.rank, j.key, NULL::tid AS place,
        NULL::oid AS leaf, j.distance FROM knn_join('q', 'id', 'v', i, 'id', k, NULL, condition, on_equal) AS j;
    IF on_equal IS NULL THEN
        INSERT INTO found SELECT 'knn_search', s.query, s.rank, NULL, s.ctid, s.tableoid, s.distance
        FROM knn_search(i, all_queries(), k, NULL, condition) AS s;
    END IF;
    CREATE TEMP TABLE all_p AS SELECT *, tableoid AS leaf, ctid AS place FROM p;
    RETURN QUERY EXECUTE format('SELECT f, count(*), (SELECT count(*) FROM exact), count(e.d) FILTER (WHERE e.d = distance),
            count(*) FILTER (WHERE %s = distance)
        FROM (SELECT found.*, all_p AS p FROM found JOIN all_p ON all_p.id = found.key UNION ALL
              SELECT found.*, all_p FROM found JOIN all_p ON all_p.leaf = found.leaf AND all_p.place = found.place) AS found
            LEFT JOIN exact AS e USING (id, rank) JOIN q USING (id)
        GROUP BY f ORDER BY f', replace(distance, '(p.', '((p).'));
    DROP TABLE exact, found, all_p;
END
$$;

\qecho exact, as over the whole table
SET ivfpq.target_recall = 1;
SELECT * FROM compare('p_l2', '<->');
SELECT * FROM compare('p_ip', '<#>');
SELECT * FROM compare('p_cosine', '<=>');
SELECT * FROM compare('p_half', '<->', 'h');
SELECT * FROM compare('p_l2', '<->', k => 200);
\qecho conditions, also those that leave one partition, or none
SELECT * FROM compare('p_l2', '<->', condition => 'kind = 1');
SELECT * FROM compare('p_l2', '<->', condition => 'id > 20000');
SELECT * FROM compare('p_l2', '<->', condition => 'p.id BETWEEN 2990 AND 3010');
SELECT * FROM compare('p_l2', '<->', on_equal => ARRAY['kind']);
SELECT count(*) FROM knn_search('p_l2', all_queries(), 3, NULL, 'id > 25000');
RESET ivfpq.target_recall;

\qecho with the usual effort: k rows for each query, sound ones, and nearly all of the nearest
SELECT i, function, rows, expected, same >= 0.85 * expected AS near, sound
FROM (VALUES ('p_l2', '<->', 'v'), ('p_ip', '<#>', 'v'), ('p_cosine', '<=>', 'v'), ('p_half', '<->', 'h')) AS x (i, o, c),
    compare(i, o, c);
-- a row a query, each row once, in order, ranks without a gap
SELECT count(*), count(DISTINCT (query, tableoid, ctid)), min(rank), max(rank), bool_and(distance >= before)
FROM (SELECT *, lag(distance, 1, 0) OVER (PARTITION BY query ORDER BY rank) AS before
      FROM knn_search('p_l2', all_queries(), 20)) AS s;
-- one query, which goes by scans; and probes
SELECT s.rank, s.tableoid, p.id, s.distance = (p.v <-> vec(20007, 12))::real AS sound
FROM knn_search('p_l2', ARRAY[vec(20007, 12)], 1) AS s JOIN p ON p.tableoid = s.tableoid AND p.ctid = s.ctid;
SELECT count(*), count(DISTINCT query) FROM knn_search('p_l2', all_queries(), 10, 1);
SELECT count(*) FROM knn_search('p_half', '{"[1,2,3,4,5,6,7,8,9,10,11,12]"}', 4);
-- more rows than there are
SELECT count(*), count(DISTINCT (tableoid, ctid)) FROM knn_search('p_l2', ARRAY[vec(1, 12)], 20000);

\qecho little memory: one partition at a time, each for all rows: nearly the same
CREATE TABLE kept AS SELECT * FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 10);
SET maintenance_work_mem = '1MB';
SELECT count(*), count(DISTINCT (query_key, key)), count(*) FILTER (WHERE (query_key, key) IN (SELECT query_key, key FROM kept)) > 720 AS same
FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 10);
SELECT error_of($$SELECT count(*) FROM knn_search('p_l2', ARRAY[vec(1, 12)], 100000)$$);
RESET maintenance_work_mem;

\qecho an index of a part of the tree, and of a leaf
SELECT count(*), min(p.id) >= 6000 AS inside, count(DISTINCT s.tableoid)
FROM knn_search((SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'p_nested'::regclass
                 AND indexrelid::regclass::text ~ '_v_kind_'), all_queries(), 10) AS s
    JOIN p ON p.tableoid = s.tableoid AND p.ctid = s.ctid;
SELECT count(*), count(DISTINCT tableoid), min(tableoid::text) FROM knn_search('p_first_v_kind_idx', all_queries(), 10);

\qecho a graph
SET ivfpq.target_recall = 1;
CREATE TABLE graph AS SELECT * FROM knn_graph('p', 'id', 'v', 3, method => 'ivfpq');
SELECT count(*), count(DISTINCT src), count(*) FILTER (WHERE g.distance = e.distance)
FROM graph AS g JOIN knn_graph('p', 'id', 'v', 3, method => 'exact') AS e USING (src, rank);
RESET ivfpq.target_recall;
DROP TABLE graph;

\qecho changes are seen, rows of others not
BEGIN;
INSERT INTO p VALUES (20060, vec(1, 12, 7), 0), (2, vec(2, 12, 7), 2);
DELETE FROM p WHERE id = 2 AND v <-> vec(2, 12, 7) > 0;
UPDATE p SET id = 20061 WHERE id = 100;
SELECT query_key, key, distance FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 1) WHERE query_key <= 2 ORDER BY 1;
SELECT * FROM compare('p_l2', '<->', k => 1, condition => 'id > 20000');
ROLLBACK;
ALTER TABLE p DETACH PARTITION p_second;
SELECT count(*) FROM knn_search('p_l2', ARRAY[vec(1, 12)], 20000);
ALTER TABLE p ATTACH PARTITION p_second FOR VALUES FROM (3000) TO (6000);
SELECT count(*) FROM knn_search('p_l2', ARRAY[vec(1, 12)], 20000);

\qecho an index that some partitions lack, or have in a state that cannot be used
CREATE INDEX p_parts ON ONLY p USING ivfpq (v) WITH (lists = 20);
SELECT error_of($$SELECT knn_search('p_parts', ARRAY[vec(1, 12)], 3)$$);
DROP INDEX p_parts;
SET ivfpq.target_recall = 1;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'p_second_v_kind_idx'::regclass;
SELECT * FROM compare('p_l2', '<->');
UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'p_second_v_kind_idx'::regclass;
RESET ivfpq.target_recall;
CREATE INDEX p_partial ON p USING ivfpq (v) WHERE id < 100;
CREATE INDEX p_expression ON p USING ivfpq (((v || v)::vector(24)));
CREATE INDEX p_btree ON p (id);
SELECT i, error_of(format('SELECT knn_search(%L, ARRAY[vec(1, 12)], 3)', i))
FROM unnest(ARRAY['p_partial', 'p_expression', 'p_btree', 'p', 'p_nested']) AS i;
DROP INDEX p_partial, p_expression, p_btree;
CREATE TABLE none (id int, v vector(12)) PARTITION BY RANGE (id);
CREATE INDEX none_v ON none USING ivfpq (v);
SELECT count(*) FROM knn_search('none_v', ARRAY[vec(1, 12)], 3);
SELECT count(*) FROM knn_join('q', 'id', 'v', 'none_v', 'id', 3);

\qecho a row for the index of each partition
VACUUM (INDEX_CLEANUP ON) p;
SELECT leaf_index, trained, lists, rows, pending_rows, metric, attributes FROM ivfpq_info('p_l2') ORDER BY leaf_index::text;
SELECT leaf_index, rows FROM ivfpq_info('p_first_v_kind_idx');
SELECT sum(rows) = (SELECT count(*) FROM p WHERE v IS NOT NULL) FROM ivfpq_info('p_l2');
-- as told of each alone
SELECT count(*), count(*) FILTER (WHERE i::text = alone::text) FROM ivfpq_info('p_l2') AS i JOIN LATERAL ivfpq_info(i.leaf_index) AS alone ON true;
SELECT count(*) FROM (SELECT * FROM ivfpq_recall_curve('p_cosine')
    EXCEPT SELECT c.* FROM ivfpq_info('p_cosine') AS i, ivfpq_recall_curve(i.leaf_index) AS c) AS x;
SELECT leaf_index, count(*) > 100 AS curve FROM ivfpq_recall_curve('p_cosine') GROUP BY 1 ORDER BY leaf_index::text;
SELECT * FROM ivfpq_check('p_l2', true);
-- an index of whose rows one is missing, in one partition only
BEGIN;
UPDATE pg_index SET indisready = false, indislive = false WHERE indexrelid = 'p_second_v_kind_idx'::regclass;
INSERT INTO p VALUES (3001, vec(1, 12, 9), 3);
UPDATE pg_index SET indisready = true, indislive = true WHERE indexrelid = 'p_second_v_kind_idx'::regclass;
SELECT problem ~ '^row \(\d+,\d+\) is not in the index' AS missing, leaf_index FROM ivfpq_check('p_l2', true);
ROLLBACK;

\qecho recall over all partitions
SET ivfpq.target_recall = 1;
SELECT ivfpq_recall('p_l2'), ivfpq_recall('p_half', 50, 20), ivfpq_recall('p_cosine', 200, 1);
RESET ivfpq.target_recall;
SELECT ivfpq_recall('p_l2', 300) BETWEEN 0.85 AND 1 AS near, ivfpq_recall('none_v') IS NULL AS none;
-- one list a partition finds less
SET ivfpq.probes = 1;
SELECT ivfpq_recall('p_l2', 300) < 0.9 AS less;
RESET ivfpq.probes;

\qecho learning: each trained partition
SELECT leaf_index, array_agg(k ORDER BY k) FROM ivfpq_learn('p_l2', 'q', 'v') GROUP BY 1 ORDER BY leaf_index::text;
SELECT leaf_index, curve_source, curve_queries FROM ivfpq_info('p_l2') ORDER BY leaf_index::text;
SELECT i, error_of(format('SELECT ivfpq_learn(%L, ''q'', ''v'')', i)) FROM unnest(ARRAY['none_v', 'p_few_v_kind_idx']) AS i;
SELECT * FROM compare('p_l2', '<->', k => 1, condition => 'id > 20000');

\qecho a partition that is a foreign table has no index; its rows are found
CREATE EXTENSION file_fdw;
CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
CREATE FOREIGN TABLE p_foreign PARTITION OF p FOR VALUES FROM (30000) TO (40000) SERVER files
OPTIONS (program $$printf '30001;[1,1,1,1,1,1,1,1,1,1,1,1];1;\\N\n30002;[255,255,255,255,255,255,255,255,255,255,255,255];1;\\N\n'$$,
         delimiter ';');
INSERT INTO q VALUES (900, '[1,1,1,1,1,1,1,1,1,1,1,1]', 1), (901, '[255,255,255,255,255,255,255,255,255,255,255,254]', 1);
SELECT query_key, key, distance FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 1) WHERE query_key >= 900 ORDER BY 1;
SELECT query_key, key, distance FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 1, NULL, 'kind = 1') WHERE query_key >= 900 ORDER BY 1;
SELECT count(*), count(*) FILTER (WHERE leaf_index::text ~ 'foreign') FROM ivfpq_info('p_l2');
SELECT tableoid, distance FROM knn_search('p_l2', '{"[1,1,1,1,1,1,1,1,1,1,1,1]"}', 1);
SET ivfpq.target_recall = 1;
SELECT * FROM compare('p_l2', '<->') WHERE function = 'knn_join';
RESET ivfpq.target_recall;
DELETE FROM q WHERE id >= 900;
DROP FOREIGN TABLE p_foreign;
DROP EXTENSION file_fdw CASCADE;

\qecho rights: those of the partitioned table count
CREATE ROLE regress_partitions;
GRANT USAGE ON SCHEMA ivfpq_test TO regress_partitions;
GRANT SELECT ON q TO regress_partitions;
SET ROLE regress_partitions;
SELECT error_of($$SELECT knn_search('p_l2', ARRAY[vec(1, 12)], 3)$$);
RESET ROLE;
GRANT SELECT (id, v) ON p TO regress_partitions;
SET ROLE regress_partitions;
SELECT error_of($$SELECT knn_search('p_l2', ARRAY[vec(1, 12)], 3)$$),
       error_of($$SELECT knn_join('q', 'id', 'v', 'p_l2', 'kind', 3)$$);
SELECT count(*) FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 3);
SELECT count(*) FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 3, NULL, 'id < 4000');
RESET ROLE;
GRANT SELECT ON p TO regress_partitions;
SET ROLE regress_partitions;
SELECT count(*) FROM knn_search('p_l2', all_queries(), 3);
SELECT error_of($$SELECT knn_search('p_first_v_kind_idx', ARRAY[vec(1, 12)], 3)$$);
RESET ROLE;
\qecho what describes: roles that may read the partitioned table; what keeps VACUUM waiting: the owner of all partitions
SET ROLE regress_partitions;
SELECT count(*) FROM ivfpq_info('p_l2');
SELECT error_of($$SELECT ivfpq_check('p_l2')$$), error_of($$SELECT ivfpq_learn('p_l2', 'q', 'v')$$);
RESET ROLE;
ALTER TABLE p OWNER TO regress_partitions;
SET ROLE regress_partitions;
SELECT error_of($$SELECT ivfpq_check('p_l2')$$);
RESET ROLE;
ALTER TABLE p OWNER TO CURRENT_USER;
GRANT SELECT ON p TO regress_partitions;
\qecho row security of the partitioned table, not of its partitions
ALTER TABLE p ENABLE ROW LEVEL SECURITY;
CREATE POLICY odd ON p TO regress_partitions USING (id % 2 = 1);
ALTER TABLE p_first ENABLE ROW LEVEL SECURITY;
SET ROLE regress_partitions;
SELECT count(*), min(key % 2), count(*) FILTER (WHERE key < 3000) > 0 AS of_first
FROM knn_join('q', 'id', 'v', 'p_l2', 'id', 10);
SELECT count(*), count(*) FILTER (WHERE p.id % 2 = 1) FROM knn_search('p_l2', all_queries(), 10) AS s
    JOIN p ON p.tableoid = s.tableoid AND p.ctid = s.ctid;
SELECT f, error_of(format('SELECT %s(''p_l2'')', f)) FROM unnest(ARRAY['ivfpq_info', 'ivfpq_recall_curve', 'ivfpq_recall']) AS f;
RESET ROLE;

\qecho branches whose distances have no common order: rows of all count
CREATE TABLE by_distance AS SELECT i AS id, (SELECT array_agg((0.573 + 0.004 * sin(i * 7 + j))::real) FROM generate_series(1, 8) AS j)::vector(8) AS v
    FROM generate_series(1, 2000) AS i;
CREATE TABLE by_angle AS SELECT i AS id, (SELECT array_agg((j % 2 + 0.004 * sin(i * 5 + j))::real) FROM generate_series(1, 8) AS j)::vector(8) AS v
    FROM generate_series(1, 2000) AS i;
CREATE INDEX ON by_distance USING ivfpq (v);
CREATE INDEX ON by_angle USING ivfpq (v vector_cosine_ops);
ANALYZE by_distance, by_angle;
CREATE FUNCTION of_both(q vector) RETURNS TABLE (way text, id int, d float8) LANGUAGE sql STABLE AS $$
    SELECT * FROM (SELECT 'distance', id, v <-> q AS d FROM by_distance UNION ALL SELECT 'angle', id, v <=> q FROM by_angle) AS s ORDER BY d LIMIT 10
$$;
SET enable_seqscan = off;
SET enable_sort = off;
SELECT way, count(*), min(d) > 0.2 AND max(d) < 0.4 AS right_ones FROM of_both(array_fill(0.75::real, ARRAY[8])::vector(8)) GROUP BY way;
-- an argument that is null when the query runs
SELECT count(*), count(d), max(d) < 13 AS near FROM (SELECT * FROM (SELECT id, v <-> (SELECT v FROM by_distance WHERE id < 0) AS d FROM by_distance
    UNION ALL SELECT id, v <-> (SELECT array_fill(5::real, ARRAY[8])::vector(8)) FROM by_distance) AS s ORDER BY d LIMIT 10) AS s;
RESET enable_seqscan;
RESET enable_sort;
DROP TABLE by_distance, by_angle;
DROP FUNCTION of_both;

\qecho inner products of partitions whose rows differ in length
CREATE TABLE lengths (id int, v vector(16)) PARTITION BY RANGE (id);
CREATE TABLE lengths_short PARTITION OF lengths FOR VALUES FROM (0) TO (3000);
CREATE TABLE lengths_long PARTITION OF lengths FOR VALUES FROM (3000) TO (9000);
INSERT INTO lengths SELECT i, (SELECT array_agg((x - 128) / CASE WHEN i < 3000 THEN 64.0 ELSE 1 END) FROM unnest(vec(i, 16)::real[]) AS x)::vector
    FROM generate_series(0, 8999) AS i;
CREATE INDEX ON lengths USING ivfpq (v vector_ip_ops) WITH (lists = 20, m = 2);
ANALYZE lengths;
SET enable_seqscan = off;
SET enable_sort = off;
CREATE FUNCTION found_of(q vector) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM (SELECT v <#> q AS d FROM lengths ORDER BY v <#> q LIMIT 10) AS s
    WHERE d <= (SELECT d FROM (SELECT (v <#> q) + 0 AS d FROM lengths ORDER BY (v <#> q) + 0 LIMIT 1 OFFSET 9) AS e)
$$;
SELECT sum(found_of((SELECT array_agg(x - 128) FROM unnest(vec(i, 16, 9)::real[]) AS x)::vector)) / 500.0 >= 0.94 AS enough
    FROM generate_series(1, 50) AS i;
RESET enable_seqscan;
RESET enable_sort;
DROP FUNCTION found_of;
DROP TABLE lengths;

\qecho twenty copies of each row, spread over partitions: each has some of the nearest, whose codes err by more than the copies differ
CREATE TABLE copies (id int, v vector(16)) PARTITION BY HASH (id);
SELECT format('CREATE TABLE copies_%s PARTITION OF copies FOR VALUES WITH (MODULUS 8, REMAINDER %s)', i, i) FROM generate_series(0, 7) AS i \gexec
INSERT INTO copies SELECT i, (SELECT array_agg(x + (y - 128) / 512) FROM unnest(vec(i % 800, 16)::real[], vec(i, 16, 5)::real[]) AS s (x, y))::vector
    FROM generate_series(0, 15999) AS i;
CREATE INDEX ON copies USING ivfpq (v) WITH (lists = 20, m = 2);
ANALYZE copies;
SET enable_seqscan = off;
SET enable_sort = off;
CREATE FUNCTION found_of(q vector) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM (SELECT v <-> q AS d FROM copies ORDER BY v <-> q LIMIT 10) AS s
    WHERE d <= (SELECT d FROM (SELECT (v <-> q) + 0 AS d FROM copies ORDER BY (v <-> q) + 0 LIMIT 1 OFFSET 9) AS e)
$$;
SELECT sum(found_of((SELECT array_agg(x + (y - 128) / 512) FROM unnest(vec(i, 16)::real[], vec(i, 16, 7)::real[]) AS s (x, y))::vector)) / 500.0 >= 0.9 AS enough
    FROM generate_series(1, 50) AS i;
RESET enable_seqscan;
RESET enable_sort;
DROP FUNCTION found_of;
DROP TABLE copies;

DROP TABLE p, q, kept, none CASCADE;
DROP FUNCTION all_queries, compare;
REVOKE USAGE ON SCHEMA ivfpq_test FROM regress_partitions;
DROP ROLE regress_partitions;
