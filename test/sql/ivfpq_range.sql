-- Rows at the ends of what floats hold: vectors without a direction, squares that overflow, products that underflow.
-- A scan gives them their place in the order of a sequential scan.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all
SET client_min_messages = warning;

-- In 64 dimensions the nearest of few thousand rows are more than half a cosine distance away.
CREATE TABLE base AS SELECT i AS id, (SELECT array_agg(e - 127.5) FROM unnest(vec(i, 64)::real[]) AS e)::vector(64) AS v
    FROM generate_series(1, 4000) AS i;
CREATE TABLE q AS SELECT i AS id, (SELECT array_agg(e - 127.5) FROM unnest(vec(i, 64, 1)::real[]) AS e)::vector(64) AS v
    FROM generate_series(1, 20) AS i;
-- A vector whose elements all have this value.
CREATE FUNCTION flat(x float8) RETURNS vector LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN array_fill(x::real, '{64}')::vector;

-- Rows that queries find one by one, by LATERAL, and without a condition by knn_join() and knn_search(): how many there are, how many have a
-- distance that is NaN, and whether at least nine in ten are as near as the k nearest of a sequential scan.
CREATE FUNCTION found(relation text, op text, k int, condition text DEFAULT 'true', OUT way text, OUT n bigint, OUT nan bigint, OUT good boolean)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    ways text[] := ARRAY[
        'single', format('SELECT q.id AS query, s.d FROM q, LATERAL (SELECT v %1$s q.v AS d FROM %2$s WHERE %4$s ORDER BY v %1$s q.v LIMIT %3$s) AS s', op, relation, k, condition),
        'lateral', format('SELECT q.id AS query, s.d FROM q, LATERAL (SELECT v %1$s q.v AS d FROM %2$s WHERE %4$s ORDER BY v %1$s q.v LIMIT %3$s) AS s', op, relation, k, condition),
        'knn_join', format('SELECT query_key AS query, distance AS d FROM knn_join(''q'', ''id'', ''v'', ''%s_v'', ''id'', %s)', relation, k),
        'knn_search', format('SELECT q.id AS query, s.distance AS d FROM knn_search(''%s_v'', (SELECT array_agg(v ORDER BY id) FROM q), %s) AS s JOIN (SELECT id, row_number() OVER (ORDER BY id) AS query FROM q) AS q USING (query)', relation, k)];
