-- similar_pairs, duplicate_groups and knn_join with max_distance: what SQL finds by comparing all rows.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE SCHEMA similar_pairs_test;
SET search_path = similar_pairs_test, public, ivfpq_test;
SET pgwarp.build_executor = cpu;
-- Every third row is a copy of another, or differs from it in a few elements.
CREATE FUNCTION near(i int) RETURNS vector LANGUAGE sql IMMUTABLE RETURN
    CASE WHEN i % 3 = 0 AND i > 3 THEN vec(i / 2, 12) + (ARRAY[i % 7, 0, i % 5, 0, 0, 0, 0, 0, 0, 0, 0, i % 2])::real[]::vector
         ELSE vec(i, 12) END;
CREATE TABLE t (id int PRIMARY KEY, u uuid, x text, v vector(12), h halfvec(12), written int);
INSERT INTO t SELECT i, md5(i::text)::uuid, 'row ' || i, near(i), near(i)::halfvec, (i * 37) % 101 FROM generate_series(1, 400) AS i;
INSERT INTO t SELECT i, md5(i::text)::uuid, 'row ' || i, near(1), near(1)::halfvec, i % 3 FROM generate_series(801, 803) AS i;
INSERT INTO t VALUES (1001, md5('1001')::uuid, 'none', NULL, NULL, 0), (1002, md5('1002')::uuid, 'zero', array_fill(0, '{12}'::int[])::real[]::vector, NULL, 0);

\qecho the pairs that a join of the table with itself finds
CREATE FUNCTION compare(metric text, operator text, r float8, key text DEFAULT 'id', c text DEFAULT 'v', slack float8 DEFAULT 0, more text DEFAULT '')
    RETURNS TABLE (pairs bigint, missing bigint, invented bigint, other_distance bigint) LANGUAGE plpgsql AS $$
DECLARE
    f text := CASE WHEN key = 'id' THEN 'similar_pairs' ELSE 'similar_pairs_text' END;
    k text := CASE WHEN key = 'id' THEN 'id' ELSE key || '::text COLLATE "C"' END;
