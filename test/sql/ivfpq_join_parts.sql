-- Batches over several tables give what single scans of them give: ties, rows that are there twice, dead rows, conditions
-- in one table only, and rows without a finite distance.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET ivfpq.executor = cpu;
SET max_parallel_workers_per_gather = 0;
SET enable_seqscan = off;
SET work_mem = '16MB';
-- all lists, all candidates
SET ivfpq.probes = 1000;
SET ivfpq.candidates = 2000;
CREATE TABLE queries AS SELECT i::int AS id, vec(i, 8, 3) AS v FROM generate_series(1, 100) AS i;
CREATE TABLE items AS SELECT i::int AS id, vec(i % 1500, 8)::vector(8) AS v FROM generate_series(1, 4000) AS i;
CREATE TABLE parted (id int, v vector(8)) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES WITH (MODULUS 3, REMAINDER 2);
INSERT INTO parted SELECT * FROM items;
CREATE INDEX items_v ON items USING ivfpq (v);
CREATE INDEX parted_v ON parted USING ivfpq (v);
CREATE INDEX parted_cosine ON parted USING ivfpq (v vector_cosine_ops);
ANALYZE queries, items, parted;

-- Whether a batch was searched for; rows and different ones; the same distances and as many rows as by single scans, and as
-- by a sort.
CREATE FUNCTION compare(source text, k int, OUT batched boolean, OUT rows bigint, OUT different bigint, OUT as_scans boolean,
    OUT as_sort boolean) LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT q.id AS query, s.* FROM queries AS q, LATERAL (SELECT * FROM (%s) AS r ORDER BY d LIMIT %s) AS s',
        source, k);
    plan json;
    by_distance text := 'SELECT array_agg(d ORDER BY query, d) FROM found';
    batch float8[];
    scans float8[];
    sorted float8[];
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    batched := plan::text LIKE '%Ivfpq Batch%';
    EXECUTE 'CREATE TEMP TABLE found AS ' || query;
    EXECUTE by_distance INTO batch;
    SELECT count(*), count(DISTINCT (f.query, f.id)) INTO rows, different FROM found AS f;
    DROP TABLE found;
    SET LOCAL ivfpq.enable_batched_join = off;
    EXECUTE 'CREATE TEMP TABLE found AS ' || query;
    EXECUTE by_distance INTO scans;
    DROP TABLE found;
    SET LOCAL enable_indexscan = off;
    EXECUTE 'CREATE TEMP TABLE found AS ' || query;
    EXECUTE by_distance INTO sorted;
    DROP TABLE found;
    RESET enable_indexscan;
    RESET ivfpq.enable_batched_join;
    as_scans := batch = scans;
    as_sort := batch = sorted;
END
$$;

\qecho ties, within a table and across: a vector has two or three rows
SELECT * FROM compare('SELECT id, v <-> q.v AS d FROM parted', 7);
SELECT * FROM compare('SELECT id, v <-> q.v AS d FROM parted', 100);

\qecho a table that is there twice
SELECT batched, rows, as_scans, as_sort
FROM compare('SELECT id, v <-> q.v AS d FROM items UNION ALL SELECT id, v <-> q.v FROM items', 10);
SELECT batched, rows, as_scans, as_sort FROM compare('SELECT id, v <-> q.v AS d FROM parted_1 UNION ALL SELECT id, v <-> q.v FROM parted_1
    UNION ALL SELECT id, v <-> q.v FROM parted_2', 10);

\qecho conditions in one table only
SELECT * FROM compare('SELECT id, v <-> q.v AS d FROM items WHERE id > 1000 UNION ALL SELECT id, v <-> q.v FROM parted_1', 10);

\qecho dead rows in one table only, and fewer rows than are wanted
DELETE FROM parted_1 WHERE id % 10 <> 0;
SELECT * FROM compare('SELECT id, v <-> q.v AS d FROM parted', 10);
DELETE FROM parted WHERE id % 50 <> 0;
SELECT * FROM compare('SELECT id, v <-> q.v AS d FROM parted', 90);

\qecho rows without a direction come last, from whichever table
INSERT INTO parted SELECT i, array_fill(0::real, ARRAY[8])::vector(8) FROM generate_series(10001, 10030) AS i;
ANALYZE parted;
SELECT * FROM compare('SELECT id, v <=> q.v AS d FROM parted', 10);
SELECT * FROM compare('SELECT id, v <=> q.v AS d FROM parted', 105);
SELECT count(*), count(DISTINCT (tableoid, ctid)), count(*) FILTER (WHERE distance = 'NaN') AS last
FROM knn_search('parted_cosine', (SELECT array_agg(v ORDER BY id) FROM queries WHERE id = 1), 105);
-- a batch that keeps one table open at a time
SET maintenance_work_mem = '1MB';
SELECT count(*), count(DISTINCT (tableoid, ctid)), count(*) FILTER (WHERE distance = 'NaN') AS last
FROM knn_search('parted_cosine', (SELECT array_agg(v ORDER BY id) FROM queries WHERE id = 1), 105);


\qecho rows without codes, more than memory holds: each is compared with all queries
CREATE TABLE waiting (id int, v vector(8));
CREATE INDEX waiting_v ON waiting USING ivfpq (v);
INSERT INTO waiting SELECT i, vec(i % 18000, 8) FROM generate_series(1, 20000) AS i;
SELECT count(*), sum(round(distance ^ 2)) = (SELECT sum(round(d ^ 2)) FROM queries AS q, LATERAL
    (SELECT v <-> q.v AS d FROM waiting ORDER BY (v <-> q.v) + 0 LIMIT 5) AS s) AS exact
FROM knn_search('waiting_v', (SELECT array_agg(v ORDER BY id) FROM queries), 5);

DROP TABLE queries, items, parted, waiting;
DROP FUNCTION compare;
