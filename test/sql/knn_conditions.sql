-- knn_search and knn_join with conditions: the nearest of the rows that pass, for each query.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE TABLE t (id int PRIMARY KEY, v vector(12), tenant int, price real, kind text, day date,
    "Odd = Name" int, hidden int);
INSERT INTO t SELECT i, vec(i, 12), CASE WHEN i % 50 > 0 THEN i % 60 END, i % 100, 'kind ' || i % 7,
    date '2026-01-01' + i % 365, i % 3, i % 5
FROM generate_series(1, 6000) AS i;
INSERT INTO t SELECT i, NULL, 5, 5, 'kind 5' FROM generate_series(6001, 6010) AS i;
CREATE INDEX t_v ON t USING ivfpq (v, tenant, kind, price) WITH (lists = 60, m = 6);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops, tenant) WITH (lists = 60, m = 6);
ANALYZE t;
CREATE TABLE q (id bigint, v vector(12), tenant int, owner bigint, kind varchar(20), doc json);
INSERT INTO q SELECT i, vec(i, 12, 7), CASE WHEN i % 10 > 0 THEN i % 70 END, i % 13,
    'kind ' || i % 8, '{}'
FROM generate_series(1, 300) AS i;
INSERT INTO q VALUES (NULL, NULL, 1, 1, 'kind 1'), (7, NULL, 1, 1, 'kind 1');

-- The planner would rather read so few rows one by one.
SET enable_seqscan = off;
SET enable_sort = off;
SET jit = off;
\qecho all lists and many candidates: exact
SET ivfpq.target_recall = 1;
SET ivfpq.candidates = 6000;

-- A search and a join beside sorting all rows that pass, for the first queries: how many rows
-- there are, and whether each rank has its distance, and its row passes.
CREATE FUNCTION compare(condition text, k int, OUT rows bigint, OUT searched boolean,
                        OUT joined boolean, OUT index text) LANGUAGE plpgsql AS $$
