-- Batches of queries over the partitions of a table, which are searched as one: rows, their order and recall.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET ivfpq.executor = cpu;
SET max_parallel_workers_per_gather = 0;
SET work_mem = '16MB';
SET maintenance_work_mem = '256MB';
-- queries are no rows of the table
CREATE TABLE queries AS SELECT i::int AS id, vec(i, 12, 3) AS v FROM generate_series(1, 120) AS i;
CREATE TABLE items AS SELECT i::int AS id, ((vec(i, 12))::real[])[1]::int AS x, vec(i, 12)::vector(12) AS v
    FROM generate_series(1, 16000) AS i;
-- as they come; and with near rows in a few partitions, one of which is empty, one small and exact
CREATE TABLE hashed (id int, x int, v vector(12)) PARTITION BY HASH (id);
CREATE TABLE ranged (id int, x int, v vector(12)) PARTITION BY RANGE (x);
DO $$BEGIN
    FOR i IN 0 .. 11 LOOP
        EXECUTE format('CREATE TABLE hashed_%s PARTITION OF hashed FOR VALUES WITH (MODULUS 12, REMAINDER %1$s)', i);
        EXECUTE format('CREATE TABLE ranged_%s PARTITION OF ranged FOR VALUES FROM (%s) TO (%s)', i, i * 22, i * 22 + 22);
    END LOOP;
END$$;
CREATE TABLE ranged_none PARTITION OF ranged FOR VALUES FROM (1000) TO (2000);
INSERT INTO hashed SELECT * FROM items;
INSERT INTO ranged SELECT * FROM items;
CREATE INDEX hashed_v ON hashed USING ivfpq (v);
CREATE INDEX ranged_v ON ranged USING ivfpq (v);
ANALYZE items, queries, hashed, ranged;

