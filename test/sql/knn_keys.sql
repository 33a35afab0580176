-- Keys of type uuid and text: what the functions for integers give, with the other name of each row.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE DOMAIN name_of_row AS varchar;
CREATE TABLE t (id int, u uuid, x text, n name_of_row, v vector(8), kind int);
CREATE FUNCTION key(i int) RETURNS uuid LANGUAGE sql IMMUTABLE AS 'SELECT md5(i::text)::uuid';
INSERT INTO t SELECT i, key(i), CASE WHEN i % 700 = 0 THEN repeat('long ', 700) || i ELSE 'ä ' || i END, i, vec(i, 8), i % 3
FROM generate_series(1, 2500) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 20);
CREATE TABLE q AS SELECT i AS id, key(i) AS u, 'q' || i AS x, vec(i, 8, 3)::vector(8) AS v, i % 3 AS kind FROM generate_series(1, 60) AS i;
INSERT INTO q VALUES (0, key(0), 'q0', NULL, 0);

\qecho knn_join_text: the rows of knn_join
SET ivfpq.candidates = 2500;
CREATE FUNCTION joined(query_key text, key text, more text) RETURNS TABLE (rows bigint, other bigint) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT count(*), count(*) FILTER (WHERE (i.key, i.distance) IS DISTINCT FROM (s.key, s.distance))
        FROM knn_join(''q'', ''id'', ''v'', ''t_v'', ''id'', 7, 20%3$s) AS i FULL JOIN
            (SELECT q.id AS query_key, j.rank, t.id AS key, j.distance FROM knn_join_text(''q'', %1$L, ''v'', ''t_v'', %2$L, 7, 20%3$s) AS j
                JOIN q ON q.%1$I::text = j.query_key JOIN t ON t.%2$I::text = j.key) AS s USING (query_key, rank)', query_key, key, more);
END $$;
SELECT a, b, joined.* FROM unnest('{u,x,id}'::text[]) AS a, unnest('{u,x,n,id}'::text[]) AS b, joined(a, b, '');
-- by a query
SELECT * FROM joined('u', 'u', ', on_equal => ''{kind}''');
SELECT * FROM joined('x', 'x', ', condition => ''kind > 0''');
-- few queries at a time
SET maintenance_work_mem = '1MB';
SELECT * FROM joined('u', 'x', '');
RESET maintenance_work_mem;
RESET ivfpq.candidates;
INSERT INTO t VALUES (9999, NULL, NULL, NULL, vec(1, 8, 3));
SELECT query_key, rank, key IS NULL, distance FROM knn_join_text('q', 'x', 'v', 't_v', 'x', 1) WHERE query_key = 'q1';
DELETE FROM t WHERE id = 9999;

