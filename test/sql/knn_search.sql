-- knn_search and knn_join: the rows that ORDER BY and LIMIT would give, for many queries at once.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE TABLE t (id int PRIMARY KEY, v vector(12), small smallint, maybe int);
INSERT INTO t SELECT i, vec(i, 12), i % 1000, CASE WHEN i % 2 = 0 THEN i END
FROM generate_series(1, 6000) AS i;
INSERT INTO t SELECT i, NULL FROM generate_series(6001, 6010) AS i;
CREATE INDEX t_l2 ON t USING ivfpq (v) WITH (lists = 60, m = 6);
CREATE INDEX t_ip ON t USING ivfpq (v vector_ip_ops) WITH (lists = 60, m = 6);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 60, m = 6);
CREATE TABLE q (id bigint, v vector(12));
INSERT INTO q SELECT 1000000000000 + i, vec(i, 12, 7) FROM generate_series(1, 200) AS i;
INSERT INTO q VALUES (NULL, NULL), (7, NULL);
CREATE FUNCTION all_queries() RETURNS vector[] LANGUAGE sql AS
    'SELECT array_agg(v ORDER BY id) FROM q WHERE v IS NOT NULL';

-- The distances of the k nearest rows, exactly.
CREATE TABLE exact AS
SELECT o, q.id, n.rank, n.d FROM unnest(ARRAY['<->', '<#>', '<=>']) AS o, q, LATERAL
    (SELECT row_number() OVER (ORDER BY d) AS rank, d FROM
        (SELECT (CASE o WHEN '<->' THEN t.v <-> q.v WHEN '<#>' THEN t.v <#> q.v
                        ELSE t.v <=> q.v END)::real AS d FROM t WHERE t.v IS NOT NULL) AS s
     ORDER BY d LIMIT 10) AS n
WHERE q.v IS NOT NULL;

\qecho all lists and many candidates: exact
SET ivfpq.candidates = 1500;
CREATE FUNCTION compare(i regclass, o text, OUT search bigint, OUT joined bigint,
                        OUT same_search bigint, OUT same_join bigint)
LANGUAGE sql AS $$
    WITH s AS (SELECT * FROM knn_search(i, all_queries(), 10, 60)),
         j AS (SELECT * FROM knn_join('q', 'id', 'v', i, 'id', 10, 60))
    SELECT (SELECT count(*) FROM s), (SELECT count(*) FROM j),
           (SELECT count(*) FROM s JOIN exact AS e
                ON e.o = compare.o AND e.id = 1000000000000 + s.query AND e.rank = s.rank
            WHERE s.distance = e.d),
           (SELECT count(*) FROM j JOIN exact AS e
                ON e.o = compare.o AND e.id = j.query_key AND e.rank = j.rank
            WHERE j.distance = e.d)
$$;
SELECT * FROM compare('t_l2', '<->');
SELECT * FROM compare('t_ip', '<#>');
SELECT * FROM compare('t_cosine', '<=>');
\qecho one vector: the rows of an array with it
SELECT query, rank, distance, t.id FROM knn_search('t_l2', vec(3, 12, 7), 4, 60) AS s JOIN t ON t.ctid = s.ctid ORDER BY rank;
SELECT count(*) FROM (SELECT * FROM knn_search('t_l2', vec(3, 12, 7), 50, 60, 'small < 500')
    EXCEPT SELECT * FROM knn_search('t_l2', ARRAY[vec(3, 12, 7)], 50, 60, 'small < 500')) AS s;
SELECT count(*), count(DISTINCT s.distance) FROM (SELECT vec(3, 12, 7)::text AS v) AS v, LATERAL (
    SELECT rank, distance FROM knn_search('t_l2', v, 5, 60) UNION ALL
    SELECT rank, distance FROM knn_search('t_l2', v::halfvec, 5, 60) UNION ALL
    SELECT rank, distance FROM knn_search('t_l2', query_vector => v::vector, k => 5, probes => 60)) AS s;
