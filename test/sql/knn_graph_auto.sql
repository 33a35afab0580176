-- knn_graph_create(..., auto => true): graphs that keep themselves current.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA knn_graph_auto_test;
SET search_path = knn_graph_auto_test, public, ivfpq_test;
SET client_min_messages = warning;
CREATE FUNCTION edges_of(graph text) RETURNS TABLE (src text, rank int, dst text, distance real) LANGUAGE plpgsql AS $$
BEGIN
    IF graph LIKE '%lists' THEN
        RETURN QUERY EXECUTE format('SELECT g.src::text, l.rank::int, l.dst::text, l.distance FROM %I AS g,
            ROWS FROM (unnest(neighbors), unnest(distances)) WITH ORDINALITY AS l (dst, distance, rank)', graph);
    ELSE
        RETURN QUERY EXECUTE format('SELECT src::text, rank, dst::text, distance FROM %I', graph);
    END IF;
END
$$;
-- What is wrong with a graph, and whether it has the neighbors that a new one has.
CREATE FUNCTION state(graph text, source text, k int, OUT wrong text, OUT recall bool) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('WITH e AS MATERIALIZED (SELECT * FROM edges_of(%1$L)),
        r AS MATERIALIZED (SELECT id::text AS id, v FROM %2$I WHERE v IS NOT NULL)
        SELECT format(''%%s missing, %%s short, %%s out of order, %%s wrong, %%s gone, %%s twice'',
            (SELECT count(*) FROM r WHERE id NOT IN (SELECT src FROM e)),
            (SELECT count(*) FROM (SELECT FROM e GROUP BY src HAVING count(*) <> %3$s OR max(rank) <> %3$s) AS s),
            (SELECT count(*) FROM (SELECT distance < lag(distance) OVER (PARTITION BY src ORDER BY rank) AS less FROM e) AS o
                WHERE less),
            (SELECT count(*) FROM e JOIN r AS x ON x.id = src JOIN r AS y ON y.id = dst
                WHERE abs(distance - (x.v <-> y.v)) > 1e-4 * distance OR src = dst),
            (SELECT count(*) FROM e WHERE src NOT IN (SELECT id FROM r) OR dst NOT IN (SELECT id FROM r)),
            (SELECT count(*) - count(DISTINCT (src, dst)) FROM e))', graph, source, k) INTO wrong;
    recall := knn_graph_recall(graph::regclass, source::regclass, 'id', 'v', 5000) >= 0.99;
END
$$;

CREATE TABLE t (id int PRIMARY KEY, v vector(12), note text);
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1, 1000) AS i;
SELECT edges, recall FROM knn_graph_create('g', 't', 'id', 'v', 6, auto => true);
SELECT edges, recall FROM knn_graph_create('g_lists', 't', 'id', 'v', 6, compact => true, auto => true);
CREATE FUNCTION states() RETURNS SETOF text LANGUAGE sql AS $$
    SELECT wrong || ': ' || recall FROM state('g', 't', 6) UNION ALL SELECT wrong || ': ' || recall FROM state('g_lists', 't', 6) $$;

\qecho a row, several, and a file
INSERT INTO t SELECT 1001, vec(1001, 12);
SELECT * FROM states();
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1002, 1100) AS i;
SELECT * FROM states();
COPY t FROM STDIN;
2001	[1,2,3,4,5,6,7,8,9,10,11,12]	\N
2002	[1,2,3,4,5,6,7,8,9,10,11,13]	\N
2003	\N	no vector
\.
SELECT * FROM states();
SELECT src, rank, dst, distance FROM g WHERE (src, rank) IN ((2001, 1), (2002, 1));
\qecho rows that go, that change, that change their keys, and that lose or get a vector
DELETE FROM t WHERE id % 50 = 3;
SELECT * FROM states();
UPDATE t SET v = vec(id + 7000, 12) WHERE id % 50 = 4;
SELECT * FROM states();
UPDATE t SET id = -id WHERE id % 100 = 5;
SELECT * FROM states();
UPDATE t SET v = CASE id WHEN 2003 THEN vec(2003, 12) END WHERE id IN (6, 2003);
SELECT * FROM states();
\qecho keys that go round
UPDATE t SET id = CASE id WHEN 7 THEN -7 ELSE 7 END WHERE id IN (7);
UPDATE t SET id = 7 WHERE id = 8;
UPDATE t SET id = 8 WHERE id = -7;
SELECT * FROM states();
\qecho other columns, or equal vectors, change no list
CREATE TEMP TABLE before AS SELECT ctid AS place, * FROM g;
UPDATE t SET note = 'seen', v = v::text::vector;
SELECT count(*) FROM (TABLE before EXCEPT SELECT ctid, * FROM g) AS s;

