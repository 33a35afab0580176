-- knn_graph_create: pages written directly, rows inserted where that is not possible, the compact form.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

CREATE SCHEMA knn_graph_pages_test;
SET search_path = knn_graph_pages_test, public, ivfpq_test;
SET client_min_messages = warning;

CREATE TABLE t (id int PRIMARY KEY, v vector(6));
INSERT INTO t SELECT i, vec(i, 6) FROM generate_series(1, 2000) AS i;
CREATE TABLE truth AS SELECT * FROM knn_graph('t', 'id', 'v', 7, 'exact');
CREATE FUNCTION differences(edges text, truth regclass DEFAULT 'truth') RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    answer bigint;
BEGIN
    EXECUTE format('SELECT (SELECT count(*) FROM (%1$s EXCEPT ALL TABLE %2$s) AS s) +
                           (SELECT count(*) FROM (TABLE %2$s EXCEPT ALL %1$s) AS s)', edges, truth) INTO answer;
    RETURN answer;
END
$$;
CREATE FUNCTION unnested(graph regclass) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT src, rank::int, dst, distance FROM %s, ROWS FROM (unnest(neighbors), unnest(distances))
                   WITH ORDINALITY AS list (dst, distance, rank)', graph)
$$;

\qecho edges: pages of the table and of its index
SELECT created, edges, recall FROM knn_graph_create('g', 't', 'id', 'v', 7, 'exact');
SELECT differences('TABLE g');
SELECT reltuples, relpages > 100 FROM pg_class WHERE oid = 'g'::regclass;
SELECT reltuples, relpages > 50 FROM pg_class WHERE oid = 'g_pkey'::regclass;
SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
WHERE attrelid = 'g'::regclass AND attnum > 0 ORDER BY attnum;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT plan_of('SELECT * FROM g WHERE src = 1234 AND rank = 5');
SELECT count(*), count(DISTINCT src) FROM (SELECT src FROM g ORDER BY src, rank) AS s;
SELECT count(*) FROM t, LATERAL (SELECT FROM g JOIN truth AS u USING (src, rank, dst) WHERE g.src = t.id AND g.rank = 3 AND u.src = t.id) AS e
WHERE t.id % 20 = 0;
RESET enable_seqscan;
RESET enable_bitmapscan;
SELECT error_of('INSERT INTO g VALUES (2000, 7, 1, 1)');
SELECT error_of('INSERT INTO g VALUES (1, 1, 1, 1)');
INSERT INTO g SELECT src, rank + 100, dst, distance FROM g WHERE src % 3 = 0;
SELECT count(*) FROM g WHERE rank > 100;
DELETE FROM g WHERE rank > 100;
VACUUM g;
SELECT differences('TABLE g');

\qecho one row, one edge each, none; sources that do not ascend; in parts
CREATE TABLE one AS SELECT * FROM t WHERE id = 1;
SELECT created, edges, recall FROM knn_graph_create('g_one', 'one', 'id', 'v', 7);
INSERT INTO g_one VALUES (1, 1, 2, 3);
SELECT * FROM g_one WHERE src = 1;
CREATE TABLE two AS SELECT -id AS id, v FROM t WHERE id <= 2;
SELECT created, edges, recall FROM knn_graph_create('g_two', 'two', 'id', 'v', 7);
SELECT src, rank, dst FROM g_two ORDER BY src, rank;
CREATE TABLE mixed AS SELECT * FROM t ORDER BY hashint4(id);
-- neighbors as far as each other are in the order of the table
CREATE TABLE mixed_truth AS SELECT * FROM knn_graph('mixed', 'id', 'v', 7, 'exact');
SELECT edges FROM knn_graph_create('g_mixed', 'mixed', 'id', 'v', 7, 'exact');
SELECT differences('TABLE g_mixed', 'mixed_truth');
SELECT src, rank FROM g_mixed WHERE ctid = '(0,1)';
SET maintenance_work_mem = '1MB';
SELECT edges FROM knn_graph_create('g_parts', 'mixed', 'id', 'v', 7, 'exact');
RESET maintenance_work_mem;
SELECT differences('TABLE g_parts', 'mixed_truth');
SET enable_seqscan = off;
SELECT count(*) FROM g_parts WHERE src BETWEEN 100 AND 199;
RESET enable_seqscan;

\qecho in a transaction: seen by what follows, gone with a savepoint
BEGIN;
SAVEPOINT a;
SELECT edges FROM knn_graph_create('g_saved', 't', 'id', 'v', 7, 'exact');
SELECT differences('TABLE g_saved');
ROLLBACK TO a;
SELECT to_regclass('g_saved');
SELECT edges FROM knn_graph_create('g_saved', 't', 'id', 'v', 7, 'exact');
DECLARE c CURSOR FOR SELECT count(*) FROM g_saved;
DELETE FROM g_saved WHERE src > 1000;
FETCH c;
COMMIT;
SELECT count(*) FROM g_saved;

\qecho compact
SELECT created, edges, recall FROM knn_graph_create('c', 't', 'id', 'v', 7, 'exact', compact => true);
SELECT differences(unnested('c'));
SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
WHERE attrelid = 'c'::regclass AND attnum > 0 ORDER BY attnum;
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'c'::regclass AND contype = 'p';
SELECT knn_graph_recall('c', 't', 'id', 'v', 500);
SELECT count(*) FROM (SELECT * FROM knn_components('c') EXCEPT SELECT * FROM knn_components('g')) AS s;
SELECT count(*) FROM (SELECT * FROM knn_path('c', 1, 900) EXCEPT SELECT * FROM knn_path('g', 1, 900)) AS s;
-- longer than a page, so that it is stored beside the table
SELECT edges FROM knn_graph_create('c_long', 't', 'id', 'v', 900, 'exact', compact => true);
SELECT min(cardinality(neighbors)), max(cardinality(distances)), count(*) FROM c_long;
CREATE TABLE long_edges AS SELECT * FROM knn_graph('t', 'id', 'v', 900, 'exact') WHERE src % 50 = 7;
SELECT count(*) FROM long_edges AS l JOIN c_long AS c ON c.src = l.src AND c.neighbors[l.rank] = l.dst AND c.distances[l.rank] = l.distance;
INSERT INTO t SELECT i, vec(i, 6) FROM generate_series(2001, 2040) AS i;
DELETE FROM t WHERE id % 100 = 0;
SELECT added, changed > 0, removed FROM knn_graph_append('c', 't', 'id', 'v');
SELECT added, changed > 0, removed FROM knn_graph_append('g', 't', 'id', 'v');
SELECT count(*) FROM (SELECT src, rank::int, dst, distance FROM c, ROWS FROM (unnest(neighbors), unnest(distances))
                      WITH ORDINALITY AS list (dst, distance, rank) EXCEPT ALL TABLE g) AS s;
SELECT * FROM knn_graph_append('c', 't', 'id', 'v');
SELECT knn_graph_recall('c', 't', 'id', 'v', 2000), (SELECT count(*) FROM c);

\qecho keys of other types, temporary and unlogged tables
CREATE TABLE named AS SELECT 'n' || id AS id, ('00000000-0000-0000-0000-' || lpad(id::text, 12, '0'))::uuid AS u, v FROM t WHERE id <= 100;
SELECT created, edges, recall FROM knn_graph_create('n', 'named', 'id', 'v', 3);
SELECT created, edges, recall FROM knn_graph_create('u', 'named', 'u', 'v', 3);
SELECT created, edges, recall FROM knn_graph_create('nc', 'named', 'id', 'v', 3, compact => true);
SELECT created, edges, recall FROM knn_graph_create('uc', 'named', 'u', 'v', 3, compact => true);
SELECT count(*) FROM n JOIN nc USING (src) WHERE nc.neighbors[rank] = dst AND nc.distances[rank] = distance;
SELECT count(*) FROM u JOIN uc USING (src) WHERE uc.neighbors[rank] = dst AND uc.distances[rank] = distance;
DELETE FROM named WHERE id IN ('n7', 'n20', 'n21', 'n50');
SELECT added, changed > 0, removed FROM knn_graph_append('uc', 'named', 'u', 'v');
SELECT knn_graph_recall('uc', 'named', 'u', 'v');
SELECT created, edges FROM knn_graph_create('pg_temp.temporary', 'two', 'id', 'v', 7);
SELECT created, edges FROM knn_graph_create('unlogged_graph', 'two', 'id', 'v', 7, unlogged => true);
SELECT relname, relpersistence FROM pg_class
WHERE relname IN ('temporary', 'unlogged_graph', 'unlogged_graph_pkey', 'g') AND relnamespace <> 0 ORDER BY relname;
SELECT src, rank, dst FROM temporary ORDER BY src;

\qecho keys that an index has no room for, unless they are compressed
CREATE TABLE long_keys AS SELECT id, v FROM named WHERE id < 'n2';
UPDATE long_keys SET id = repeat('long ', 2000) WHERE id = 'n1';
SELECT edges FROM knn_graph_create('l', 'long_keys', 'id', 'v', 3);
SELECT edges FROM knn_graph_create('lc', 'long_keys', 'id', 'v', 3, compact => true);
UPDATE long_keys SET id = 'long' || (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 100) AS i) WHERE id = 'n10';
SELECT error_of($$SELECT knn_graph_create('x', 'long_keys', 'id', 'v', 3)$$);
SELECT error_of($$SELECT knn_graph_create('x', 'long_keys', 'id', 'v', 3, compact => true)$$);

