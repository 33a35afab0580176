-- Functions over whole tables: which relations they read, and what of them the caller sees. kmeans
-- with one cluster tells what was read: the number of rows and their mean.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE FUNCTION seen(r regclass, c name DEFAULT 'v') RETURNS text LANGUAGE sql AS $$
    SELECT size || ' ' || centroid FROM kmeans(r, c, 1, 1)
$$;

\qecho tables, views, materialized views, temporary tables, quoted names
CREATE TABLE t (id int, v vector(2));
INSERT INTO t SELECT i, ARRAY[i, -i]::vector FROM generate_series(1, 99) AS i;
SELECT seen('t');
CREATE VIEW w AS SELECT v, v || v AS "v v" FROM t WHERE id <= 9;
SELECT seen('w'), seen('w', 'v v');
CREATE MATERIALIZED VIEW mw AS SELECT v FROM t WHERE id <= 19;
SELECT seen('mw');
REFRESH MATERIALIZED VIEW mw WITH NO DATA;
SELECT error_of($$SELECT seen('mw')$$);
CREATE TEMP TABLE tt AS SELECT v FROM t WHERE id <= 3;
SELECT seen('tt');
CREATE SCHEMA "a schema";
CREATE TABLE "a schema"."T""t" ("V ""v" vector, dropped int);
INSERT INTO "a schema"."T""t" SELECT v FROM t;
ALTER TABLE "a schema"."T""t" DROP dropped;
CREATE VIEW "a schema"."W ""w" AS SELECT * FROM "a schema"."T""t";
SELECT seen('"a schema"."T""t"', 'V "v'), seen('"a schema"."W ""w"', 'V "v');

\qecho columns: domains, nulls, other columns before and behind, added later with a default
CREATE DOMAIN embedding AS vector(2) CHECK (VALUE <> '[0,0]');
CREATE TABLE d (a text, v embedding, b text);
INSERT INTO d VALUES ('x', '[1,2]', 'y'), (NULL, NULL, 'y'), ('z', '[3,4]', NULL);
SELECT seen('d');
ALTER TABLE d ADD w vector DEFAULT '[5,6]';
SELECT seen('d', 'w');
CREATE TABLE g (a int, v vector GENERATED ALWAYS AS (ARRAY[a, a + 1]::vector) STORED);
INSERT INTO g SELECT i FROM generate_series(1, 5) AS i;
SELECT seen('g');

\qecho vectors of all sizes: packed, plain, outside of their rows, compressed
CREATE TABLE sizes (dims int, v vector);
INSERT INTO sizes SELECT d, array_fill(d + i, ARRAY[d])::vector
FROM unnest(ARRAY[1, 2, 30, 31, 32, 400, 600, 3000, 16000]) AS d, generate_series(1, 3) AS i;
CREATE VIEW sized AS SELECT v FROM sizes WHERE dims = current_setting('my.dims')::int;
CREATE TABLE size (v vector);
CREATE FUNCTION check_sizes() RETURNS TABLE (d int, table_ok boolean, view_ok boolean)
LANGUAGE plpgsql AS $$
DECLARE
    wanted text;
BEGIN
    FOR d IN SELECT DISTINCT dims FROM sizes ORDER BY 1 LOOP
        TRUNCATE size;
        INSERT INTO size SELECT v FROM sizes WHERE dims = d;
        PERFORM set_config('my.dims', d::text, false);
        SELECT count(*) || ' ' || avg(v) INTO wanted FROM size;
        table_ok := seen('size') = wanted;
        view_ok := seen('sized') = wanted;
        RETURN NEXT;
    END LOOP;
END
$$;
SELECT * FROM check_sizes();
ALTER TABLE size ALTER v SET STORAGE extended;
SELECT bool_and(table_ok AND view_ok) FROM check_sizes();
ALTER TABLE size ALTER v SET STORAGE plain;
DELETE FROM sizes WHERE dims > 1000;
SELECT bool_and(table_ok AND view_ok) FROM check_sizes();