SELECT rank, distance FROM knn_search('t_l2', '[1,2,3,4,5,6,7,8,9,10,11,12]', 2, 60);
SELECT count(*) FROM q, LATERAL knn_search('t_l2', q.v, 3) WHERE q.v IS NOT NULL;
SELECT error_of($$SELECT knn_search('t_l2', NULL::vector, 3)$$), error_of($$SELECT knn_search('t_l2', '[1,2]'::vector, 3)$$),
       error_of($$SELECT knn_search('t_l2', '[1,2]', 3)$$), error_of($$SELECT knn_search('t_l2', '1,2', 3)$$);

RESET ivfpq.candidates;

\qecho ctid and key lead to the row that has the distance
SELECT count(*), count(*) FILTER (WHERE (t.v <-> q.v)::real = s.distance)
FROM knn_search('t_l2', all_queries(), 5) AS s JOIN t ON t.ctid = s.ctid
    JOIN q ON q.id = 1000000000000 + s.query;
SELECT count(*), count(*) FILTER (WHERE (t.v <#> q.v)::real = j.distance)
FROM knn_join('q', 'id', 'v', 't_ip', 'id', 5) AS j JOIN t ON t.id = j.key
    JOIN q ON q.id = j.query_key;
SELECT count(*), count(*) FILTER (WHERE (t.v <=> q.v)::real = j.distance)
FROM knn_join('q', 'id', 'v', 't_cosine', 'id', 5) AS j JOIN t ON t.id = j.key
    JOIN q ON q.id = j.query_key;
-- each row once, in order, ranks without a gap
SELECT count(*), count(DISTINCT (query_key, key)), min(rank), max(rank),
       bool_and(distance >= before)
FROM (SELECT *, lag(distance, 1, 0) OVER (PARTITION BY query_key ORDER BY rank) AS before
      FROM knn_join('q', 'id', 'v', 't_l2', 'id', 20)) AS j;

-- (the service would choose its own effort for single queries)
SET ivfpq.executor = cpu;
\qecho as much is found as by ORDER BY and LIMIT, whatever the effort
CREATE FUNCTION found(p int, OUT by_join float8, OUT by_limit float8) LANGUAGE plpgsql AS $$
BEGIN
    SELECT count(*) / 2000.0 INTO by_join
    FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10, p) AS j
        JOIN exact AS e ON e.o = '<->' AND e.id = j.query_key AND e.rank = 10
    WHERE j.distance <= e.d;
    PERFORM set_config('ivfpq.probes', least(coalesce(p, 0), 60)::text, true),
            set_config('enable_seqscan', 'off', true);
    SELECT count(*) / 2000.0 INTO by_limit FROM q, LATERAL
        (SELECT (t.v <-> q.v)::real AS distance FROM t ORDER BY t.v <-> q.v LIMIT 10) AS l
        JOIN exact AS e ON e.o = '<->' AND e.rank = 10
    WHERE e.id = q.id AND l.distance <= e.d;
    PERFORM set_config('ivfpq.probes', '0', true), set_config('enable_seqscan', 'on', true);
END
$$;
SELECT p, by_join > 0.05, abs(by_join - by_limit) < 0.005
FROM unnest(ARRAY[1, 3, 10, 30, 60, 1000000, NULL]) AS p, found(p);
SELECT current_setting('ivfpq.probes');

\qecho few queries and many, few threads and many, little memory and much: the same rows
CREATE TABLE reference AS SELECT * FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10);
SELECT count(*) FROM reference;
CREATE FUNCTION differences() RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM reference FULL JOIN knn_join('q', 'id', 'v', 't_l2', 'id', 10) AS j
        USING (query_key, rank) WHERE reference.distance IS DISTINCT FROM j.distance