BEGIN
    CREATE TEMP TABLE found AS
    SELECT s.query AS id, s.rank, s.distance, t.id AS row
    FROM knn_search('t_v', (SELECT array_agg(v ORDER BY id) FROM q WHERE v IS NOT NULL AND id <= 20), k,
                    condition => compare.condition) AS s JOIN t ON t.ctid = s.ctid;
    SELECT l.index INTO index FROM ivfpq_last_scan() AS l;
    CREATE TEMP VIEW few AS SELECT * FROM q WHERE v IS NOT NULL AND id <= 20;
    CREATE TEMP TABLE found_by_join AS
    SELECT query_key AS id, rank, distance, key AS row
    FROM knn_join('few', 'id', 'v', 't_v', 'id', k, condition => compare.condition);
    SET LOCAL enable_indexscan = off;
    SET LOCAL enable_sort = on;
    EXECUTE format('CREATE TEMP TABLE exact AS
        SELECT few.id, n.* FROM few, LATERAL
            (SELECT row_number() OVER (ORDER BY d) AS rank, d::real AS distance
             FROM (SELECT t.v <-> few.v AS d FROM t WHERE v IS NOT NULL AND (%s
                   ) ORDER BY 1 LIMIT %s) AS s) AS n', condition, k);
    EXECUTE format('CREATE TEMP TABLE passing AS SELECT id AS row FROM t WHERE (%s
                   )', condition);
    SET LOCAL enable_indexscan = on;
    SET LOCAL enable_sort = off;
    SELECT count(*) INTO rows FROM exact;
    SELECT NOT EXISTS (TABLE exact EXCEPT SELECT id, rank, distance FROM found)
           AND (SELECT count(*) FROM found JOIN passing USING (row)) = compare.rows
           AND (SELECT count(*) FROM found) = compare.rows
           AND NOT EXISTS (SELECT FROM found JOIN t ON t.id = row JOIN q ON q.id = found.id
                           WHERE (t.v <-> q.v)::real <> distance) INTO searched;
    SELECT NOT EXISTS (TABLE exact EXCEPT SELECT id, rank, distance FROM found_by_join)
           AND (SELECT count(*) FROM found_by_join JOIN passing USING (row)) = compare.rows
           AND (SELECT count(*) FROM found_by_join) = compare.rows
           AND NOT EXISTS (SELECT FROM found_by_join AS found JOIN t ON t.id = row
                               JOIN q ON q.id = found.id
                           WHERE (t.v <-> q.v)::real <> distance) INTO joined;
    DROP TABLE found, found_by_join, exact, passing;
    DROP VIEW few;
END
$$;
SELECT c, rows, searched, joined, index FROM unnest(ARRAY[
    'tenant = 5', 'tenant = 5 AND price >= 50', 'tenant IN (1, 2, 3)', 'tenant IS NULL',
    'tenant IS NOT NULL AND price BETWEEN 10 AND 11.5', 'kind = ''kind 3''',
    'kind LIKE ''%3'' OR tenant = 7', 'day >= ''2026-06-01'' AND day < ''2026-06-08''',
    'hidden = 2 AND tenant < 30', '"Odd = Name" = 1', 't.tenant = 5', 'public.t.tenant = 5',
    'tenant = 5 -- and no more', 'tenant /* which */ = 5', 't IS NOT NULL', 't.ctid < ''(3,1)''',
    'true', 'v <-> ''[128,128,128,128,128,128,128,128,128,128,128,128]'' < 230',
    'day < now() AND tenant = ANY (ARRAY[8, 9])', 'CASE WHEN tenant = 5 THEN price > 20 END'])
    AS c, compare(c, 10);
\qecho fewer than k, and none
SELECT c, rows, searched, joined
FROM unnest(ARRAY['tenant = 5', 'id <= 3', 'id > 6000', 'tenant = 77', 'false', 'NULL',
                  'tenant = NULL', 'price = 5 AND price = 6']) AS c, compare(c, 150);
\qecho without a condition: as before
SELECT count(*), count(*) FILTER (WHERE a = b) FROM
    knn_search('t_v', ARRAY[vec(1, 12), vec(2, 12)], 10, NULL, NULL) AS a
    FULL JOIN knn_search('t_v', ARRAY[vec(1, 12), vec(2, 12)], 10) AS b USING (query, rank);
SELECT count(*), count(*) FILTER (WHERE a = b) FROM
    knn_join('q', 'id', 'v', 't_v', 'id', 3, NULL, NULL, NULL) AS a
    FULL JOIN knn_join('q', 'id', 'v', 't_v', 'id', 3, on_equal => '{}') AS b
    USING (query_key, rank);
\qecho another metric
SELECT count(*), bool_and(s.distance = e.d) FROM
    knn_search('t_cosine', ARRAY[vec(1, 12, 7)], 10, condition => 'tenant = 5') AS s
    JOIN (SELECT row_number() OVER (ORDER BY d) AS rank, d FROM
          (SELECT (v <=> vec(1, 12, 7))::real AS d FROM t WHERE tenant = 5 AND v IS NOT NULL) AS s)
    AS e USING (rank);

\qecho a join on equal columns
-- The join beside a LATERAL one that sorts all rows.
CREATE FUNCTION compare_join(asking regclass, on_equal text[], where_equal text, condition text,
                             OUT rows bigint, OUT queries bigint, OUT same boolean)
LANGUAGE plpgsql AS $$
BEGIN
    CREATE TEMP TABLE found AS
    SELECT * FROM knn_join(asking, 'id', 'v', 't_v', 'id', 5,
                           condition => compare_join.condition, on_equal => compare_join.on_equal);
    SET LOCAL enable_indexscan = off;
    SET LOCAL enable_sort = on;
    EXECUTE format('CREATE TEMP TABLE exact AS
        SELECT q.id AS query_key, n.* FROM %s AS q, LATERAL
            (SELECT row_number() OVER (ORDER BY d) AS rank, d::real AS distance
             FROM (SELECT t.v <-> q.v AS d FROM t WHERE v IS NOT NULL AND %s AND (%s)
                   ORDER BY 1 LIMIT 5) AS s) AS n WHERE q.v IS NOT NULL',
        asking, where_equal, coalesce(condition, 'true'));
    SET LOCAL enable_indexscan = on;
    SET LOCAL enable_sort = off;
    SELECT count(*), count(DISTINCT query_key) INTO rows, queries FROM exact;
    EXECUTE format('SELECT NOT EXISTS (TABLE exact EXCEPT SELECT query_key, rank, distance FROM found)
            AND (SELECT count(*) FROM found) = %s AND %s = (SELECT count(*)
                 FROM found JOIN %s AS q ON q.id = query_key JOIN t ON t.id = key
                 WHERE %s AND (t.v <-> q.v)::real = distance)',
        rows, rows, asking, where_equal) INTO same;
    DROP TABLE found, exact;
END
$$;
CREATE VIEW asked AS SELECT * FROM q WHERE id <= 100;
CREATE TABLE loose (id bigint, v vector, tenant bigint);
INSERT INTO loose SELECT id, v, tenant FROM q WHERE id <= 50;
SELECT * FROM compare_join('q', '{tenant}', 't.tenant = q.tenant', NULL);
SELECT * FROM compare_join('q', '{owner=tenant}', 't.tenant = q.owner', NULL);
SELECT * FROM compare_join('q', '{ owner =  tenant }', 't.tenant = q.owner', 'price > 20');
SELECT * FROM compare_join('q', '{kind}', 't.kind = q.kind', NULL);
SELECT * FROM compare_join('q', '{kind, owner = tenant}', 't.kind = q.kind AND t.tenant = q.owner', NULL);
SELECT * FROM compare_join('q', '{owner = hidden}', 't.hidden = q.owner', NULL);
SELECT * FROM compare_join('asked', '{owner = tenant}', 't.tenant = q.owner', 'hidden <> 2');
SELECT * FROM compare_join('asked', '{owner = tenant, owner = hidden}',
                           't.tenant = q.owner AND t.hidden = q.owner', NULL);
SELECT * FROM compare_join('loose', '{tenant}', 't.tenant = q.tenant', NULL);
SELECT * FROM compare_join('asked', NULL, 'true', 'tenant IN (3, 4)');
-- values that are stored out of line
CREATE TABLE long (id bigint, v vector(12), word text);
ALTER TABLE long ALTER word SET STORAGE EXTERNAL;
INSERT INTO long SELECT i, vec(i, 12), repeat(chr(96 + i), 5000) FROM generate_series(1, 20) AS i;
CREATE TABLE words (id bigint, v vector(12), word text);
INSERT INTO words SELECT i, vec(i, 12, 9), repeat(chr(97 + i % 20), 5000)
FROM generate_series(1, 2000) AS i;
CREATE INDEX words_v ON words USING ivfpq (v, word) WITH (lists = 10, m = 6);
SELECT count(*), bool_and(words.word = long.word), count(DISTINCT key)
FROM knn_join('long', 'id', 'v', 'words_v', 'id', 100, on_equal => '{word}') AS j
    JOIN long ON long.id = query_key JOIN words ON words.id = key;
RESET ivfpq.target_recall;
RESET ivfpq.candidates;

\qecho nothing set: recall among the rows that pass
CREATE TABLE many (id int, v vector(12), tenant int, other int);
INSERT INTO many SELECT i, vec(i, 12), i % 100, i % 100 FROM generate_series(1, 20000) AS i;
CREATE INDEX many_v ON many USING ivfpq (v, tenant) WITH (lists = 140, m = 6);
ANALYZE many;
CREATE TABLE found (way text, id bigint, distance real);
INSERT INTO found
SELECT 'search', query, distance FROM knn_search('many_v',
    (SELECT array_agg(v ORDER BY id) FROM q WHERE v IS NOT NULL), 10, condition => 'tenant = 42');
INSERT INTO found
SELECT 'other', query, distance FROM knn_search('many_v',
    (SELECT array_agg(v ORDER BY id) FROM q WHERE v IS NOT NULL), 10, condition => 'other = 42');
CREATE VIEW of_tenant AS SELECT id, v, 42 AS tenant FROM q WHERE v IS NOT NULL;
INSERT INTO found
SELECT 'join', query_key, distance
FROM knn_join('of_tenant', 'id', 'v', 'many_v', 'id', 10, on_equal => '{tenant}');
CREATE TABLE farthest AS SELECT id, max(d)::real AS d FROM q, LATERAL
    (SELECT many.v <-> q.v AS d FROM many WHERE tenant = 42 ORDER BY (many.v <-> q.v) + 0 LIMIT 10) AS n
GROUP BY id;
SELECT way, count(*), count(*) FILTER (WHERE distance <= d) >= 0.95 * 3000 AS recall
FROM found JOIN farthest USING (id) GROUP BY way ORDER BY way;
-- probes are those of the scan: 20 lists of 140 have some of the 200 rows, the next round more
SET ivfpq.iterative_scan = off;
SELECT count(*) BETWEEN 1 AND 150 FROM
    knn_search('many_v', ARRAY[vec(1, 12)], 200, 20, condition => 'tenant = 42');
RESET ivfpq.iterative_scan;
SELECT count(*) FROM knn_search('many_v', ARRAY[vec(1, 12)], 300, 20, condition => 'tenant = 42');

\qecho own changes, and a condition by a parameter
BEGIN;
UPDATE t SET tenant = 1000 WHERE id IN (10, 20, 30);
DELETE FROM t WHERE id = 20;
PREPARE search(text) AS SELECT t.id FROM knn_search('t_v', ARRAY[vec(10, 12)], 5, condition => $1)
    AS s JOIN t ON t.ctid = s.ctid;
EXECUTE search('tenant = 1000');
EXECUTE search('tenant = 1000 AND id <> 10');
ROLLBACK;
EXECUTE search('tenant = 1000');
DEALLOCATE search;
-- a condition that searches itself
CREATE FUNCTION tenant_of(i int) RETURNS int LANGUAGE sql STABLE AS $$
    SELECT t.tenant FROM knn_search('t_v', ARRAY[vec(i, 12)], 1, condition => 'tenant IS NOT NULL') AS s
        JOIN t ON t.ctid = s.ctid
$$;
SELECT count(*), min(t.tenant), max(t.tenant)
FROM knn_search('t_v', ARRAY[vec(1, 12), vec(3, 12)], 5, condition => 'tenant = tenant_of(7)') AS s
    JOIN t ON t.ctid = s.ctid;
-- an error of a condition leaves nothing behind
SELECT error_of($$SELECT knn_search('t_v', ARRAY[vec(1, 12)], 300, condition => '1 / (tenant - 5) = 0')$$);
SELECT error_of($$SELECT knn_join('q', 'id', 'v', 't_v', 'id', 300, condition => '1 / (tenant - 5) = 0')$$);
SELECT count(*) FROM knn_search('t_v', ARRAY[vec(1, 12)], 3, condition => 'tenant = 5');

\qecho what is refused
SELECT c, error_of(format('SELECT knn_search(''t_v'', ARRAY[vec(1, 12)], 3, condition => %L)', c))
FROM unnest(ARRAY[
    '', ' ', 'tenant', 'nothing = 1', 'q.tenant = 1', 'tenant = ''x''', 'tenant = kind', '*', 't.*',
    'tenant = 1;', 'tenant = 1; DROP TABLE t', 'true) OR (true', 'tenant = 1 /*', 'kind = ''x',
    'tenant = 1 FROM q', 'tenant = 1 WHERE true', 'tenant = 1 ORDER BY id', 'tenant = 1 LIMIT 1',
    'tenant = 1 GROUP BY id', 'tenant = 1 FOR UPDATE', 'tenant = 1, kind = ''x''',
    'tenant = 1 AS x', 'tenant = 1 x', 'DISTINCT tenant = 1', 'tenant = 1 UNION SELECT true',
    'SELECT true', 'tenant = $1', 'tenant = (SELECT 1)', 'EXISTS (SELECT FROM q)',
    'count(*) > 1', 'row_number() OVER () = 1', 'generate_series(1, 2) = 1', 'random() < 0.5',
    'nextval(''none'') = 1', 'DEFAULT', '(t).*', '(*)']) AS c;
\set VERBOSITY default
SELECT count(*) FROM knn_search('t_v', ARRAY[vec(1, 12)], 3, condition => 'tenant = 5 AND nothing = 1');
SELECT count(*) FROM knn_search('t_v', ARRAY[vec(1, 12)], 3, condition => 'random() < 0.5');
-- the same for all functions that take a condition
CREATE FUNCTION refused(call text, condition text) RETURNS text LANGUAGE sql AS $$
    SELECT error_of(format('SELECT * FROM ' || call, condition))
$$;
SELECT c, refused('knn_shards(''t'', ''id'', ''v'', vec(1, 12), 3, condition => %L)', c) AS shards,
       refused('knn_shards(''t'', ''id'', ''v'', vec(1, 12), 3, condition => %L)', c) =
       refused('knn_search(''t_v'', ARRAY[vec(1, 12)], 3, condition => %L)', c) AND
       refused('knn_shards(''t'', ''id'', ''v'', vec(1, 12), 3, condition => %L)', c) =
       refused('knn_join(''q'', ''id'', ''v'', ''t_v'', ''id'', 3, condition => %L)', c) AS all_the_same
FROM unnest(ARRAY[
    'true) LIMIT 0) UNION ALL (SELECT 0::oid, id, 0::float8 FROM (SELECT id, v FROM public.q) AS s WHERE (true',
    'true) UNION ALL (SELECT 0::oid, 4242, -1.0::float8',
    'true) OR (true', 'tenant = 1 FROM q', 'tenant = 1 LIMIT 1', 'tenant = (SELECT 1)', 'EXISTS (SELECT FROM pg_class)',
    'random() < 0.5', 'nothing = 1', '', 'tenant = 1 /*', 'tenant = 1; DROP TABLE t']) AS c;
SELECT count(*), bool_and(tenant = 5) FROM knn_shards('t', 'id', 'v', vec(1, 12), 7, condition => 'tenant = 5 -- only') AS s
    JOIN t ON t.id = s.key;
SELECT count(*), bool_and(tenant = 5) FROM knn_shards('t', 'id', 'v', vec(1, 12), 7, condition => 't.tenant = 5') AS s
    JOIN t ON t.id = s.key;
-- a distance is the type's own, whatever operators others have made
CREATE FUNCTION no_distance(vector, vector) RETURNS float8 LANGUAGE sql AS 'SELECT -1.0::float8';
CREATE OPERATOR ivfpq_test.<~> (LEFTARG = vector, RIGHTARG = vector, FUNCTION = no_distance);
SELECT error_of($$SELECT knn_shards('t', 'id', 'v', vec(1, 12), 7, '<~>')$$);
DROP FUNCTION no_distance CASCADE;
SELECT e, error_of(format('SELECT knn_join(''q'', ''id'', ''v'', ''t_v'', ''id'', 3, on_equal => %L)', e))
FROM unnest(ARRAY[
    '{nothing}', '{owner}', '{nothing = tenant}', '{tenant = nothing}', '{tenant =}', '{= tenant}',
    '{""}', '{NULL}', '{{tenant},{kind}}', '{tenant = kind}', '{doc = kind}', '{v = tenant}',
    '{owner = Odd = Name}', '{tenant = v}']) AS e;

\qecho rights: every column of a condition counts, on both sides
CREATE ROLE regress_knn_conditions;
GRANT USAGE ON SCHEMA ivfpq_test TO regress_knn_conditions;
GRANT SELECT (id, v, tenant) ON t TO regress_knn_conditions;
GRANT SELECT (id, v, tenant, owner) ON q TO regress_knn_conditions;
CREATE FUNCTION try(condition text, on_equal text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
    SELECT error_of(format('SELECT knn_join(''q'', ''id'', ''v'', ''t_v'', ''id'', 3, condition => %L, on_equal => %L)',
                           condition, on_equal))
$$;
SET ROLE regress_knn_conditions;
SELECT try('tenant = 5'), try('id < 100', '{owner = tenant}');
SELECT try('hidden = 2'), try('tenant = 5 OR hidden IS NULL'), try('t IS NOT NULL'),
       try('t.tableoid > 1'), try(NULL, '{owner = hidden}'), try(NULL, '{kind = tenant}');
-- before any work: there is no query
RESET ROLE;
CREATE VIEW no_queries AS SELECT * FROM q WHERE false;
GRANT SELECT ON no_queries TO regress_knn_conditions;
SET ROLE regress_knn_conditions;
SELECT c, error_of(format('SELECT knn_join(''no_queries'', ''id'', ''v'', ''t_v'', ''id'', 3, condition => %L)', c))
FROM unnest(ARRAY['nothing = 5', 'hidden = 5', 'tenant = 5']) AS c;
RESET ROLE;
GRANT SELECT ON t, q TO regress_knn_conditions;
SET ROLE regress_knn_conditions;
SELECT try('hidden = 2'), try('t IS NOT NULL'), try('tableoid > 1'), try(NULL, '{owner = hidden}');
RESET ROLE;
\qecho row security: a condition sees no row that a policy hides
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY odd ON t TO regress_knn_conditions USING (id % 2 = 1);
CREATE FUNCTION watch(i int) RETURNS boolean LANGUAGE plpgsql STABLE COST 0.0001 AS $$
BEGIN
    IF i % 2 = 0 THEN RAISE 'saw row %', i; END IF;
    RETURN true;
END
$$;
SELECT error_of($$SELECT knn_search('t_v', ARRAY[vec(1, 12)], 300, condition => 'watch(id)')$$) LIKE '%saw row%';
SET ROLE regress_knn_conditions;
SELECT count(*), min(t.id % 2), max(tenant) FROM knn_search('t_v', ARRAY[vec(1, 12)], 1000,
    condition => 'tenant IN (5, 6) AND watch(id)') AS s JOIN t ON t.ctid = s.ctid;
SELECT count(*), min(key % 2) FROM knn_join('q', 'id', 'v', 't_v', 'id', 1000, on_equal => '{tenant}');
RESET ROLE;

DROP TABLE t, q, loose, long, words, many, found, farthest CASCADE;
DROP FUNCTION compare, compare_join, tenant_of, try, watch, refused;
REVOKE USAGE ON SCHEMA ivfpq_test FROM regress_knn_conditions;
DROP ROLE regress_knn_conditions;