\qecho graphs: the edges of knn_graph
-- Rows that one graph has and the other has not.
CREATE FUNCTION differences(first text, second text, k text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    EXECUTE format('WITH a AS (SELECT src, rank, dst, distance FROM %s), b AS (SELECT s.id AS src, g.rank, d.id AS dst, g.distance FROM %s AS g
            JOIN t AS s ON s.%3$I::text = g.src::text JOIN t AS d ON d.%3$I::text = g.dst::text)
        SELECT count(*) FROM ((TABLE a EXCEPT ALL TABLE b) UNION ALL (TABLE b EXCEPT ALL TABLE a)) AS s', first, second, k) INTO found;
    RETURN found;
END $$;
SELECT m, k, differences(format('knn_graph(''t'', ''id'', ''v'', 6, %L)', m), format('knn_graph_text(''t'', %L, ''v'', 6, %L)', k, m), k)
FROM unnest('{exact,nn_descent,ivfpq}'::text[]) AS m, unnest('{u,x,n,id}'::text[]) AS k;
SELECT edges, recall FROM knn_graph_create('g', 't', 'id', 'v', 6, 'exact');
SELECT edges, recall FROM knn_graph_create('g_u', 't', 'u', 'v', 6, 'exact');
SELECT edges, recall FROM knn_graph_create('"G x"', 't', 'x', 'v', 6, 'exact');
SELECT attrelid::regclass, attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid IN ('g'::regclass, 'g_u'::regclass, '"G x"'::regclass) AND attname IN ('src', 'dst') ORDER BY 1, 2;
SELECT differences('g', 'g_u', 'u'), differences('g', '"G x"', 'x');
SELECT knn_graph_recall('g_u', 't', 'u', 'v', 50), knn_graph_recall('"G x"', 't', 'x', 'v', 50);

\qecho components and paths
CREATE TABLE near AS SELECT * FROM g WHERE rank = 1;
CREATE TABLE near_u AS SELECT * FROM g_u WHERE rank = 1;
SELECT count(*), count(DISTINCT component) FROM knn_components('near');
SELECT count(*), count(DISTINCT component), bool_and(component = least) FROM (SELECT *, min(node) OVER (PARTITION BY component) AS least FROM knn_components_text('near_u')) AS c;
SELECT count(*) FROM knn_components('near') AS i JOIN t ON t.id = i.node JOIN knn_components_text('near_u') AS s ON s.node = t.u::text
    JOIN t AS c ON c.id = i.component JOIN knn_components_text('near_u') AS same ON same.node = c.u::text WHERE same.component <> s.component;
CREATE FUNCTION path_lengths(OUT i bigint, OUT u bigint, OUT x bigint, OUT same boolean) LANGUAGE sql AS $$
    SELECT (SELECT count(*) FROM knn_path('g', 1, 2000)), (SELECT count(*) FROM knn_path('g_u', key(1)::text, key(2000)::text)),
        (SELECT count(*) FROM knn_path('"G x"', 'ä 1', 'ä 2000', true)) - (SELECT count(*) FROM knn_path('g', 1, 2000, true)),
        (SELECT max(distance) FROM knn_path('g', 1, 2000)) = (SELECT max(distance) FROM knn_path('g_u', key(1)::text, key(2000)::text))
$$;
SELECT * FROM path_lengths();
SELECT step, node, round(distance::numeric, 3) FROM knn_path('g_u', key(7)::text, (SELECT dst::text FROM g_u WHERE src = key(7) AND rank = 1));
-- edges in a file
CREATE TABLE wide AS SELECT * FROM knn_graph('t', 'id', 'v', 30, 'exact');
CREATE TABLE wide_u AS SELECT s.u AS src, w.rank, d.u::text AS dst, w.distance FROM wide AS w JOIN t AS s ON s.id = w.src JOIN t AS d ON d.id = w.dst;
SET maintenance_work_mem = '1MB';
SELECT (SELECT count(*) FROM knn_path('wide', 1, 2000)) = (SELECT count(*) FROM knn_path('wide_u', key(1)::text, key(2000)::text)),
    (SELECT count(DISTINCT component) FROM knn_components('wide')) = (SELECT count(DISTINCT component) FROM knn_components_text('wide_u'));

\qecho append: in memory and by parts
CREATE FUNCTION appended(OUT i text, OUT u text, OUT x text, OUT other_u bigint, OUT other_x bigint) LANGUAGE sql AS $$
    SELECT knn_graph_append('g', 't', 'id', 'v')::text, knn_graph_append('g_u', 't', 'u', 'v')::text, knn_graph_append('"G x"', 't', 'x', 'v')::text,
        differences('g', 'g_u', 'u'), differences('g', '"G x"', 'x')
$$;
DELETE FROM t WHERE id % 100 = 1;
UPDATE t SET v = vec(id + 70000, 8) WHERE id % 100 = 2;
INSERT INTO t SELECT i, key(i), 'new ' || i, 'new ' || i, vec(i, 8) FROM generate_series(3001, 3020) AS i;
SELECT * FROM appended();
RESET maintenance_work_mem;
DELETE FROM t WHERE id % 100 = 3;
INSERT INTO t SELECT i, key(i), 'new ' || i, 'new ' || i, vec(i, 8) FROM generate_series(3021, 3040) AS i;
SELECT * FROM appended();

\qecho merge
CREATE TABLE a AS SELECT * FROM t WHERE id % 2 = 0;
CREATE TABLE b AS SELECT * FROM t WHERE id % 2 = 1;
CREATE TABLE g_a AS SELECT * FROM knn_graph('a', 'id', 'v', 6, 'exact');
CREATE TABLE g_b AS SELECT * FROM knn_graph('b', 'id', 'v', 6, 'exact');
CREATE TABLE x_a AS SELECT src::uuid AS src, rank, dst::uuid AS dst, distance FROM knn_graph_text('a', 'u', 'v', 6, 'exact');
CREATE TABLE x_b AS SELECT * FROM knn_graph_text('b', 'u', 'v', 6, 'exact');
SELECT differences('knn_graph_merge(''g_a'', ''a'', ''g_b'', ''b'', ''id'', ''v'')', 'knn_graph_merge_text(''x_a'', ''a'', ''x_b'', ''b'', ''u'', ''v'')', 'u');

\qecho mistakes
SELECT error_of($$SELECT knn_join('q', 'u', 'v', 't_v', 'id', 1)$$), error_of($$SELECT knn_join('q', 'id', 'v', 't_v', 'x', 1)$$);
SELECT error_of($$SELECT knn_join_text('q', 'v', 'v', 't_v', 'id', 1)$$), error_of($$SELECT knn_graph_text('t', 'v', 'v', 1)$$);
SELECT error_of($$SELECT knn_graph('t', 'u', 'v', 1)$$), error_of($$SELECT knn_components('g_u')$$);
SELECT error_of($$SELECT knn_path('g_u', 'none', key(2)::text)$$), error_of($$SELECT knn_path('g', 1, 5000)$$), error_of($$SELECT knn_path('g', '2', '5000')$$);
SELECT error_of($$SELECT knn_graph_append('g', 't', 'u', 'v')$$);
SELECT error_of($$SELECT knn_graph_merge_text('g_u', 't', 'x_a', 'a', 'u', 'v')$$) ~ '^23505 key [0-9a-f-]{36} is in both tables';
INSERT INTO t SELECT 5000, key(2), 'ä 4', 'ä 4', vec(5000, 8);
SELECT error_of($$SELECT knn_graph_text('t', 'u', 'v', 1)$$), error_of($$SELECT knn_graph_text('t', 'x', 'v', 1)$$);
CREATE TABLE long AS SELECT repeat('long ', 700) || i AS x, vec(i, 8) AS v FROM generate_series(1, 400) AS i;
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT knn_graph_text('long', 'x', 'v', 1)$$) ~ '^54000 keys do not fit into maintenance_work_mem \| There is room for 29\d of them';
-- Keys that a collation takes for equal; where PostgreSQL is built without ICU, there are none.
CREATE FUNCTION refuses_folded_keys() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    CREATE TABLE folded (src text COLLATE any_case, rank int, dst text, distance real);
    RETURN error_of('SELECT knn_components_text(''folded'')') = '0A000 column "src" of graph "folded" has a nondeterministic collation | It does not tell all keys apart.';
EXCEPTION WHEN feature_not_supported OR undefined_object THEN
    RETURN true;
END $$;
SELECT refuses_folded_keys();
DROP TABLE IF EXISTS folded;
DROP COLLATION IF EXISTS any_case;

DROP TABLE t, q, g, g_u, "G x", near, near_u, wide, wide_u, a, b, g_a, g_b, x_a, x_b, long CASCADE;
DROP FUNCTION key, joined, differences, path_lengths, appended, refuses_folded_keys;
DROP DOMAIN name_of_row;