$$;
SET max_parallel_workers_per_gather = 0;
SELECT differences();
SET max_parallel_workers_per_gather = 5;
SELECT differences();
RESET max_parallel_workers_per_gather;
SELECT count(*) FROM q, knn_search('t_l2', ARRAY[q.v], 10) AS s, reference AS r
WHERE q.v IS NOT NULL AND r.query_key = q.id AND r.rank = s.rank AND s.distance = r.distance;
RESET ivfpq.executor;
-- an index that is larger than memory
CREATE TABLE large (id int, v vector(12));
INSERT INTO large SELECT i, vec(i, 12) FROM generate_series(1, 30000) AS i;
CREATE INDEX large_v ON large USING ivfpq (v) WITH (lists = 60, m = 12);
CREATE TABLE in_memory AS SELECT * FROM knn_join('q', 'id', 'v', 'large_v', 'id', 10, 20);
SET maintenance_work_mem = '1MB';
SELECT count(*), count(*) FILTER (WHERE m.distance = j.distance)
FROM in_memory AS m JOIN knn_join('q', 'id', 'v', 'large_v', 'id', 10, 20) AS j
    USING (query_key, rank);
SELECT error_of($$SELECT knn_join('q', 'id', 'v', 't_l2', 'id', 100000)$$);
RESET maintenance_work_mem;

\qecho more rows than there are candidates, or lists, or rows
CREATE VIEW one AS SELECT * FROM q WHERE id = 1000000000001;
SELECT count(*), count(DISTINCT key), max(distance) = (SELECT max(v <-> vec(1, 12, 7)) FROM t)::real
FROM knn_join('one', 'id', 'v', 't_l2', 'id', 10000);
SELECT query, count(*) FROM knn_search('t_l2', ARRAY[vec(1, 12), vec(2, 12)], 6000, 1) GROUP BY 1
ORDER BY 1;
SELECT min(n), max(n) FROM
    (SELECT count(*) AS n FROM knn_join('q', 'id', 'v', 't_l2', 'id', 500, 1) GROUP BY query_key)
    AS s;
-- where scans are not to go on, batches do not either
SET ivfpq.iterative_scan = off;
SET ivfpq.candidates = 20;
SELECT max(n) < 500 FROM
    (SELECT count(*) AS n FROM knn_join('q', 'id', 'v', 't_l2', 'id', 20, 1) GROUP BY query_key)
    AS s;
RESET ivfpq.iterative_scan;
RESET ivfpq.candidates;

\qecho keys of other types, and none
SELECT count(*), count(*) FILTER (WHERE key BETWEEN 0 AND 999)
FROM knn_join('q', 'id', 'v', 't_l2', 'small', 3);
SELECT count(*) BETWEEN 300 AND 600, count(*) FILTER (WHERE key % 2 = 1)
FROM knn_join('q', 'id', 'v', 't_l2', 'maybe', 3) WHERE key IS NOT NULL;

\qecho queries: none, of a view, of the same table
SELECT count(*) FROM knn_search('t_l2', '{}', 3);
SELECT count(*) FROM knn_search('t_l2', ARRAY[]::vector[], 3);
CREATE TABLE none (id int, v vector);
SELECT count(*) FROM knn_join('none', 'id', 'v', 't_l2', 'id', 3);
CREATE VIEW few AS SELECT id::smallint AS "the id", v FROM t WHERE id <= 100;
SELECT count(*), count(*) FILTER (WHERE query_key = key AND distance = 0 AND rank = 1)
FROM knn_join('few', 'the id', 'v', 't_l2', 'id', 2);
SELECT count(*), count(*) FILTER (WHERE query_key = key AND distance = 0 AND rank = 1)
FROM knn_join('t', 'id', 'v', 't_l2', 'id', 2);