\qecho statements in statements
WITH d AS (DELETE FROM t WHERE id IN (10, 11, 12)), u AS (UPDATE t SET v = vec(8013, 12) WHERE id = 13)
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1201, 1210) AS i;
SELECT * FROM states();
INSERT INTO t SELECT i, vec(i + 50, 12) FROM generate_series(1208, 1213) AS i ON CONFLICT (id) DO UPDATE SET v = excluded.v;
SELECT * FROM states();
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE t SET v = vec(new.id + 300, 12) WHERE id = new.id AND new.id % 2 = 0;
    DELETE FROM t WHERE id = new.id AND new.id % 5 = 0;
    RETURN NULL;
END
$$;
CREATE TRIGGER meddle AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION meddle();
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1301, 1320) AS i;
SELECT * FROM states();
DROP TRIGGER meddle ON t;

\qecho what is rolled back
BEGIN;
INSERT INTO t SELECT 1400, vec(1400, 12);
SAVEPOINT here;
DELETE FROM t WHERE id < 100;
INSERT INTO t SELECT 1401, vec(1401, 12);
SELECT * FROM states();
ROLLBACK TO here;
SELECT * FROM states();
UPDATE t SET v = vec(1402, 12) WHERE id = 1400;
COMMIT;
SELECT * FROM states();
BEGIN;
TRUNCATE t;
SELECT count(*) FROM g;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1501, 1503) AS i;
DELETE FROM t WHERE id = 1502;
COMMIT;
SELECT * FROM states();

\qecho most of the table
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(10000, 12000) AS i;
SELECT * FROM states();
DELETE FROM t WHERE id < 11000;
SELECT * FROM states();
TRUNCATE t;
SELECT (SELECT count(*) FROM g), (SELECT count(*) FROM g_lists);
\qecho from nothing, row by row
INSERT INTO t SELECT 1, vec(1, 12);
INSERT INTO t SELECT 2, vec(2, 12);
SELECT src, rank, dst FROM g ORDER BY 1, 2;
INSERT INTO t SELECT 3, vec(3, 12);
DELETE FROM t WHERE id = 1;
SELECT src, rank, dst FROM g ORDER BY 1, 2;
SELECT src, neighbors FROM g_lists ORDER BY 1;
DELETE FROM t;
SELECT (SELECT count(*) FROM g), (SELECT count(*) FROM g_lists);
DO $$ BEGIN FOR i IN 1..30 LOOP INSERT INTO t SELECT i, vec(i, 12); END LOOP; END $$;
SELECT * FROM states();

\qecho by an index
CREATE INDEX t_v ON t USING ivfpq (v);
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(31, 900) AS i;
REINDEX INDEX t_v;
INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(901, 1000) AS i;
DELETE FROM t WHERE id % 9 = 1;
UPDATE t SET v = vec(id + 7000, 12) WHERE id % 9 = 2;
INSERT INTO t SELECT 1, vec(1, 12);
SELECT * FROM states();
DROP INDEX t_v;