BEGIN
    RETURN QUERY EXECUTE format('WITH keyed AS (SELECT %5$s AS k, %1$I AS v FROM t WHERE %1$I IS NOT NULL),
        s AS (SELECT one.k AS a, other.k AS b, one.v %2$s other.v AS distance FROM keyed AS one JOIN keyed AS other ON one.k < other.k),
        p AS (SELECT * FROM %4$s(''t'', %6$L, %1$L, %3$s, metric => %7$L %9$s))
        SELECT count(p.a), count(*) FILTER (WHERE p.a IS NULL), count(*) FILTER (WHERE s.a IS NULL),
            count(*) FILTER (WHERE abs(p.distance - s.distance) > 1e-6 * abs(s.distance) + %8$s)
        FROM (SELECT * FROM s WHERE distance <= %3$s) AS s FULL JOIN p USING (a, b)', c, operator, r, f, k, key, metric, slack, more);
END $$;
SELECT r, c.* FROM unnest('{0.5,3.1,9.01,200.5}'::float8[]) AS r, compare('l2', '<->', r) AS c;
-- a distance that is the limit is within it
SELECT c.* FROM compare('l2', '<->', 3) AS c;
SELECT r, c.* FROM unnest('{0.5,4.5,300.5}'::float8[]) AS r, compare('l1', '<+>', r) AS c;
SELECT r, c.* FROM unnest('{-330000.5,-400000.5}'::float8[]) AS r, compare('inner_product', '<#>', r) AS c;
SELECT r, c.* FROM unnest('{0.00005,0.0123,0.0777}'::float8[]) AS r, compare('cosine', '<=>', r, slack => 1e-6) AS c;
SELECT key, c.* FROM unnest('{u,x}'::text[]) AS key, compare('l2', '<->', 9.01, key) AS c;
SELECT c.* FROM compare('l2', '<->', 9.01, c => 'h') AS c;
SELECT c.* FROM compare('ip', '<#>', -390000.5, 'u', 'h') AS c;

\qecho order of keys, rows that are left out
SELECT bool_and(a < b), count(*), count(DISTINCT (a, b)) FROM similar_pairs('t', 'id', 'v', 9.01);
SET client_min_messages = notice;
SELECT count(*) FROM similar_pairs('t', 'id', 'v', 0.01, 'cosine');
SET client_min_messages = warning;
CREATE TABLE nothing (id int, v vector(3));
SELECT count(*) FROM similar_pairs('nothing', 'id', 'v', 1);
INSERT INTO nothing VALUES (1, '[1,2,3]');
SELECT count(*) FROM similar_pairs('nothing', 'id', 'v', 1);
SELECT count(*) FROM duplicate_groups('nothing', 'id', 'v', 1);
INSERT INTO nothing VALUES (2, '[1,2,3]'), (3, '[3e38,3e38,3e38]'), (4, '[-3e38,-3e38,-3e38]');
SELECT * FROM similar_pairs('nothing', 'id', 'v', 1e300);
-- more pairs than memory has room for at a time
CREATE TABLE equal AS SELECT i AS id, '[1,2,3]'::vector(3) AS v FROM generate_series(1, 600) AS i;
SET maintenance_work_mem = '1MB';
SELECT count(*), count(DISTINCT (a, b)), min(a), max(b), max(distance) FROM similar_pairs('equal', 'id', 'v', 1);
\qecho rows that do not fit into memory
CREATE TABLE long AS SELECT i AS id, (ARRAY(SELECT (hashint8extended(CASE WHEN i % 4 = 0 THEN i / 2 ELSE i END * 20000 + d, 1) & 15)::real
    FROM generate_series(1, 150) AS d) || (i % 3)::real)::vector(151) AS v FROM generate_series(1, 2600) AS i;
CREATE TABLE small AS SELECT * FROM similar_pairs('long', 'id', 'v', 40.5);
CREATE TABLE small_groups AS SELECT * FROM duplicate_groups('long', 'id', 'v', 40.5, 'central');
RESET maintenance_work_mem;
SELECT count(*), count(*) FILTER (WHERE s.a IS NULL OR l.a IS NULL)
FROM small AS s FULL JOIN similar_pairs('long', 'id', 'v', 40.5) AS l USING (a, b, distance);
SELECT count(*), count(*) FILTER (WHERE s.size IS NULL OR l.size IS NULL)
FROM small_groups AS s FULL JOIN duplicate_groups('long', 'id', 'v', 40.5, 'central') AS l USING (group_number, size, representative_key, row_key, distance);
-- enough rows for a filter that all parts share
CREATE TABLE wide AS SELECT i AS id, ARRAY(SELECT (hashint8extended(CASE WHEN i % 9 = 0 THEN i / 2 ELSE i END * 20000 + d, 2) & 15)::real / d
    FROM generate_series(1, 64) AS d)::vector(64) + array_fill((i % 3)::real / 10, '{64}'::int[])::vector AS v FROM generate_series(1, 14000) AS i;
CREATE TABLE whole AS SELECT * FROM similar_pairs('wide', 'id', 'v', 1.7);
SET maintenance_work_mem = '8MB';
SELECT count(*), count(*) FILTER (WHERE w.a IS NULL OR p.a IS NULL)
FROM similar_pairs('wide', 'id', 'v', 1.7) AS p FULL JOIN whole AS w USING (a, b, distance);
RESET maintenance_work_mem;

\qecho by an index
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 10);
CREATE INDEX t_h ON t USING ivfpq (h halfvec_cosine_ops) WITH (lists = 10);
SELECT r, c.* FROM unnest('{0.5,9.01,200.5}'::float8[]) AS r, compare('l2', '<->', r, more => ', method => ''ivfpq'', recall => 1') AS c;
SELECT c.* FROM compare('l2', '<->', 9.01, 'x', more => ', method => ''ivfpq'', recall => 1') AS c;
SELECT c.* FROM compare('cosine', '<=>', 0.0123, c => 'h', more => ', method => ''ivfpq'', recall => 1', slack => 1e-6) AS c;
-- with less recall: no pair that is none, most of them
SELECT count(*) FILTER (WHERE e.a IS NULL) AS invented, count(*) FILTER (WHERE p.a IS NOT NULL) >= 0.85 * count(*) AS most
FROM similar_pairs('t', 'id', 'v', 9.01, method => 'ivfpq', recall => 0.9) AS p FULL JOIN similar_pairs('t', 'id', 'v', 9.01) AS e USING (a, b);
SHOW ivfpq.target_recall;
SELECT error_of($$SELECT similar_pairs('t', 'id', 'v', 1, 'ip', 'ivfpq')$$);

\qecho groups: the components of the pairs
CREATE FUNCTION components(r float8) RETURNS TABLE (id bigint, component bigint) LANGUAGE sql AS $$
    WITH RECURSIVE p AS MATERIALIZED (SELECT one.id::bigint AS a, other.id::bigint AS b FROM t AS one JOIN t AS other ON one.id <> other.id AND one.v <-> other.v <= r),
        reached AS (SELECT a AS id, a AS other FROM p UNION SELECT r.id, p.b FROM reached AS r JOIN p ON p.a = r.other)
    SELECT id, min(other) FROM reached GROUP BY id $$;
