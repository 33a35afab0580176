-- A database for sqlsmith (test/t/081_sqlsmith.pl): small tables with indexes of every kind, what functions
-- take as arguments, and functions and views that bring scans and sets of rows to sqlsmith, which knows
-- neither ORDER BY nor functions that return sets. Run by the role that sqlsmith connects as.
CREATE SCHEMA things;
SET search_path = things, public, ivfpq_test;
CREATE TYPE colour AS ENUM ('red', 'green', 'blue');

CREATE FUNCTION fill(relation text, rows int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO %s SELECT i, CASE WHEN i %% 50 > 0 THEN vec(i %% 1100, 8) END, vec(i, 8)::halfvec, i %% 7,
        (ARRAY[''red'', ''green'', ''blue'']::colour[])[i %% 4], ARRAY[i %% 10, i %% 3], md5((i %% 5)::text), now() - i * interval ''1 s'',
        i %% 2 = 0 FROM generate_series(1, %s) AS i', relation, rows);
END
$$;
CREATE TABLE plain (id int, v vector(8), h halfvec(8), small int, hue colour, tags int[], word text, at timestamptz, even bool);
CREATE TABLE refined (LIKE plain);
CREATE TABLE nibbles (LIKE plain);
CREATE TABLE additive (LIKE plain);
CREATE TABLE rotated (LIKE plain);
CREATE TABLE halves (LIKE plain);
CREATE TABLE pending (LIKE plain);
CREATE TABLE keyed (LIKE plain, PRIMARY KEY (id));
CREATE TABLE parts (LIKE plain) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (1200);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (1200) TO (2400);
CREATE TABLE parts_3 PARTITION OF parts DEFAULT;
CREATE INDEX pending_v ON pending USING ivfpq (v, small) WITH (lists = 3);
SELECT fill(name, 1200) FROM unnest('{plain,refined,nibbles,additive,rotated,keyed}'::text[]) AS name;
SELECT fill('halves', 1800), fill('parts', 3600);
SELECT fill('pending', 40);
CREATE INDEX plain_v ON plain USING ivfpq (v) WITH (lists = 6, m = 8);
CREATE INDEX plain_ip ON plain USING ivfpq (v vector_ip_ops, even) WITH (lists = 4, m = 4);
CREATE INDEX refined_v ON refined USING ivfpq (v, small, hue, tags, word, at, even) WITH (lists = 5, m = 4, refine = int8);
CREATE INDEX nibbles_v ON nibbles USING ivfpq (v vector_cosine_ops, tags) WITH (lists = 4, m = 4, bits = 4);
CREATE INDEX additive_v ON additive USING ivfpq (v, id) WITH (lists = 3, m = 4, quantizer = lsq, rounds = 1);
CREATE INDEX rotated_v ON rotated USING ivfpq (v) WITH (lists = 3, m = 4, quantizer = opq);
CREATE INDEX halves_h ON halves USING ivfpq (h, small) WITH (lists = 3);
CREATE INDEX halves_v ON halves USING ivfpq ((v::halfvec(8)) halfvec_l2_ops) WHERE small < 5;
CREATE INDEX keyed_v ON keyed USING ivfpq (v, id) WITH (lists = 4, m = 8);
CREATE INDEX parts_v ON parts USING ivfpq (v, small) WITH (lists = 3);
-- Dead entries, and some after the build.
DELETE FROM refined WHERE id % 7 = 0;
UPDATE keyed SET v = vec(id, 8, 1) WHERE id % 9 = 0;
INSERT INTO nibbles SELECT * FROM plain WHERE id < 60;
SELECT created FROM knn_graph_create('graph', 'keyed', 'id', 'v', 5);
CREATE INDEX keyed_h ON keyed USING ivfpq (h halfvec_l2_ops);

-- What functions take.
CREATE TABLE names (relation regclass, index regclass, graph regclass, any_relation regclass, col name, key_col name, method text, metric text,
    condition text, columns text[], number int, long bigint, yes bool, new_name text);
INSERT INTO names SELECT
    ('{plain,refined,keyed,parts,pending,names,plain_v,graph}'::text[])[1 + i % 8]::regclass,
    ('{plain_v,refined_v,nibbles_v,additive_v,rotated_v,halves_h,halves_v,keyed_v,parts_v,pending_v,plain_ip,keyed_pkey}'::text[])[1 + i % 12]::regclass,
    ('{graph,graph,graph,plain}'::text[])[1 + i % 4]::regclass,
    CASE WHEN i % 5 = 0 THEN 4000000 + i ELSE (SELECT oid FROM pg_class ORDER BY oid DESC OFFSET i % 40 LIMIT 1) END::regclass,
    ('{v,v,v,h,word,nothing,ctid,""}'::text[])[1 + i % 8], ('{id,id,id,small,long,word,v}'::text[])[1 + i % 7],
    ('{auto,exact,descent,index,nothing}'::text[])[1 + i % 5], ('{l2,cosine,inner_product,l1,nothing}'::text[])[1 + i % 5],
    (ARRAY['small < 3', 'id = 7', $$hue = 'red'$$, 'v IS NULL', 'nothing(', 'true; SELECT 1', '1/0 = 1', '', NULL])[1 + i % 9],
    (ARRAY['{small}', '{}', '{id,small}', '{nothing}', '{NULL}', NULL])[1 + i % 6]::text[],
    (ARRAY[0, 1, 2, 3, 5, 10, 100, -1, 2147483647, 40, 4, NULL])[1 + i % 12], (ARRAY[1, 3, 9, 0, -1, 9223372036854775807, 400, NULL])[1 + i % 8],
    i % 2 = 0, 'made_' || i
FROM generate_series(0, 41) AS i;
CREATE TABLE vectors (v vector, h halfvec, vs vector[], hs halfvec[], reals real[], doubles float8[], numbers int[], exact numeric[], words text);
INSERT INTO vectors VALUES
    ('[1,2,3,4,5,6,7,8]', '[1,2,3,4,5,6,7,8]', '{"[1,2,3,4,5,6,7,8]","[9,9,9,9,9,9,9,9]"}', '{"[1,2,3,4,5,6,7,8]"}', '{1,2}', '{3,1,2,3}', '{1,2,3}', '{1.5}', '{"[1,2,3,4,5,6,7,8]"}'),
    ('[0,0,0,0,0,0,0,0]', '[0,0,0,0,0,0,0,0]', '{}', '{}', '{}', '{0}', '{}', '{}', '{}'),
    ('[1]', '[1]', '{"[1]",NULL}', '{NULL}', '{NaN}', '{NaN,Infinity}', '{NULL}', '{NaN}', '[1]'),
    ('[3e38,-3e38,1e-45,0,0,0,0,1]', '[65504,-65504,6e-8,0,0,0,0,1]', '{{"[1]"},{"[2]"}}', NULL, '{{1,2},{3,4}}', '{-1,1e308,1e308}', '{{1},{2}}', '{1e300}', 'x'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

-- Scans: with a limit, and without, where conditions of the query around it become those of the scan.
DO $$
DECLARE
    each record;
BEGIN
    FOR each IN SELECT * FROM (VALUES ('plain', 'v <-> vec(3, 8)'), ('plain', 'v <#> vec(4, 8)'), ('refined', 'v <-> vec(5, 8)'),
        ('nibbles', 'v <=> vec(6, 8)'), ('additive', 'v <-> vec(7, 8)'), ('rotated', 'v <-> vec(8, 8)'), ('halves', 'h <-> vec(9, 8)::halfvec'),
        ('keyed', 'v <-> (SELECT v FROM plain WHERE id = 3)'), ('keyed', 'h <-> vec(12, 8)::halfvec'), ('parts', 'v <-> vec(10, 8)'), ('pending', 'v <-> vec(11, 8)')) AS s (relation, distance)
    LOOP
        EXECUTE format('CREATE VIEW near_%s_%s AS SELECT *, %s AS distance FROM %s ORDER BY %3$s LIMIT 12', each.relation, (SELECT count(*) FROM pg_class), each.distance, each.relation);
        EXECUTE format('CREATE VIEW ordered_%s_%s AS SELECT *, %s AS distance FROM %s ORDER BY %3$s', each.relation, (SELECT count(*) FROM pg_class), each.distance, each.relation);
    END LOOP;
END
$$;
CREATE VIEW part_of_halves AS SELECT * FROM halves WHERE small < 5 ORDER BY v::halfvec(8) <-> vec(3, 8)::halfvec;
CREATE VIEW within_keyed AS SELECT * FROM keyed WHERE v <-> vec(3, 8) < 300 ORDER BY v <-> vec(3, 8);
CREATE VIEW joined_refined AS SELECT q.id AS query, n.* FROM keyed AS q, LATERAL
    (SELECT r.* FROM refined AS r WHERE r.small <> q.small ORDER BY r.v <-> q.v LIMIT 3) AS n WHERE q.id < 20;
CREATE VIEW joined_parts AS SELECT q.id AS query, n.* FROM plain AS q, LATERAL
    (SELECT r.* FROM parts AS r ORDER BY r.v <-> q.v LIMIT 3) AS n WHERE q.id < 20;

-- Calls a function with arguments from the tables above. An error's context has the call.
CREATE FUNCTION call_any(name text, types text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    given text[] := '{}';
    type text;
    value text;
    rows bigint;
BEGIN
    FOREACH type IN ARRAY types LOOP
        value := CASE type
            WHEN 'regclass' THEN (SELECT (ARRAY[index, index, index, relation, relation, graph, any_relation])[1 + floor(random() * 7)::int]::text FROM names ORDER BY random() LIMIT 1)
            WHEN 'name' THEN (SELECT (ARRAY[col, col, key_col])[1 + floor(random() * 3)::int] FROM names ORDER BY random() LIMIT 1)
            WHEN 'text' THEN (SELECT (ARRAY[method, metric, condition, new_name, NULL, '<->', '[1,2,3,4,5,6,7,8]'])[1 + floor(random() * 7)::int] FROM names ORDER BY random() LIMIT 1)
            WHEN 'text[]' THEN (SELECT columns::text FROM names ORDER BY random() LIMIT 1)
            WHEN 'integer' THEN (SELECT number::text FROM names ORDER BY random() LIMIT 1)
            WHEN 'bigint' THEN (SELECT long::text FROM names ORDER BY random() LIMIT 1)
            WHEN 'boolean' THEN (random() < 0.5)::text
            WHEN 'vector[]' THEN (SELECT vs::text FROM vectors ORDER BY random() LIMIT 1)
            WHEN 'halfvec[]' THEN (SELECT hs::text FROM vectors ORDER BY random() LIMIT 1)
            WHEN 'real[]' THEN (SELECT reals::text FROM vectors ORDER BY random() LIMIT 1)
            WHEN 'double precision[]' THEN (SELECT doubles::text FROM vectors ORDER BY random() LIMIT 1)
            WHEN 'integer[]' THEN (SELECT numbers::text FROM vectors ORDER BY random() LIMIT 1)
            WHEN 'numeric[]' THEN (SELECT exact::text FROM vectors ORDER BY random() LIMIT 1)
            WHEN 'halfvec' THEN (SELECT h::text FROM vectors ORDER BY random() LIMIT 1)
            ELSE (SELECT v::text FROM vectors ORDER BY random() LIMIT 1) -- vector, anyelement
        END;
        given := given || format('%L::%s', value, CASE WHEN type = 'anyelement' THEN 'vector' ELSE type END);
    END LOOP;
    EXECUTE format('SELECT count(*) FROM (SELECT * FROM %s(%s)) AS s', name, array_to_string(given, ', ')) INTO rows;
    RETURN rows;
END
$$;

-- pgwarp's functions that SQL may call.
CREATE VIEW functions AS
    SELECT p.oid, p.proname, p.proretset OR p.prorettype = 'record'::regtype OR 'regclass'::regtype = ANY (p.proargtypes) AS has_rows,
        format('%I.%I', n.nspname, p.proname) AS name, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t) AS types
    FROM pg_catalog.pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
    JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'pgwarp' JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE p.prokind = 'f' AND NOT '{internal,cstring,cstring[]}'::regtype[]::oid[] && p.proargtypes::oid[];

-- Functions in turn, for a number of rounds: what came of it, how often, and the first call of each kind.
CREATE FUNCTION call_all(rounds int) RETURNS TABLE (what text, times bigint, call text) LANGUAGE plpgsql AS $$
DECLARE
    each record;
    message text;
    context text;
BEGIN
    CREATE TEMP TABLE outcomes (what text, call text);
    FOR i IN 1 .. rounds LOOP
        FOR each IN SELECT f.name, f.types FROM functions AS f ORDER BY f.oid LOOP
            BEGIN
                PERFORM call_any(each.name, each.types);
                INSERT INTO outcomes VALUES ('ok ' || each.name);
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, context = PG_EXCEPTION_CONTEXT;
                INSERT INTO outcomes VALUES (SQLSTATE || ' ' || each.name || ': ' || regexp_replace(message, '\d+', '#', 'g'), context);
            END;
        END LOOP;
    END LOOP;
    RETURN QUERY SELECT o.what, count(*), min(o.call) FROM outcomes AS o GROUP BY o.what;
    DROP TABLE outcomes;
END
$$;

-- Each function with rows, for sqlsmith: as one that returns their number, and one without arguments.
DO $$
DECLARE
    each record;
    arguments text;
BEGIN
    FOR each IN SELECT * FROM functions WHERE has_rows LOOP
        SELECT coalesce(string_agg('$' || i, ', '), '') INTO arguments FROM generate_series(1, cardinality(each.types)) AS i;
        EXECUTE format('CREATE FUNCTION rows_of_%s_%s(%s) RETURNS bigint LANGUAGE sql AS $f$SELECT count(*) FROM (SELECT * FROM %s(%s)) AS s$f$',
            each.proname, each.oid, array_to_string(each.types, ', '), each.name, arguments);
        EXECUTE format('CREATE FUNCTION any_%s_%s() RETURNS int LANGUAGE sql AS $f$SELECT things.call_any(%L, %L)::int$f$',
            each.proname, each.oid, each.name, each.types);
    END LOOP;
END
$$;
CREATE FUNCTION nearest_id(query vector) RETURNS int LANGUAGE sql STABLE AS 'SELECT id FROM things.refined ORDER BY v <-> query LIMIT 1';
CREATE FUNCTION nearest_half(query halfvec) RETURNS int LANGUAGE sql STABLE AS 'SELECT id FROM things.halves ORDER BY h <-> query LIMIT 1';
CREATE FUNCTION nearest_vector(query vector) RETURNS vector LANGUAGE sql STABLE AS 'SELECT v FROM things.parts ORDER BY v <-> query OFFSET 2 LIMIT 1';
CREATE FUNCTION a_vector() RETURNS vector LANGUAGE sql VOLATILE AS 'SELECT v FROM things.plain ORDER BY random() LIMIT 1';
CREATE FUNCTION a_half() RETURNS halfvec LANGUAGE sql VOLATILE AS 'SELECT h FROM things.plain ORDER BY random() LIMIT 1';

-- sqlsmith reads pg_proc by this name: it sees pgwarp's functions, those above, and some of PostgreSQL's.
CREATE SCHEMA seen;
CREATE VIEW seen.pg_proc AS SELECT p.* FROM pg_catalog.pg_proc AS p WHERE p.pronamespace IN ('things'::regnamespace, 'public'::regnamespace)
    AND p.proname NOT IN ('call_any', 'call_all', 'fill')
    OR p.prokind = 'a' AND p.proname IN ('count', 'sum', 'min', 'max', 'avg', 'bool_and')
    OR p.prokind = 'w' OR p.pronamespace = 'pg_catalog'::regnamespace AND p.proname IN ('abs', 'length', 'random', 'now', 'md5', 'cardinality', 'row_number');