\qecho other keys, types and metrics
CREATE TABLE u (id uuid PRIMARY KEY, v halfvec(12));
INSERT INTO u SELECT md5(i::text)::uuid, vec(i, 12)::halfvec FROM generate_series(1, 300) AS i;
SELECT edges FROM knn_graph_create('u_graph', 'u', 'id', 'v', 4, auto => true);
SELECT edges FROM knn_graph_create('u_lists', 'u', 'id', 'v', 4, compact => true, auto => true);
INSERT INTO u SELECT md5(i::text)::uuid, vec(i, 12)::halfvec FROM generate_series(301, 330) AS i;
DELETE FROM u WHERE id::text < '1';
UPDATE u SET v = (vec(5, 12) + v::vector)::halfvec WHERE id::text < '2';
SELECT * FROM state('u_graph', 'u', 4) UNION ALL SELECT * FROM state('u_lists', 'u', 4);
CREATE TABLE "odd ""names" ("a key" text PRIMARY KEY, "a 'vector" vector(3));
INSERT INTO "odd ""names" SELECT 'key ''' || i, vec(i, 3) FROM generate_series(1, 100) AS i;
SELECT edges FROM knn_graph_create('"odd ''graph"', '"odd ""names"', 'a key', 'a ''vector', 3, metric => 'cosine', auto => true);
INSERT INTO "odd ""names" VALUES ('new', '[1, 2, 3]'), ('zero', '[0, 0, 0]');
DELETE FROM "odd ""names" WHERE "a key" LIKE '%1';
SELECT count(*), count(DISTINCT src), count(*) FILTER (WHERE src = 'zero' OR dst = 'zero') FROM "odd 'graph";
SELECT knn_graph_recall('"odd ''graph"', '"odd ""names"', 'a key', 'a ''vector', 200, 'cosine') >= 0.99;
CREATE TABLE m (id smallint UNIQUE, v vector(5));
INSERT INTO m SELECT i, vec(i, 5) FROM generate_series(1, 200) AS i;
SELECT count(knn_graph_create('m_' || metric, 'm', 'id', 'v', 5, metric => metric, auto => true))
FROM unnest(ARRAY['l2', 'inner_product', 'l1', 'cosine']) AS metric;
INSERT INTO m SELECT i, vec(i, 5) FROM generate_series(201, 240) AS i;
DELETE FROM m WHERE id % 10 = 0;
UPDATE m SET v = '[0,0,0,0,0]' - v WHERE id % 10 = 1;
SELECT metric, knn_graph_recall(('m_' || metric)::regclass, 'm', 'id', 'v', 300, metric) >= 0.97
FROM unnest(ARRAY['l2', 'inner_product', 'l1', 'cosine']) AS metric;

\qecho names that change
ALTER TABLE g RENAME TO graph;
ALTER TABLE t RENAME TO items;
CREATE SCHEMA knn_graph_auto_other;
ALTER TABLE graph SET SCHEMA knn_graph_auto_other;
SET search_path = knn_graph_auto_other, knn_graph_auto_test, public, ivfpq_test;
INSERT INTO items SELECT 2000, vec(2000, 12);
SELECT * FROM state('graph', 'items', 6);
ALTER TABLE items RENAME v TO vector;
INSERT INTO items SELECT 2001, vec(2001, 12);
ALTER TABLE items RENAME vector TO v;
INSERT INTO items SELECT 2001, vec(2001, 12);
SELECT * FROM state('graph', 'items', 6);
\qecho not any more
INSERT INTO items SELECT NULL, vec(3000, 12);
ALTER TABLE items DROP CONSTRAINT t_pkey;
INSERT INTO items SELECT 2002, vec(2002, 12);
ALTER TABLE items ADD CONSTRAINT t_pkey PRIMARY KEY (id) DEFERRABLE;
INSERT INTO items SELECT 2002, vec(2002, 12);
ALTER TABLE items DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY (id);
CREATE TABLE child () INHERITS (items);
INSERT INTO items SELECT 2002, vec(2002, 12);
DROP TABLE child;
CREATE TABLE parent (LIKE items);
ALTER TABLE items INHERIT parent;
CREATE TABLE parts (LIKE items) PARTITION BY RANGE (id);
ALTER TABLE parts ATTACH PARTITION items FOR VALUES FROM (1) TO (5000);
INSERT INTO items SELECT 2002, vec(2002, 12);
SELECT * FROM state('graph', 'items', 6) UNION ALL SELECT * FROM state('g_lists', 'items', 6);
SELECT knn_graph_stop('g_lists'), knn_graph_stop('g_lists');
INSERT INTO items SELECT 2003, vec(2003, 12);
SELECT wrong FROM state('g_lists', 'items', 6);
DROP TABLE graph;
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'items'::regclass;
SELECT count(knn_graph_create('g', 'items', 'id', 'v', 6, auto => true));
-- A trigger that differs from the graph's in k.
CREATE TRIGGER shorter AFTER INSERT ON items REFERENCING NEW TABLE AS n WHEN ('g'::regclass IS NOT NULL)
    EXECUTE FUNCTION knn_graph_keep('id', 'v', 'l2', '1');