CREATE FUNCTION compare_groups(r float8) RETURNS TABLE (rows bigint, groups bigint, largest bigint, other bigint, other_representative bigint, other_distance bigint)
LANGUAGE sql AS $$
    SELECT count(*), count(DISTINCT g.group_number), max(g.size), count(*) FILTER (WHERE c.id IS NULL OR g.row_key IS NULL),
        count(*) FILTER (WHERE g.representative_key <> c.component), count(*) FILTER (WHERE abs(g.distance - (one.v <-> other.v)) > 1e-4)
    FROM duplicate_groups('t', 'id', 'v', r) AS g FULL JOIN components(r) AS c ON c.id = g.row_key
        LEFT JOIN t AS one ON one.id = g.row_key LEFT JOIN t AS other ON other.id = g.representative_key $$;
SELECT r, c.* FROM unnest('{0.5,9.01,150.5,175.5}'::float8[]) AS r, compare_groups(r) AS c;
CREATE TABLE groups AS SELECT * FROM duplicate_groups('t', 'id', 'v', 9.01);
-- numbered by their first keys, with their sizes
SELECT count(*) FILTER (WHERE number <> group_number), count(*) FILTER (WHERE rows <> size), min(group_number), max(group_number) = count(*)
FROM (SELECT group_number, rank() OVER (ORDER BY min(row_key)) AS number, count(*) AS rows, min(size) AS size FROM groups GROUP BY group_number) AS g;
-- one representative a group, which is in it, at distance 0
SELECT count(*) FILTER (WHERE n <> 1), count(*) FILTER (WHERE d <> 0) FROM
    (SELECT count(DISTINCT representative_key) AS n, max(distance) FILTER (WHERE row_key = representative_key) AS d FROM groups GROUP BY group_number) AS g;
-- central: nearest to the mean
SELECT count(*) FILTER (WHERE d <> least) AS other FROM
    (SELECT g.representative_key = g.row_key AS chosen, t.v <-> m.mean AS d, min(t.v <-> m.mean) OVER (PARTITION BY g.group_number) AS least
     FROM duplicate_groups('t', 'id', 'v', 9.01, 'central') AS g JOIN t ON t.id = g.row_key
     JOIN (SELECT group_number, avg(v) AS mean FROM groups JOIN t ON id = row_key GROUP BY 1) AS m USING (group_number)) AS s WHERE chosen;
-- by an expression: the first of each group in its order
CREATE FUNCTION compare_order(expression text, key text DEFAULT 'id') RETURNS TABLE (groups bigint, other bigint) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('WITH best AS (SELECT DISTINCT ON (group_number) group_number, t.%2$I::text AS best FROM groups JOIN t ON id = row_key ORDER BY group_number, %1$s),
            chosen AS (SELECT DISTINCT group_number, representative_key FROM duplicate_groups_text(''t'', %2$L, ''v'', 9.01, %3$L))
        SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (SELECT FROM chosen WHERE representative_key = best)) FROM best', expression, key, expression);
END $$;
SELECT e, k, c.* FROM unnest('{id DESC,"written, id","written % 7 DESC NULLS LAST, u"}'::text[]) AS e, unnest('{id,u,x}'::text[]) AS k, compare_order(e, k) AS c;
SELECT count(*), count(*) FILTER (WHERE representative_key <> last) FROM
    (SELECT representative_key, max(row_key) OVER (PARTITION BY group_number) AS last FROM duplicate_groups('t', 'id', 'v', 9.01, 'id DESC')) AS g;
-- keys of other types have the same groups
SELECT k, count(*), count(*) FILTER (WHERE g.members IS NULL OR x.members IS NULL) AS other FROM unnest('{id,u,x}'::text[]) AS k,
    LATERAL (SELECT array_agg(t.id ORDER BY t.id) AS members FROM duplicate_groups_text('t', k, 'v', 9.01) AS d
             JOIN t ON d.row_key = CASE k WHEN 'u' THEN u::text WHEN 'x' THEN x ELSE id::text END GROUP BY group_number) AS x
    FULL JOIN (SELECT array_agg(row_key::int ORDER BY row_key) AS members FROM groups GROUP BY group_number) AS g ON true AND g.members = x.members