-- Rows of a join: all, different ones, in order of their distances, of which all are right; and whether they are the
-- nearest, but for what the target allows and chance: two standard errors, if each row is missed by itself.
CREATE TABLE found (query int, place int, id int, d float8);
CREATE FUNCTION judge(k int) RETURNS TABLE (rows bigint, different bigint, ordered boolean, sound boolean, recall text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH exact AS (SELECT t.query, max(t.d) AS d FROM truth AS t WHERE t.rank <= k GROUP BY t.query)
        SELECT count(*), count(DISTINCT (f.query, f.id)), bool_and(f.d >= f.before), bool_and(f.d = (i.v <-> q.v)::real),
            CASE WHEN count(*) FILTER (WHERE f.d <= e.d::real) 
                    >= 0.95 * k * (SELECT count(*) FROM queries) - 2 * sqrt(0.95 * 0.05 * k * (SELECT count(*) FROM queries)) THEN 'as aimed at'
                 ELSE (count(*) FILTER (WHERE f.d <= e.d::real))::text END
        FROM (SELECT *, lag(d, 1, 0) OVER (PARTITION BY query ORDER BY place) AS before FROM found) AS f
            JOIN exact AS e USING (query) JOIN kept AS i USING (id) JOIN queries AS q ON q.id = f.query;
    TRUNCATE found;
END
$$;
CREATE VIEW kept AS SELECT * FROM items;
-- The nearest rows of each query, of those that are kept; as far as joins go here.
CREATE TABLE truth (query int, rank bigint, d float8);
CREATE PROCEDURE know(condition text DEFAULT 'true') LANGUAGE plpgsql AS $$
BEGIN
    TRUNCATE truth;
    EXECUTE format('INSERT INTO truth SELECT q.id, row_number() OVER (PARTITION BY q.id ORDER BY s.d), s.d FROM queries AS q,
        LATERAL (SELECT v <-> q.v AS d FROM kept WHERE %s ORDER BY v <-> q.v LIMIT 60) AS s', condition);
END
$$;
CREATE FUNCTION join_by(how text, of text, k int, condition text DEFAULT 'true') RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT q.id, row_number() OVER (), s.* FROM queries AS q,
        LATERAL (SELECT id, (v <-> q.v)::real AS d FROM %I AS t WHERE %s ORDER BY t.v <-> q.v LIMIT %s) AS s', of, condition, k);
    plan json;
BEGIN
    IF how = 'knn_join' THEN
        query := format('SELECT query_key, rank, key, distance FROM knn_join(''queries'', ''id'', ''v'', ''%s_v'', ''id'', %s)', of, k);
    END IF;
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    EXECUTE 'INSERT INTO found ' || query;
    RETURN plan::text LIKE '%Ivfpq Batch%';
END
$$;
SET enable_seqscan = off;

\qecho joins in batches, and the function
CALL know();
SELECT join_by('lateral', 'hashed', 10);
SELECT * FROM judge(10);
SELECT join_by('lateral', 'ranged', 10);
SELECT * FROM judge(10);
SELECT join_by('knn_join', 'hashed', 10);
SELECT * FROM judge(10);
SELECT join_by('knn_join', 'ranged', 10);
SELECT * FROM judge(10);
-- one row, and many
SELECT join_by('lateral', 'ranged', 1);
SELECT * FROM judge(1);
SELECT join_by('lateral', 'hashed', 1);
SELECT * FROM judge(1);
SELECT join_by('lateral', 'ranged', 60);
SELECT * FROM judge(60);
SELECT join_by('knn_join', 'hashed', 60);
SELECT * FROM judge(60);
-- the knn_search of all of them
INSERT INTO found SELECT s.query, s.rank, t.id, s.distance
FROM knn_search('ranged_v', (SELECT array_agg(v ORDER BY id) FROM queries), 10) AS s JOIN ranged AS t ON t.tableoid = s.tableoid AND t.ctid = s.ctid;
SELECT * FROM judge(10);
-- conditions
CALL know('id % 3 <> 0');
SELECT join_by('lateral', 'ranged', 10, 'id % 3 <> 0');
SELECT * FROM judge(10);
SELECT join_by('lateral', 'hashed', 10, 'id % 3 <> 0');
SELECT * FROM judge(10);

\qecho rows that wait beside the lists, and rows that are gone
CREATE OR REPLACE VIEW kept AS SELECT * FROM items WHERE id % 4 <> 1 OR id > 15500;
CALL know();
DELETE FROM hashed WHERE NOT (id % 4 <> 1 OR id > 15500);
DELETE FROM ranged WHERE NOT (id % 4 <> 1 OR id > 15500);
DELETE FROM hashed WHERE id > 15700;
DELETE FROM ranged WHERE id > 15700;
INSERT INTO hashed SELECT * FROM items WHERE id > 15700;
INSERT INTO ranged SELECT * FROM items WHERE id > 15700;
SELECT join_by('lateral', 'hashed', 10);
SELECT * FROM judge(10);
SELECT join_by('knn_join', 'ranged', 10);
SELECT * FROM judge(10);
-- hardly any row is left: scans go on until k are found
CREATE OR REPLACE VIEW kept AS SELECT * FROM items WHERE id % 800 = 7;
CALL know();
DELETE FROM hashed WHERE id % 800 <> 7;
SELECT join_by('lateral', 'hashed', 10);
SELECT * FROM judge(10);
-- fewer than k are
SELECT join_by('knn_join', 'hashed', 25);
SELECT rows, different, ordered, sound FROM judge(25);
-- nor do rows of a partition without lists stand for those of others
CREATE OR REPLACE VIEW kept AS SELECT * FROM items WHERE id % 400 = 7 UNION ALL SELECT * FROM ranged WHERE x >= 1000;
DELETE FROM ranged WHERE id % 400 <> 7;
INSERT INTO ranged SELECT 20000 + i, 1500, array_fill(5000::real, ARRAY[12])::vector(12) FROM generate_series(1, 30) AS i;
CALL know();
SELECT join_by('lateral', 'ranged', 10);
SELECT * FROM judge(10);
SELECT join_by('knn_join', 'ranged', 10);
SELECT * FROM judge(10);

\qecho branches that ask for different vectors: rows of one are not left out for rows of another
CREATE TABLE pairs AS SELECT id, v, vec(id, 12, 99) AS w FROM queries;
CREATE TABLE first_half AS SELECT * FROM items WHERE id % 2 = 0;
CREATE TABLE second_half AS SELECT * FROM items WHERE id % 2 = 1;
CREATE INDEX first_half_v ON first_half USING ivfpq (v);
CREATE INDEX second_half_v ON second_half USING ivfpq (v);
ANALYZE pairs, first_half, second_half;
CREATE FUNCTION of_branches() RETURNS TABLE (id int, d real) LANGUAGE sql AS $$
    SELECT p.id, s.d::real FROM pairs AS p, LATERAL (SELECT * FROM
        (SELECT v <-> p.v AS d FROM first_half UNION ALL SELECT v <-> p.w FROM second_half) AS b ORDER BY d LIMIT 10) AS s
$$;
SELECT plan_of('SELECT p.id, s.d FROM pairs AS p, LATERAL (SELECT * FROM
        (SELECT v <-> p.v AS d FROM first_half UNION ALL SELECT v <-> p.w FROM second_half) AS b ORDER BY d LIMIT 10) AS s');
CREATE TABLE of_index AS SELECT * FROM of_branches();
SET enable_indexscan = off;
CREATE TABLE of_table AS SELECT * FROM of_branches();
RESET enable_indexscan;
SELECT count(*), count(*) FILTER (WHERE i.d <= far.d) >= 0.95 * count(*) AS near
FROM of_index AS i JOIN (SELECT id, max(d) AS d FROM of_table GROUP BY id) AS far USING (id);

DROP VIEW kept;
DROP TABLE queries, items, hashed, ranged, found, truth, pairs, first_half, second_half, of_index, of_table;
DROP ROUTINE judge, know, join_by, of_branches;