\qecho rows come and go: deleted, updated in place and elsewhere, not committed
CREATE FUNCTION sound(k int DEFAULT 10, OUT rows bigint, OUT wrong bigint, OUT by_place bigint)
LANGUAGE sql AS $$
    WITH j AS (SELECT * FROM knn_join('q', 'id', 'v', 't_l2', 'id', k)),
         s AS (SELECT * FROM knn_search('t_l2', all_queries(), k))
    SELECT (SELECT count(*) FROM j),
           (SELECT count(*) FROM j LEFT JOIN t ON t.id = j.key LEFT JOIN q ON q.id = j.query_key
            WHERE (t.v <-> q.v)::real IS DISTINCT FROM j.distance),
           (SELECT count(*) FROM s JOIN t ON t.ctid = s.ctid
                JOIN q ON q.id = 1000000000000 + s.query WHERE (t.v <-> q.v)::real = s.distance)
$$;
SELECT * FROM sound();
DELETE FROM t WHERE id % 3 = 0;
SELECT * FROM sound();
UPDATE t SET v = vec(id, 12, 1) WHERE id % 3 = 1;
SELECT * FROM sound();
UPDATE t SET maybe = 1 WHERE id % 5 = 0;
SELECT * FROM sound();
-- nearly nothing is left in the first round
DELETE FROM t WHERE id > 20;
SELECT * FROM sound();
SELECT * FROM sound(1000);
BEGIN;
DELETE FROM t;
SELECT * FROM sound();
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1, 50) AS i;
SELECT * FROM sound();
ROLLBACK;
SELECT * FROM sound();
VACUUM t;
SELECT * FROM sound();

\qecho an index that is not trained
CREATE TABLE u (id int, v vector(3));
CREATE INDEX u_v ON u USING ivfpq (v);
SELECT count(*) FROM knn_search('u_v', ARRAY['[1,2,3]']::vector[], 3);
INSERT INTO u SELECT i, ARRAY[i, 0, 0]::vector FROM generate_series(1, 500) AS i;
INSERT INTO u VALUES (0, NULL);
SELECT query, rank, (SELECT id FROM u WHERE u.ctid = s.ctid), distance
FROM knn_search('u_v', ARRAY['[7,0,0]', '[400.25,3,4]']::vector[], 3) AS s;
SELECT count(*) FROM knn_search('u_v', ARRAY['[7,0,0]', '[400.25,3,4]']::vector[], 1000);
UPDATE u SET v = '[7,0,0]' WHERE id = 100;
SELECT query, rank, (SELECT id FROM u WHERE u.ctid = s.ctid), distance
FROM knn_search('u_v', ARRAY['[7,0,0]']::vector[], 3) AS s;

\qecho a vector without a direction comes last
CREATE TABLE z (id int, v vector(2));
INSERT INTO z VALUES (1, '[0,0]'), (2, '[1,0]'), (3, '[-1,0]'), (4, '[0,1]');
CREATE INDEX z_v ON z USING ivfpq (v vector_cosine_ops);
SELECT rank, (SELECT id FROM z WHERE z.ctid = s.ctid), distance
FROM knn_search('z_v', ARRAY['[2,0]']::vector[], 10) AS s;