GROUP BY k ORDER BY k;
-- report, then delete
BEGIN;
WITH gone AS (DELETE FROM t USING duplicate_groups('t', 'id', 'v', 9.01) AS g WHERE t.id = g.row_key AND g.row_key <> g.representative_key RETURNING 1) SELECT count(*) FROM gone;
SELECT count(*) FROM similar_pairs('t', 'id', 'v', 9.01);
ROLLBACK;

\qecho many equal rows: one of them stands for all
CREATE TABLE copies AS SELECT i AS id, CASE WHEN i % 5 < 3 THEN vec(0, 12) WHEN i % 5 = 3 THEN vec(i % 40, 12) ELSE near(i) END AS v FROM generate_series(1, 3000) AS i;
CREATE FUNCTION compare_copies(metric text, operator text, r float8, way text) RETURNS TABLE (rows bigint, groups bigint, largest bigint, other bigint)
LANGUAGE plpgsql AS $$
BEGIN
    -- by joins of the vectors that differ: a row is near to its copies, too, where it is near to itself
    RETURN QUERY EXECUTE format('WITH RECURSIVE d AS MATERIALIZED (SELECT min(id) AS a, count(*) AS n, array_agg(id) AS ids, v FROM copies GROUP BY v),
            p AS MATERIALIZED (SELECT one.a, other.a AS b FROM d AS one JOIN d AS other ON one.v %2$s other.v <= %3$s AND (one.a <> other.a OR one.n > 1)),
            reached AS (SELECT a, b FROM p UNION SELECT r.a, p.b FROM reached AS r JOIN p ON p.a = r.b),
            c AS (SELECT a, least(a, min(b)) AS first FROM reached GROUP BY a),
            truth AS (SELECT unnest(ids) AS id, first, sum(n) OVER (PARTITION BY first) AS size FROM c JOIN d USING (a)),
            g AS (SELECT row_key, size, representative_key, distance, min(row_key) OVER (PARTITION BY group_number) AS first
                  FROM duplicate_groups(''copies'', ''id'', ''v'', %3$s, %4$L, %1$L))
        SELECT count(row_key), count(DISTINCT g.first), max(g.size), count(*) FILTER (WHERE g.first IS DISTINCT FROM t.first OR g.size <> t.size
            OR abs(distance - (one.v %2$s other.v)) > 1e-5 * abs(distance) + 1e-4 OR (%4$L = ''first'' AND representative_key <> t.first))
        FROM truth AS t FULL JOIN g ON g.row_key = t.id LEFT JOIN copies AS one ON one.id = row_key LEFT JOIN copies AS other ON other.id = representative_key',
        metric, operator, r, way);
END $$;
SELECT c.* FROM compare_copies('l2', '<->', 0.5, 'first') AS c;
SELECT c.* FROM compare_copies('l2', '<->', 9.01, 'central') AS c;
SELECT c.* FROM compare_copies('l1', '<+>', 20.5, 'id DESC') AS c;
-- equal rows may be beyond the limit from each other
SELECT r, c.* FROM unnest('{-380000.5,-374000.5,-300000.5}'::float8[]) AS r, compare_copies('inner_product', '<#>', r, 'first') AS c;
SET maintenance_work_mem = '1MB';
CREATE TABLE copied AS SELECT i AS id, CASE WHEN i % 3 = 0 THEN v ELSE ARRAY[i, 1]::real[]::vector || array_fill(0, '{149}'::int[])::real[]::vector END AS v
FROM generate_series(1, 3000) AS i, (SELECT v FROM long WHERE id = 7) AS s;
SELECT count(*), count(DISTINCT group_number), max(size), max(distance) FROM duplicate_groups('copied', 'id', 'v', 0.5);
RESET maintenance_work_mem;

\qecho a row with more others than a search by the index has memory for
CREATE TABLE star (id int, v vector(3));
INSERT INTO star SELECT i, CASE WHEN i = 77 THEN '[1000,0,0]' ELSE ARRAY[1, i % 7, i % 11]::real[]::vector END FROM generate_series(1, 7000) AS i;
CREATE INDEX ON star USING ivfpq (v vector_ip_ops) WITH (lists = 10);
SET maintenance_work_mem = '1MB';
SELECT regexp_replace(error_of($$SELECT similar_pairs('star', 'id', 'v', -900, 'ip', 'ivfpq', 0.1)$$), '\d{4} rows', 'N rows');
SELECT count(*) FROM similar_pairs('star', 'id', 'v', -900, 'ip');
RESET maintenance_work_mem;

