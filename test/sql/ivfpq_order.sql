-- Plans that trust the order of a scan beyond the rows that it finds first: merge joins, groups and windows by distance,
-- and an ORDER BY that goes on after the distance.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all
SET client_min_messages = warning;
-- Whole numbers, so that many rows have one distance.
CREATE TABLE a AS SELECT i AS id, (SELECT array_agg(round(e * 9)::real) FROM unnest(vec(i, 8, 1)::real[]) AS e)::vector(8) AS v FROM generate_series(1, 6000) AS i;
CREATE TABLE b AS SELECT i AS id, (SELECT array_agg(round(e * 9)::real) FROM unnest(vec(i, 8, 2)::real[]) AS e)::vector(8) AS v FROM generate_series(1, 6000) AS i;
CREATE INDEX a_v ON a USING ivfpq (v);
CREATE INDEX b_v ON b USING ivfpq (v);
ANALYZE a, b;
CREATE VIEW joined AS SELECT count(*) AS n, sum(x.id::bigint * y.id) AS s FROM (SELECT id, v <-> '[1,2,3,4,5,6,7,8]' AS d FROM a ORDER BY d) AS x
    JOIN (SELECT id, v <-> '[8,7,6,5,4,3,2,1]' AS d FROM b ORDER BY d) AS y USING (d);
CREATE VIEW grouped AS SELECT d, count(*) AS n FROM (SELECT v <-> '[1,2,3,4,5,6,7,8]' AS d FROM a ORDER BY d) AS x GROUP BY d;
CREATE VIEW different AS SELECT DISTINCT v <-> '[1,2,3,4,5,6,7,8]' AS d FROM a ORDER BY d;
CREATE VIEW ranked AS SELECT id, rank() OVER (ORDER BY v <-> '[1,2,3,4,5,6,7,8]') AS r FROM a;
-- It looks at rows far behind the ten that are asked for.
CREATE VIEW ahead AS SELECT d, lead(d, 1500) OVER (ORDER BY d) AS far FROM (SELECT v <-> '[1,2,3,4,5,6,7,8]' AS d FROM a) AS x LIMIT 10;
-- From 17 on the order of WITH is known.
CREATE VIEW materialized AS WITH x AS MATERIALIZED (SELECT id, v <-> '[1,2,3,4,5,6,7,8]' AS d FROM a ORDER BY d),
    y AS MATERIALIZED (SELECT id, v <-> '[8,7,6,5,4,3,2,1]' AS d FROM b ORDER BY d)
    SELECT count(*) AS n, sum(x.id::bigint * y.id) AS s FROM x JOIN y USING (d);
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_nestloop = off; SET enable_sort = off; SET enable_hashagg = off;
SELECT bool_and(scans_of('TABLE ' || name) LIKE '%Index Scan a_v%') FROM unnest(ARRAY['joined', 'grouped', 'different', 'ranked', 'ahead', 'materialized']) AS name;
CREATE TABLE found_joined AS TABLE joined;
CREATE TABLE found_grouped AS TABLE grouped;
CREATE TABLE found_different AS TABLE different;
CREATE TABLE found_ranked AS TABLE ranked;
CREATE TABLE found_ahead AS TABLE ahead;
CREATE TABLE found_materialized AS TABLE materialized;
RESET enable_seqscan; RESET enable_hashjoin; RESET enable_nestloop; RESET enable_sort; RESET enable_hashagg;
SET enable_indexscan = off;
CREATE FUNCTION differences(a text, b text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM ((TABLE %1$s EXCEPT ALL TABLE %2$s) UNION ALL (TABLE %2$s EXCEPT ALL TABLE %1$s)) AS s', a, b) INTO n;
    RETURN n;
END $$;
SELECT differences('found_joined', 'joined'), differences('found_grouped', 'grouped'), differences('found_different', 'different'),
    differences('found_ranked', 'ranked'), differences('found_ahead', 'ahead'), differences('found_materialized', 'materialized');
SELECT n > 0 FROM found_joined;
DROP VIEW joined, grouped, different, ranked, ahead, materialized;
DROP TABLE a, b, found_joined, found_grouped, found_different, found_ranked, found_ahead, found_materialized;
DROP FUNCTION differences;

RESET enable_indexscan;
-- Each vector seven times: a page of ten ends between rows of one distance.
CREATE TABLE p (id int, half int, v vector(8)) PARTITION BY LIST (half);
CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
INSERT INTO p SELECT i, 0, vec(i / 7, 8) FROM generate_series(1, 7000) AS i;
INSERT INTO p SELECT i, 1, vec(i / 7, 8, 1) FROM generate_series(7001, 14000) AS i;
CREATE INDEX ON p USING ivfpq (v, half);
ANALYZE p;
CREATE FUNCTION page(source text, last_distance float8, last_id int, direction text DEFAULT '', q int DEFAULT 3) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT id, v <-> vec(%1$s, 8, 2) AS d FROM %2$s WHERE %3$s ORDER BY v <-> vec(%1$s, 8, 2), id %4$s LIMIT 10', q, source,
        CASE WHEN last_distance IS NULL THEN 'true'
             ELSE format('(v <-> vec(%s, 8, 2), id) > (%s, %s)', q, last_distance, last_id) END, direction)