BEGIN
    PERFORM set_config('enable_indexscan', 'off', true);
    EXECUTE format('CREATE TEMP TABLE truth AS SELECT q.id AS query, row_number() OVER (PARTITION BY q.id ORDER BY s.d) AS rank, s.d
        FROM q, LATERAL (SELECT v %s q.v AS d FROM %s WHERE %s ORDER BY 1 LIMIT %s) AS s', op, relation, condition, k);
    PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
    FOR i IN 1 .. cardinality(ways) BY 2 LOOP
        way := ways[i];
        CONTINUE WHEN way LIKE 'knn%' AND condition <> 'true';
        PERFORM set_config('ivfpq.enable_batched_join', CASE WHEN way = 'single' THEN 'off' ELSE 'on' END, true);
        EXECUTE format('CREATE TEMP TABLE answer AS SELECT *, row_number() OVER (PARTITION BY query ORDER BY d) AS rank FROM (%s) AS s', ways[i + 1]);
        SELECT count(*), count(*) FILTER (WHERE d = 'NaN') INTO n, nan FROM answer;
        -- Distances of the operator and of functions differ in the last digits.
        SELECT count(*) FILTER (WHERE a.d = t.d OR a.d <= t.last + 1e-5 * abs(t.last)) >= 0.9 * count(*) INTO good
        FROM (SELECT *, last_value(d) OVER (PARTITION BY query ORDER BY d ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS last FROM truth) AS t
            LEFT JOIN answer AS a USING (query, rank);
        DROP TABLE answer;
        RETURN NEXT;
    END LOOP;
    DROP TABLE truth;
    PERFORM set_config('enable_seqscan', 'on', true);
END
$$;

-- A cursor that reads on to the end: rows, whether these are all rows of the table and each is there once, and whether
-- rows without a finite distance come last, the infinite before NaN.
CREATE FUNCTION whole(relation text, op text, query vector, condition text DEFAULT 'true', OUT scan text, OUT n bigint, OUT same boolean, OUT last_in_order boolean)
LANGUAGE plpgsql AS $$
DECLARE
    statement text := format('SELECT id, v %1$s %2$L::vector AS d FROM %3$s WHERE %4$s ORDER BY v %1$s %2$L::vector', op, query, relation, condition);
BEGIN
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true);
    scan := scans_of(statement);
    EXECUTE format('CREATE TEMP TABLE answer AS SELECT row_number() OVER () AS place, s.* FROM (%s OFFSET 0) AS s', statement);
    PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true);
    SELECT count(*) INTO n FROM answer;
    EXECUTE format('SELECT n = count(*) AND count(*) = count(DISTINCT id) AND count(*) FILTER (WHERE a.id IS NULL) = 0
        FROM (SELECT $1 AS n) AS c, %s AS t LEFT JOIN answer AS a USING (id) WHERE %s GROUP BY n', relation, condition) INTO same USING n;
    SELECT coalesce(bool_and(class >= before), true) INTO last_in_order
    FROM (SELECT class, max(class) OVER (ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM (SELECT place, CASE d WHEN 'NaN' THEN 2 WHEN 'Infinity' THEN 1 ELSE 0 END AS class FROM answer) AS c) AS s;
    DROP TABLE answer;
END
$$;

\qecho cosine: zero vectors, of the build, inserted, and with negative zeros
CREATE TABLE c (id int, kind int, v vector(64));
INSERT INTO c SELECT id, id % 10, v FROM base;
INSERT INTO c SELECT 10000 + i, i % 10, flat(CASE WHEN i % 2 = 0 THEN 0 ELSE '-0' END) FROM generate_series(1, 60) AS i;
CREATE INDEX c_v ON c USING ivfpq (v vector_cosine_ops);
INSERT INTO c SELECT 20000 + i, i % 10, flat(0) FROM generate_series(1, 40) AS i;
ANALYZE c;
SELECT * FROM found('c', '<=>', 10);
SELECT * FROM whole('c', '<=>', (SELECT v FROM q WHERE id = 1));
-- they cost nothing while other rows are left: one round, which ranks others
SET enable_seqscan = off;
SELECT max(id) <= 4000 FROM (SELECT id FROM c ORDER BY v <=> (SELECT v FROM q WHERE id = 1) LIMIT 10) AS s;
SELECT rounds, ranked_rows BETWEEN 10 AND 1000 FROM ivfpq_last_scan();
RESET enable_seqscan;
-- a row without a direction is as far from a query without one as all others
SELECT * FROM whole('c', '<=>', flat(0));
-- more rows than have a distance
SELECT way, n, nan FROM found('c', '<=>', 4050);
SELECT * FROM ivfpq_check('c_v', true);
-- they are no more than other rows: removed, and inserted again
DELETE FROM c WHERE id BETWEEN 10001 AND 10050;
VACUUM (INDEX_CLEANUP on) c;
SELECT * FROM ivfpq_check('c_v', true);
SELECT * FROM whole('c', '<=>', (SELECT v FROM q WHERE id = 1));
UPDATE c SET v = base.v FROM base WHERE c.id - 20000 = base.id;
UPDATE c SET v = flat(0) WHERE id <= 30;
SELECT * FROM found('c', '<=>', 10);
SELECT * FROM whole('c', '<=>', (SELECT v FROM q WHERE id = 1));
-- one round, without more: what it found
SET ivfpq.iterative_scan = off;
SELECT count(*) FILTER (WHERE d = 'NaN') FROM (SELECT v <=> (SELECT v FROM q WHERE id = 1) AS d FROM c ORDER BY 1 LIMIT 10) AS s;
RESET ivfpq.iterative_scan;

\qecho conditions, in the index and out of it, and a bound
CREATE INDEX c_kind ON c USING ivfpq (v vector_cosine_ops, kind);
DROP INDEX c_v;
SELECT * FROM whole('c', '<=>', (SELECT v FROM q WHERE id = 1), 'kind = 3');
SELECT * FROM whole('c', '<=>', (SELECT v FROM q WHERE id = 1), 'id % 7 = 3');
SELECT * FROM whole('c', '<=>', (SELECT v FROM q WHERE id = 1), 'v <=> (SELECT v FROM q WHERE id = 1) < 0.9');

\qecho refinements, and other codes
CREATE TABLE r AS SELECT id, v FROM c;
CREATE INDEX r_v ON r USING ivfpq (v vector_cosine_ops) WITH (refine = 'int8');
ANALYZE r;
SELECT * FROM found('r', '<=>', 10);
SELECT * FROM whole('r', '<=>', (SELECT v FROM q WHERE id = 2));
SELECT * FROM ivfpq_check('r_v', true);
DROP INDEX r_v;
CREATE INDEX r_v ON r USING ivfpq (v vector_cosine_ops) WITH (bits = 4, refine = 'none');
SELECT * FROM found('r', '<=>', 10);
SELECT * FROM whole('r', '<=>', (SELECT v FROM q WHERE id = 2));
DROP TABLE r;

\qecho an index that VACUUM trains, and one of few rows
CREATE TABLE u (id int, v vector(64));
CREATE INDEX u_v ON u USING ivfpq (v vector_cosine_ops);
INSERT INTO u SELECT 10000 + i, flat(0) FROM generate_series(1, 60) AS i;
SELECT * FROM whole('u', '<=>', (SELECT v FROM q WHERE id = 3));
INSERT INTO u SELECT id + j * 100000, v FROM base, generate_series(0, 2) AS j;
INSERT INTO u SELECT 20000 + i, flat(1e-38) FROM generate_series(1, 20) AS i;
VACUUM u;
SELECT trained, rows, pending_rows FROM ivfpq_info('u_v');
SELECT * FROM ivfpq_check('u_v', true);
SELECT * FROM found('u', '<=>', 10);
SELECT * FROM whole('u', '<=>', (SELECT v FROM q WHERE id = 3));
DROP TABLE u;

\qecho most rows without a direction, and all
CREATE TABLE z AS SELECT i AS id, CASE WHEN i % 25 = 0 THEN (SELECT v FROM base WHERE base.id = i / 25) ELSE flat(0) END::vector(64) AS v FROM generate_series(1, 30000) AS i;
CREATE INDEX z_v ON z USING ivfpq (v vector_cosine_ops);
ANALYZE z;
SELECT trained, rows, pending_rows FROM ivfpq_info('z_v');
SELECT * FROM found('z', '<=>', 10);
SELECT ivfpq_recall('z_v', 2000) > 0.9;
UPDATE z SET v = flat(0) WHERE id % 25 = 0;
REINDEX INDEX z_v;
SELECT trained, rows FROM ivfpq_info('z_v');
SELECT * FROM whole('z', '<=>', (SELECT v FROM q WHERE id = 3));
DROP TABLE z;

\qecho each metric: elements of 1e-38, 1e-30, 3e38, and others near the ends
CREATE TABLE e (id int, v vector(64));
INSERT INTO e SELECT id, v FROM base;
CREATE FUNCTION add_extremes(first int) RETURNS void LANGUAGE sql AS $$
    INSERT INTO e SELECT first + row_number() OVER (), flat(x) FROM unnest('{1e-38,-1e-38,1e-30,-1e-30,3e38,-3e38,1e18,-1e18,1e20,-1e20}'::float8[]) AS x;
    -- one element alone, and one beside others
    INSERT INTO e SELECT first + 100 + row_number() OVER (), (ARRAY[x]::real[] || array_fill(y::real, '{63}'))::vector
    FROM unnest('{1e-38,3e38,-3e38,1e19,-1e19}'::float8[]) AS x, unnest('{0,1,-1}'::float8[]) AS y $$;
SELECT add_extremes(10000);
CREATE INDEX e_v ON e USING ivfpq (v vector_l2_ops);
SELECT add_extremes(20000);
ANALYZE e;
-- queries that are as extreme are compared with all rows
INSERT INTO q SELECT 100 + row_number() OVER (), v FROM e WHERE id > 20000;
SELECT * FROM found('e', '<->', 10);
SELECT * FROM found('e', '<->', 10, 'id % 3 = 1');
SET ivfpq.iterative_scan = off;
SELECT way, n, nan FROM found('e', '<->', 10);
RESET ivfpq.iterative_scan;
SELECT q.id, w.* FROM q, whole('e', '<->', q.v) AS w WHERE q.id IN (1, 101, 105, 106, 109, 117) ORDER BY 1;
SELECT * FROM ivfpq_check('e_v', true);
DROP INDEX e_v;
CREATE INDEX e_v ON e USING ivfpq (v vector_ip_ops);
SELECT * FROM found('e', '<#>', 10);
SELECT q.id, w.* FROM q, whole('e', '<#>', q.v) AS w WHERE q.id IN (1, 101, 105, 106, 109, 117) ORDER BY 1;
DROP INDEX e_v;
CREATE INDEX e_v ON e USING ivfpq (v vector_cosine_ops);
SELECT * FROM found('e', '<=>', 10);
SELECT * FROM found('e', '<=>', 10, 'id % 3 = 1');
SELECT q.id, w.* FROM q, whole('e', '<=>', q.v) AS w WHERE q.id IN (1, 101, 105, 106, 109, 117) ORDER BY 1;
-- a bound that all rows with a distance are within
SELECT * FROM whole('e', '<=>', (SELECT v FROM q WHERE id = 1), 'v <=> (SELECT v FROM q WHERE id = 1) <= 2');
SELECT * FROM ivfpq_check('e_v', true);

\qecho halves: their infinities are no values
SELECT error_of('SELECT flat(1e5)::halfvec');
SELECT error_of('SELECT flat(3e38)::halfvec');
CREATE TABLE h AS SELECT id, v::halfvec(64) AS v FROM base;
INSERT INTO h SELECT 10000 + i, flat(CASE WHEN i % 3 = 0 THEN 65504 WHEN i % 3 = 1 THEN 6e-8 ELSE 0 END)::halfvec FROM generate_series(1, 60) AS i;
CREATE INDEX h_v ON h USING ivfpq (v halfvec_cosine_ops);
ANALYZE h;
SET enable_seqscan = off;
SELECT count(*), count(*) FILTER (WHERE d = 'NaN') FROM (SELECT q.id, s.d FROM q, LATERAL (SELECT v <=> q.v::halfvec AS d FROM h ORDER BY v <=> q.v::halfvec LIMIT 10) AS s WHERE q.id <= 20) AS s;
SELECT count(*), min(n) FILTER (WHERE d = 'NaN') FROM (SELECT row_number() OVER () AS n, s.d FROM (SELECT v <=> (SELECT v::halfvec FROM q WHERE id = 1) AS d FROM h ORDER BY 1) AS s) AS s;
RESET enable_seqscan;

\qecho partitions
CREATE TABLE p (id int, v vector(64)) PARTITION BY LIST ((id % 3));
CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
INSERT INTO p SELECT id, v FROM c;
INSERT INTO p SELECT 30000 + 3 * i, flat(0) FROM generate_series(1, 60) AS i;
CREATE INDEX p_v ON p USING ivfpq (v vector_cosine_ops);
INSERT INTO p SELECT 40000 + i, flat(0) FROM generate_series(1, 40) AS i;
ANALYZE p;
DELETE FROM q WHERE id > 100;
SELECT * FROM found('p', '<=>', 10);
SELECT way, n, nan FROM found('p', '<=>', 4050);
SELECT n, same, last_in_order FROM whole('p', '<=>', (SELECT v FROM q WHERE id = 1));

DROP TABLE base, q, c, e, h, p;
DROP FUNCTION found, whole, flat, add_extremes;