\qecho partitions and children, with columns in another order
CREATE TABLE p (id int, v vector(2)) PARTITION BY RANGE (id);
CREATE TABLE p1 (v vector(2), junk int, id int);
ALTER TABLE p1 DROP junk;
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (1) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (id);
CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (10) TO (50);
CREATE TABLE p22 PARTITION OF p2 FOR VALUES FROM (50) TO (100);
SELECT error_of($$SELECT seen('p')$$);
INSERT INTO p SELECT * FROM t;
SELECT seen('p'), seen('p2'), seen('p1');
CREATE TABLE parent (v vector(2));
CREATE TABLE child (id int) INHERITS (parent);
INSERT INTO parent VALUES ('[1,1]');
INSERT INTO child VALUES ('[2,2]', 1), ('[6,6]', 2);
SELECT seen('parent'), seen('child');

\qecho what the snapshot sees, the own changes included
BEGIN ISOLATION LEVEL REPEATABLE READ;
DELETE FROM t WHERE id > 50;
UPDATE t SET v = '[0,0]' WHERE id > 1;
SELECT seen('t'), seen('w');
ROLLBACK;
SELECT seen('t');
-- a function that changes the table sees it as it was, or as it is
CREATE FUNCTION change_and_see() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM t WHERE id > 10;
    RETURN seen('t');
END
$$;
BEGIN;
SELECT change_and_see();
ROLLBACK;

\qecho what cannot be read
CREATE SEQUENCE s;
CREATE INDEX t_id ON t (id);
CREATE TYPE composite AS (v vector);
SELECT r, error_of(format('SELECT seen(%L::regclass)', r))
FROM unnest(ARRAY['s', 't_id', 'composite', 'pg_class', '0', '4294967295']) AS r;
SELECT c, error_of(format('SELECT seen(%L, %L)', 't', c))
FROM unnest(ARRAY['V', 'nothing', 'id', 'ctid', '']) AS c;
SELECT error_of($$SELECT seen('w', 'id')$$);

\qecho rights: on the table, on the column, through a view
CREATE ROLE regress_reader;
SET ROLE regress_reader;
SELECT r, error_of(format('SELECT seen(%L)', r)) FROM unnest(ARRAY['t', 'w', 'p', 'p1']) AS r;
RESET ROLE;
GRANT SELECT (id) ON t TO regress_reader;
SET ROLE regress_reader;
SELECT error_of($$SELECT seen('t')$$);
RESET ROLE;
GRANT SELECT (v) ON t TO regress_reader;
GRANT SELECT ON p, w TO regress_reader;
SET ROLE regress_reader;
-- of a partition one must not have the rights, nor of the table behind a view
SELECT seen('t'), seen('p'), seen('w');
SELECT error_of($$SELECT seen('p1')$$);
RESET ROLE;

\qecho row security: what policies leave
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON t TO regress_reader USING (id <= 5);
ALTER TABLE p ENABLE ROW LEVEL SECURITY;
SET ROLE regress_reader;
SELECT seen('t'), (SELECT count(*) FROM t);
SELECT error_of($$SELECT seen('p')$$);
SET row_security = off;
SELECT error_of($$SELECT seen('t')$$);
RESET row_security;
RESET ROLE;
SELECT seen('t');
-- the owner is spared, unless he insists
ALTER TABLE t OWNER TO regress_reader;
SET ROLE regress_reader;
SELECT seen('t');
ALTER TABLE t FORCE ROW LEVEL SECURITY;
SELECT seen('t');
RESET ROLE;

\qecho a table that is being read stays
CREATE FUNCTION drops(v vector) RETURNS vector LANGUAGE plpgsql AS $$
BEGIN
    DROP TABLE d CASCADE;
    RETURN v;
END
$$;
CREATE VIEW trap AS SELECT drops(v) AS v FROM d;
SELECT error_of($$SELECT seen('trap')$$);
SELECT seen('d');
-- an error in the middle of a view leaves nothing behind
CREATE VIEW broken AS SELECT ARRAY[1 / (50 - id)]::vector AS v FROM t;
SELECT error_of($$SELECT seen('broken')$$);
SELECT count(*) FROM pg_cursors WHERE name LIKE '<unnamed%';

SET client_min_messages = warning;
DROP TABLE t, tt, d, g, sizes, size, p, parent, "a schema"."T""t" CASCADE;
DROP FUNCTION seen, check_sizes, change_and_see, drops;
DROP SCHEMA "a schema" CASCADE;
DROP SEQUENCE s;
DROP TYPE composite;
DROP DOMAIN embedding;
DROP ROLE regress_reader;