INSERT INTO items SELECT 2004, vec(2004, 12);
DROP TRIGGER shorter ON items;
DROP TABLE items;
SELECT count(*) > 0, count(DISTINCT src) FROM g;
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'g'::regclass;

\qecho what cannot be kept
CREATE TABLE plain (id int, v vector(3));
CREATE TABLE later (id int PRIMARY KEY DEFERRABLE, v vector(3));
CREATE TABLE partial (id int, v vector(3));
CREATE UNIQUE INDEX ON partial (id) WHERE id > 5;
CREATE TABLE good (id int PRIMARY KEY, v vector(3));
CREATE VIEW seen AS TABLE good;
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (1) TO (5000);
ALTER TABLE part_1 ADD PRIMARY KEY (id);
CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY, v vector(3));
CREATE TABLE hidden (id int PRIMARY KEY, v vector(3));
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON hidden USING (id < 5);
SELECT a, error_of(format('SELECT knn_graph_create(%s, auto => true)', a)) FROM unnest(ARRAY[
    $$'x', 'plain', 'id', 'v', 3$$, $$'x', 'later', 'id', 'v', 3$$, $$'x', 'partial', 'id', 'v', 3$$, $$'x', 'seen', 'id', 'v', 3$$,
    $$'x', 'parts', 'id', 'v', 3$$, $$'x', 'part_1', 'id', 'v', 3$$, $$'x', 'good', 'id', 'nothing', 3$$,
    $$'x', 'good', 'id', 'v', 3, unlogged => true$$, $$'pg_temp.x', 'good', 'id', 'v', 3$$, $$'x', 'fleeting', 'id', 'v', 3$$]) AS a;
SELECT error_of($$SELECT knn_graph_create('x', 'good', 'id', 'v', 3, auto => NULL)$$);
SELECT count(knn_graph_create('fleeting_graph', 'fleeting', 'id', 'v', 3, unlogged => true, auto => true));
CREATE TRIGGER own AFTER INSERT ON plain EXECUTE FUNCTION knn_graph_keep();
INSERT INTO plain VALUES (1, '[1, 2, 3]');
CREATE TRIGGER own AFTER INSERT ON good REFERENCING NEW TABLE AS n WHEN ('g'::regclass IS NOT NULL)
    EXECUTE FUNCTION knn_graph_keep('id', 'v', 'l2', '6');
INSERT INTO good VALUES (1, '[1, 2, 3]');
SELECT error_of('SELECT knn_graph_keep()');
-- Keys that a collation takes for equal; where PostgreSQL is built without ICU, there are none.
CREATE FUNCTION refuses_folded_keys() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    CREATE TABLE folded (id text COLLATE any_case PRIMARY KEY, v vector(3));
    RETURN error_of('SELECT knn_graph_create(''x'', ''folded'', ''id'', ''v'', 3, auto => true)') =
        '0A000 column "id" of table "folded" has a nondeterministic collation | It does not tell all keys apart.';
EXCEPTION WHEN feature_not_supported OR undefined_object THEN
    RETURN true;
END $$;
SELECT refuses_folded_keys();
DROP SCHEMA knn_graph_auto_other CASCADE;
DROP SCHEMA knn_graph_auto_test CASCADE;