\qecho triggers that change the type of a column, a view that writes to the graph
BEGIN;
CREATE FUNCTION change_type() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tg_tag = 'CREATE TABLE AS' THEN
        EXECUTE 'ALTER TABLE x ALTER ' || current_setting('test.change');
    END IF;
END $$;
CREATE EVENT TRIGGER change_type ON ddl_command_end EXECUTE FUNCTION change_type();
SELECT c, error_of(format('SET LOCAL test.change = %L; SELECT knn_graph_create(%s)', c, a)) FROM (VALUES
    ('dst TYPE int', $$'x', 't', 'id', 'v', 3$$), ('distance TYPE text', $$'x', 'named', 'id', 'v', 3$$),
    ('src TYPE uuid USING null', $$'x', 'named', 'id', 'v', 3$$), ('distance TYPE text', $$'pg_temp.x', 't', 'id', 'v', 3$$),
    ('distances TYPE text[]', $$'x', 't', 'id', 'v', 3, compact => true$$)) AS s (c, a);
ROLLBACK;
CREATE FUNCTION written(i int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF i % 701 = 0 THEN
        EXECUTE format('INSERT INTO x VALUES (%s, 100, 1, 1)', i);
    END IF;
    RETURN i;
END $$;
CREATE VIEW writes AS SELECT written(id) AS id, v FROM t;
SELECT error_of($$SELECT knn_graph_create('x', 'writes', 'id', 'v', 3, 'exact')$$);

\qecho mistakes
SELECT error_of(format('SELECT knn_graph_create(%s)', a)) FROM unnest(ARRAY[
    $$'x', 't', 'id', 'v', 3, compact => NULL$$,
    $$'x', 't', 'id', 'v', 3, unlogged => NULL$$,
    $$'pg_temp.x', 't', 'id', 'v', 3, unlogged => true$$]) AS a;
CREATE TABLE no_graph (src bigint, neighbors text[], distances real[]);
SELECT error_of($$SELECT * FROM knn_components('no_graph')$$);
ALTER TABLE no_graph DROP neighbors, ADD neighbors bigint[], DROP distances;
SELECT error_of($$SELECT * FROM knn_components('no_graph')$$);
ALTER TABLE no_graph ADD distances real[];
INSERT INTO no_graph VALUES (1, '{2,3}', '{0.5}');
SELECT error_of($$SELECT * FROM knn_components('no_graph')$$);
SELECT to_regclass('x');
DROP SCHEMA knn_graph_pages_test CASCADE;

\qecho lists without neighbors, with a null, and of two lengths: a table, read by itself, and a view, read by a query
CREATE TABLE hand_made (src bigint, neighbors bigint[], distances real[]);
CREATE VIEW seen AS SELECT * FROM hand_made;
INSERT INTO hand_made VALUES (1, '{2,3}', '{1,2}'), (4, '{}', '{}'), (5, NULL, NULL), (6, '{7}', '{1}'), (7, '{{6,8}}', '{{1,2}}');
SELECT * FROM knn_components('hand_made') ORDER BY node;
SELECT count(*) FROM (SELECT * FROM knn_components('hand_made') EXCEPT SELECT * FROM knn_components('seen')) AS s;
INSERT INTO hand_made VALUES (9, '{1,2}', '{1}');
SELECT count(*) FROM knn_components('hand_made');
SELECT count(*) FROM knn_components('seen');
UPDATE hand_made SET neighbors = '{1,NULL}', distances = '{1,2}' WHERE src = 9;
SELECT count(*) FROM knn_components('hand_made');
UPDATE hand_made SET src = NULL, neighbors = '{1}', distances = '{1}' WHERE src = 9;
SELECT count(*) FROM knn_components('hand_made');
UPDATE hand_made SET src = 9, distances = NULL WHERE src IS NULL;
SELECT count(*) FROM knn_components('hand_made');
DROP TABLE hand_made CASCADE;