\qecho knn_join within a distance
CREATE TABLE q AS SELECT i AS id, near(i + 5) AS v FROM generate_series(1, 100) AS i;
SET ivfpq.target_recall = 1;
SELECT r, count(*), count(*) FILTER (WHERE l.key IS NULL OR j.key IS NULL OR j.distance > r) AS other FROM unnest('{1,9.01,180}'::float8[]) AS r, LATERAL
    (SELECT j.key, l.key, j.distance FROM knn_join('q', 'id', 'v', 't_v', 'id', 5, max_distance => r) AS j FULL JOIN
        (SELECT * FROM knn_join('q', 'id', 'v', 't_v', 'id', 5) WHERE distance <= r) AS l USING (query_key, rank, key)) AS s (j, l, distance),
    LATERAL (SELECT s.j AS key, s.distance) AS j, LATERAL (SELECT s.l AS key) AS l
GROUP BY r ORDER BY r;
SELECT count(*) FROM knn_join_text('q', 'id', 'v', 't_v', 'x', 5, max_distance => 1);
RESET ivfpq.target_recall;
SELECT error_of(format('SELECT knn_join(''q'', ''id'', ''v'', ''t_v'', ''id'', 5, max_distance => %s)', r)) FROM unnest('{0,-1,''NaN'',''infinity''}'::text[]) AS r;

\qecho mistakes
SELECT a, error_of(format('SELECT similar_pairs(%s)', a)) FROM unnest(ARRAY[
    $$'t', 'id', 'v', 0$$, $$'t', 'id', 'v', -1$$, $$'t', 'id', 'v', 0, 'cosine'$$, $$'t', 'id', 'v', 'NaN'$$, $$'t', 'id', 'v', 'infinity', 'ip'$$,
    $$'t', 'id', 'v', NULL$$, $$NULL, 'id', 'v', 1$$, $$'t', 'id', 'v', 1, 'hamming'$$, $$'t', 'id', 'v', 1, method => 'nn_descent'$$,
    $$'t', 'id', 'v', 1, recall => 0.9$$, $$'t', 'id', 'v', 1, method => 'ivfpq', recall => 0$$, $$'t', 'id', 'v', 1, method => 'ivfpq', recall => 1.5$$,
    $$'t', 'id', 'w', 1$$, $$'t', 'w', 'v', 1$$, $$'t', 'id', 'x', 1$$, $$'t', 'u', 'v', 1$$, $$'t', 'written', 'v', 1$$, $$'t_v', 'id', 'v', 1$$]) AS a;
SELECT a, error_of(format('SELECT duplicate_groups(%s)', a)) FROM unnest(ARRAY[
    $$'t', 'id', 'v', 0$$, $$'t', 'id', 'v', 1, NULL$$, $$'t', 'id', 'v', 1, 'last'$$, $$'t', 'id', 'v', 1, ''$$, $$'t', 'id', 'v', 1, 'id LIMIT 1'$$,
    $$'t', 'id', 'v', 1, 'id; DELETE FROM t'$$, $$'t', 'id', 'v', 1, 'id FOR UPDATE'$$, $$'t', 'id', 'v', 1, 'id) UNION (SELECT 1'$$,
    $$'t', 'id', 'v', 1, 'first', 'hamming'$$]) AS a;

\qecho rights and row security are those of the caller
CREATE ROLE pairs_reader;
GRANT USAGE ON SCHEMA similar_pairs_test TO pairs_reader;
CREATE TABLE secret AS SELECT id, v, written FROM t WHERE v IS NOT NULL;
GRANT SELECT (id, v) ON secret TO pairs_reader;
SET ROLE pairs_reader;
SELECT error_of($$SELECT similar_pairs('t', 'id', 'v', 1)$$), error_of($$SELECT duplicate_groups('t', 'id', 'v', 1)$$);
SELECT count(*) > 0, error_of($$SELECT duplicate_groups('secret', 'id', 'v', 9, 'written')$$) FROM similar_pairs('secret', 'id', 'v', 9);
RESET ROLE;
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY some_rows ON secret USING (id % 5 <> 0);
SET ROLE pairs_reader;
SELECT count(*) > 0, count(*) FILTER (WHERE a % 5 = 0 OR b % 5 = 0) FROM similar_pairs('secret', 'id', 'v', 50.5);
SELECT count(*) > 0, count(*) FILTER (WHERE row_key % 5 = 0) FROM duplicate_groups('secret', 'id', 'v', 50.5, 'id DESC');
RESET ROLE;
DROP SCHEMA similar_pairs_test CASCADE;
DROP OWNED BY pairs_reader;
DROP ROLE pairs_reader;