\qecho what is refused
SELECT a, error_of(format('SELECT knn_search(%s)', a)) FROM unnest(ARRAY[
    '''t_l2'', ARRAY[vec(1, 12)], 0', '''t_l2'', ARRAY[vec(1, 12)], -1',
    '''t_l2'', ARRAY[vec(1, 12)], 3, 0', '''t_l2'', ARRAY[vec(1, 12)], 3, -7',
    '''t_l2'', ARRAY[vec(1, 12), NULL], 3', '''t_l2'', ARRAY[vec(1, 12), vec(1, 11)], 3',
    '''t_l2'', ARRAY[ARRAY[vec(1, 12)], ARRAY[vec(1, 12)]], 3',
    'NULL, ARRAY[vec(1, 12)], 3', '''t_l2'', NULL, 3', '''t_l2'', ARRAY[vec(1, 12)], NULL',
    '''t'', ARRAY[vec(1, 12)], 3', '''t_pkey'', ARRAY[vec(1, 12)], 3', '0, ARRAY[vec(1, 12)], 3'])
    AS a;
SELECT a, error_of(format('SELECT knn_join(%s)', a)) FROM unnest(ARRAY[
    'NULL, ''id'', ''v'', ''t_l2'', ''id'', 3', '''q'', NULL, ''v'', ''t_l2'', ''id'', 3',
    '''q'', ''id'', NULL, ''t_l2'', ''id'', 3', '''q'', ''id'', ''v'', NULL, ''id'', 3',
    '''q'', ''id'', ''v'', ''t_l2'', NULL, 3', '''q'', ''id'', ''v'', ''t_l2'', ''id'', NULL',
    '''q'', ''nothing'', ''v'', ''t_l2'', ''id'', 3', '''q'', ''v'', ''v'', ''t_l2'', ''id'', 3',
    '''q'', ''id'', ''id'', ''t_l2'', ''id'', 3', '''q'', ''id'', ''v'', ''t_l2'', ''nothing'', 3',
    '''q'', ''id'', ''v'', ''t_l2'', ''v'', 3', '''q'', ''id'', ''v'', ''t_l2'', ''ctid'', 3',
    '''q'', ''id'', ''v'', ''u_v'', ''id'', 3', '''q'', ''id'', ''v'', ''t_l2'', ''id'', 0'])
    AS a;
INSERT INTO q VALUES (NULL, vec(1, 12));
SELECT error_of($$SELECT knn_join('q', 'id', 'v', 't_l2', 'id', 3)$$);
DELETE FROM q WHERE id IS NULL;
CREATE INDEX t_partial ON t USING ivfpq (v) WHERE id < 10;
CREATE INDEX t_expression ON t USING ivfpq (((v || v)::vector(24)));
SELECT i, error_of(format('SELECT knn_search(%L, ARRAY[vec(1, 12)], 3)', i))
FROM unnest(ARRAY['t_partial', 't_expression']) AS i;
-- after an error the setting is what it was
SELECT current_setting('ivfpq.probes');

\qecho rights
CREATE ROLE regress_knn;
GRANT USAGE ON SCHEMA ivfpq_test TO regress_knn;
SET ROLE regress_knn;
SELECT error_of($$SELECT knn_search('t_l2', ARRAY[vec(1, 12)], 3)$$),
       error_of($$SELECT knn_join('q', 'id', 'v', 't_l2', 'id', 3)$$);
RESET ROLE;
GRANT SELECT (id, v) ON t TO regress_knn;
SET ROLE regress_knn;
-- a column that one may not read is no key, nor is the place of a row
SELECT error_of($$SELECT knn_search('t_l2', ARRAY[vec(1, 12)], 3)$$),
       error_of($$SELECT knn_join('q', 'id', 'v', 't_l2', 'id', 3)$$),
       error_of($$SELECT knn_join('t', 'id', 'v', 't_l2', 'small', 3)$$),
       error_of($$SELECT knn_join('t', 'id', 'v', 't_l2', 'id', 3)$$);
RESET ROLE;
GRANT SELECT ON q, t TO regress_knn;
SET ROLE regress_knn;
SELECT error_of($$SELECT knn_search('t_l2', ARRAY[vec(1, 12)], 3)$$),
       error_of($$SELECT knn_join('q', 'id', 'v', 't_l2', 'id', 3)$$);
RESET ROLE;

\qecho row security: nothing is told of rows that a policy hides
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY odd ON t TO regress_knn USING (id % 2 = 1);
ALTER TABLE q ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON q TO regress_knn USING (id <= 1000000000100);
SELECT count(*) FROM t WHERE v IS NOT NULL;
SELECT count(*), count(DISTINCT query_key), count(DISTINCT key), min(key % 2)
FROM knn_join('q', 'id', 'v', 't_l2', 'id', 100);
SET ROLE regress_knn;
SELECT count(*) FROM t WHERE v IS NOT NULL;
SELECT count(*), count(DISTINCT query_key), count(DISTINCT key), min(key % 2)
FROM knn_join('q', 'id', 'v', 't_l2', 'id', 100);
SELECT count(*), count(*) FILTER (WHERE (t.v <-> vec(1, 12))::real = s.distance)
FROM knn_search('t_l2', ARRAY[vec(1, 12)], 100) AS s JOIN t ON t.ctid = s.ctid;
SELECT count(*), bool_and(a.distance = b.d) FROM knn_search('t_cosine', ARRAY[vec(1, 12)], 100) AS a
    JOIN (SELECT row_number() OVER (ORDER BY v <=> vec(1, 12)) AS rank,
                 (v <=> vec(1, 12))::real AS d FROM t WHERE v IS NOT NULL) AS b USING (rank);
SET row_security = off;
SELECT error_of($$SELECT knn_search('t_l2', ARRAY[vec(1, 12)], 3)$$);
RESET row_security;
RESET ROLE;

\qecho long work can be cancelled
SET statement_timeout = '300ms';
CREATE VIEW endless AS SELECT a.id, a.v FROM large AS a, large AS b;
SELECT count(*) FROM knn_join('endless', 'id', 'v', 'large_v', 'id', 10);
SELECT count(*) FROM kmeans('large', 'v', 50, 1000000);
SET maintenance_work_mem = '1MB';
SELECT count(*) FROM kmeans('large', 'v', 50, 1000000);
RESET maintenance_work_mem;
RESET statement_timeout;
SELECT count(*) FROM knn_search('t_l2', ARRAY[vec(1, 12)], 3);

DROP TABLE t, q, exact, reference, large, in_memory, none, u, z CASCADE;
DROP FUNCTION all_queries, compare, found, differences, sound;
REVOKE USAGE ON SCHEMA ivfpq_test FROM regress_knn;
DROP ROLE regress_knn;

\qecho rotated vectors, fewer dimensions, codes of four bits
CREATE TABLE rotated AS SELECT i AS id, vec(i, 32) AS v FROM generate_series(1, 4000) AS i;
ALTER TABLE rotated ALTER v TYPE vector(32);
CREATE FUNCTION found_themselves(options text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
    same bigint;
BEGIN
    EXECUTE format('CREATE INDEX rotated_v ON rotated USING ivfpq (v) WITH (lists = 20, %s)', options);
    SELECT count(*) INTO found
    FROM (SELECT array_agg(v ORDER BY id) AS queries FROM rotated WHERE id <= 300) AS q,
         knn_search('rotated_v', q.queries, 1) AS s JOIN rotated AS t ON t.ctid = s.ctid
    WHERE t.id = s.query;
    SELECT sum((SELECT count(*) FROM
            (SELECT id FROM rotated ORDER BY v <-> (SELECT v FROM rotated WHERE id = j.query_key) LIMIT 5) AS n
            WHERE n.id = ANY (j.keys))) INTO same
    FROM (SELECT query_key, array_agg(key) AS keys FROM knn_join('rotated', 'id', 'v', 'rotated_v', 'id', 5)
          WHERE query_key <= 300 GROUP BY query_key) AS j;
    DROP INDEX rotated_v;
    RETURN format('%s: %s themselves, neighbors as scans find them: %s', options, found >= 270,
                  same >= 0.95 * 1500);
END
$$;
SET enable_seqscan = off;
SELECT found_themselves('quantizer = opq');
SELECT found_themselves('quantizer = opq, dims = 16');
SELECT found_themselves('bits = 4');
SELECT found_themselves('quantizer = opq, bits = 4');
RESET enable_seqscan;
DROP FUNCTION found_themselves;
DROP TABLE rotated;