$$;
-- Twenty pages, each from where the one before has ended.
CREATE FUNCTION pages(source text, q int DEFAULT 3) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    last_distance float8;
    last_id int;
    ids int[];
BEGIN
    FOR i IN 1..20 LOOP
        FOR last_id, last_distance IN EXECUTE page(source, last_distance, last_id, '', q) LOOP
            ids := ids || last_id;
        END LOOP;
    END LOOP;
    RETURN ids;
END $$;
-- the first and a later page, with no help
SELECT plan_of(page('p0', null, null));
SELECT scans_of(page('p0', 100.5, 17)), scans_of(page('p0', null, null, 'DESC')), scans_of(page('p', null, null));
-- what PostgreSQL makes no scan of an index for
SELECT scans_of('SELECT id FROM p0 TABLESAMPLE SYSTEM (50) ORDER BY v <-> vec(3, 8, 2), id LIMIT 10');
CREATE TABLE exact_of_ten AS SELECT source, q, array_agg(id ORDER BY n) AS ids FROM generate_series(1, 10) AS q CROSS JOIN LATERAL (
    SELECT 'p' AS source, id, row_number() OVER (ORDER BY (v <-> vec(q, 8, 2)) + 0, id) AS n FROM p UNION ALL
    SELECT 'p0', id, row_number() OVER (ORDER BY (v <-> vec(q, 8, 2)) + 0, id) FROM p0) AS s WHERE n <= 200 GROUP BY source, q;
CREATE VIEW exact AS SELECT source, ids FROM exact_of_ten WHERE q = 3;
SET enable_seqscan = off; SET enable_sort = off;
SELECT source, scans_of(page(source, null, null)), cardinality(pages(source)) FROM exact ORDER BY source;
-- the pages of ten queries: a row that a page misses comes on no later one
SELECT source, avg((SELECT count(*) FROM unnest(pages(source, q)) AS id WHERE id = ANY (ids))) >= 190 AS found FROM exact_of_ten GROUP BY source ORDER BY source;
SET ivfpq.target_recall = 1;
SELECT source, scans_of(page(source, 100.5, 17)), pages(source) = ids FROM exact ORDER BY source;
RESET ivfpq.target_recall;
-- all rows, once
SELECT count(*), count(DISTINCT id), bool_and(sorted) FROM (SELECT id, (lag((d, id)) OVER () < (d, id)) IS NOT FALSE AS sorted
    FROM (SELECT id, v <-> vec(3, 8, 2) AS d FROM p0 ORDER BY v <-> vec(3, 8, 2), id LIMIT 7000) AS s) AS s;
RESET enable_seqscan; RESET enable_sort;
SET enable_incremental_sort = off;
SELECT scans_of(page('p0', null, null));
RESET enable_incremental_sort;
DROP FUNCTION pages, page;
DROP VIEW exact;
DROP TABLE p, exact_of_ten;
