-- Conditions in the index: every type and operator, against a scan of the table.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all
SET client_min_messages = warning;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
ALTER TYPE mood ADD VALUE 'bored' BEFORE 'ok';
CREATE DOMAIN age AS int;
CREATE DOMAIN ints AS int[];
CREATE DOMAIN texts AS text[];
CREATE TABLE a (id int, v vector(8), b bool, c "char", i2 smallint, i4 int, i8 bigint, f4 real, f8 double precision,
    d date, t time, ts timestamp, tz timestamptz, o oid, e mood, x text, vc varchar(9), bp char(4), u uuid, n numeric,
    iv interval, ai int[], ax text[], g age, v2 int2vector);
-- Nulls here and there, few values each, and the ends of every type.
CREATE FUNCTION row_of(i int) RETURNS a LANGUAGE sql STABLE AS $$
    SELECT i, vec(i, 8), r[1] % 3 = 0, (CASE r[2] % 9 WHEN 8 THEN NULL ELSE (ARRAY[0, 65, 66, 97, 122, 127, -128, -1])[1 + r[2] % 8]
            END)::int::"char",
        CASE r[3] % 9 WHEN 8 THEN NULL WHEN 7 THEN -32768 WHEN 6 THEN 32767 ELSE r[3] % 9 - 3 END,
        CASE r[4] % 12 WHEN 11 THEN NULL WHEN 10 THEN -2147483648 WHEN 9 THEN 2147483647 ELSE r[4] % 12 - 4 END,
        CASE r[5] % 12 WHEN 11 THEN NULL WHEN 10 THEN -9223372036854775808 WHEN 9 THEN 9223372036854775807
            ELSE (r[5] % 12 - 4) * 3000000000 END,
        (ARRAY['NaN', 'Infinity', '-Infinity', '-0', '0', '0.1', '-1.5', '3e38', '-1e-40', NULL])[1 + r[6] % 10]::real,
        (ARRAY['NaN', 'Infinity', '-Infinity', '-0', '0', '0.1', '-1.5', '1e300', '-1e-310', NULL])[1 + r[7] % 10]::float8,
        (ARRAY['infinity', '-infinity', '2000-01-01', '1999-12-31', '2026-11-15', '4713-01-01 BC', '5000000-01-01', NULL])
            [1 + r[8] % 8]::date,
        (ARRAY['00:00', '24:00', '12:34:56.789', NULL])[1 + r[9] % 4]::time,
        (ARRAY['infinity', '-infinity', '2000-01-01', '1999-12-31 23:59:59.999999', '2026-11-15 08:00', NULL])[1 + r[10] % 6]::timestamp,
        (ARRAY['infinity', '-infinity', '2000-01-01+00', '2026-11-15 08:00+00', NULL])[1 + r[11] % 5]::timestamptz,
        CASE r[12] % 7 WHEN 6 THEN NULL WHEN 5 THEN 4294967295 ELSE r[12] % 7 END::oid,
        (ARRAY['sad', 'bored', 'ok', 'happy', NULL])[1 + r[13] % 5]::mood,
        (ARRAY['', 'a', 'b', 'ä', repeat('long ', 600), NULL])[1 + r[14] % 6],
        (ARRAY['', 'a', 'b', NULL])[1 + r[15] % 4], (ARRAY['', 'a', 'b', NULL])[1 + r[16] % 4],
        ('00000000-0000-0000-0000-00000000000' || r[17] % 5)::uuid,
        (ARRAY['1.0', '1.00', '2', 'NaN', NULL])[1 + r[18] % 5]::numeric,
        (ARRAY['1 day', '24 hours', '1 mon', NULL])[1 + r[19] % 4]::interval,
        CASE r[20] % 6 WHEN 5 THEN NULL WHEN 4 THEN '{}' ELSE ARRAY[r[20] % 6, r[21] % 4, NULL] END,
        CASE r[22] % 6 WHEN 5 THEN NULL WHEN 4 THEN '{}' ELSE ARRAY['t' || r[22] % 6, 't' || r[23] % 40] END, r[24] % 5,
        CASE r[25] % 4 WHEN 3 THEN NULL WHEN 2 THEN '' ELSE r[25] % 4 || ' ' || r[26] % 20 END::int2vector
    FROM (SELECT array_agg((hashint8extended(i * 100 + k, 9) & 65535)::int ORDER BY k) AS r FROM generate_series(1, 26) AS k) AS h
$$;
INSERT INTO a SELECT r.* FROM generate_series(1, 3000) AS i, row_of(i) AS r;
CREATE INDEX a_v ON a USING ivfpq (v, b, c, i2, i4, i8, f4, f8, d, t, ts, tz, o, e, x, vc, bp, u, n, iv, ai, ax, g, v2) WITH (lists = 12);
ANALYZE a;
SET jit = off;

-- The rows that the index gives for a condition against those of a scan of the table; all candidates, so that nothing is lost.
CREATE FUNCTION rows_of(condition text, by_index bool, k int, q int) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    rows int[];
    line text;
    plan text := '';
    query text := format('SELECT id FROM a WHERE %s ORDER BY v <-> vec(-%s, 8) LIMIT %s', condition, q, k);
BEGIN
    PERFORM set_config('enable_seqscan', (NOT by_index)::text, true), set_config('enable_indexscan', by_index::text, true),
        set_config('enable_bitmapscan', 'off', true), set_config('ivfpq.candidates', '4000', true),
        set_config('ivfpq.target_recall', '1', true);
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP plan := plan || line; END LOOP;
    -- Before 17, IN is a filter of the plan, which the scan checks as well.
    IF by_index AND (plan NOT LIKE '%Index Scan using a_v%' OR plan LIKE '%Filter%' AND condition !~ 'ANY|ALL|IN|OR|<>|^(NOT )?b') THEN
        RAISE 'not in the index: % %', condition, plan;
    END IF;
    EXECUTE 'SELECT array_agg(id) FROM (' || query || ') AS r' INTO rows;
    RETURN rows;
END $$;
-- The same for any table and all its rows; whether those that pass are its only candidates.
CREATE FUNCTION same_rows(name text, condition text, OUT rows text, OUT no_others bool) LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT array_agg(id ORDER BY id) FROM (SELECT id FROM %s WHERE %s ORDER BY v <-> vec(-1, 4) LIMIT 4000) AS r', name, condition);
    got int[];
    expected int[];
BEGIN
    PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
    EXECUTE query INTO expected;
    PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true), set_config('ivfpq.target_recall', '1', true);
    EXECUTE query INTO got;
    rows := CASE WHEN got IS NOT DISTINCT FROM expected THEN coalesce(cardinality(got), 0)::text ELSE format('got %s, not %s', got, expected) END;
    no_others := (SELECT candidates = coalesce(cardinality(got), 0) FROM ivfpq_last_scan());
END $$;
CREATE TABLE conditions (condition text);
INSERT INTO conditions SELECT format('%s %s %s', name, operator, value)
    FROM (VALUES ('b', '{true,false}'::text[]), ('c', '{''A'',''a'',''\377''}'), ('i2', '{-32768,32767,0,1::int8,40000::int8,-3000000000}'),
        ('i4', '{2147483647,-2147483648,-1,3::int2,5000000000}'), ('i8', '{3000000000,-9223372036854775808,0::int2,7}'),
        ('f4', '{0::real,0.1::real,0.1::float8,''NaN''::float8,1e300::float8,''-Infinity''::real,-1e-42::float8}'),
        ('f8', '{0::float8,0.1::real,0.1::float8,''NaN''::float8,''Infinity''::real,-1.5}'),
        ('d', '{''2000-01-01''::date,''infinity''::date,''1999-12-31 12:00''::timestamp,''infinity''::timestamp,''-infinity''::timestamp}'),
        ('t', '{''24:00''::time,''12:34:56.789''::time}'),
        ('ts', '{''2000-01-01''::timestamp,''2000-01-01''::date,''5000000-01-01''::date,''infinity''::date,''-infinity''::date}'),
        ('tz', '{''2000-01-01+00''::timestamptz,''infinity''::timestamptz,''1999-12-31''::date,''2026-11-15''::date,''5000000-01-01''::date,''infinity''::date,''-infinity''::date}'),
        ('tz', '{''1999-12-31 16:00''::timestamp,''2026-11-15''::timestamp,''294276-12-31 23:59''::timestamp,''4713-01-01 BC''::timestamp,''-infinity''::timestamp}'), ('o', '{0::oid,4294967295::oid}'),
        ('e', '{''sad''::mood,''bored''::mood,''happy''::mood}'), ('g', '{0,4}')) AS v (name, values),
    unnest(values) AS value, unnest('{<,<=,=,>=,>,<>}'::text[]) AS operator
;
INSERT INTO conditions SELECT format('%s = %s', name, value)
    FROM (VALUES ('x', '{'''',''a'',''ä'',''none''}'::text[]), ('x', ARRAY['repeat(''long '', 600)']), ('vc', '{''a'',''''}'),
        ('bp', '{''a'',''''}'), ('u', '{''00000000-0000-0000-0000-000000000003''}'), ('n', '{1,1.000,''NaN''}'),
        ('iv', '{''24 hours'',''30 days''}')) AS v (name, values), unnest(values) AS value;
INSERT INTO conditions VALUES ('b'), ('NOT b'), ('b IS TRUE'), ('b IS NOT NULL AND i4 IS NULL'), ('i4 BETWEEN -1 AND 2'), ('i4 IN (1, 2, NULL)'),
    ('i4 = ANY (''{1,2,2147483647}''::int8[])'), ('i8 = ANY (''{}''::int8[])'), ('i4 < ANY (''{-3,0,NULL}''::int[])'),
    ('i4 >= ANY (''{2,5}''::int[])'), ('x IN (''a'', ''b'')'), ('e IN (''sad'', ''ok'')'), ('e > ANY (''{bored,happy}''::mood[])'),
    ('x IS NULL'), ('x IS NOT NULL AND ai IS NULL'), ('ai && ''{1,3}'''), ('ai && ''{}'''), ('ai @> ''{2}'''), ('ai @> ''{}'''),
    ('ai @> ''{1,NULL}'''), ('ax && ''{t1,t39}'''), ('ax @> ''{t3,t7}'''), ('v IS NOT NULL AND i2 > 1'),
    ('ai && ANY (''{"{1,2}","{3}",NULL}''::ints[])'), ('ai @> ANY (''{"{1,2}","{3}"}''::ints[])'), ('ai @> ANY (''{"{1,NULL}","{}"}''::ints[])'),
    ('ai && ANY (''{"{}"}''::ints[])'), ('ai @> ANY (''{NULL}''::ints[])'), ('ai && ANY (''{"{2,3}"}''::ints[])'),
    ('ax && ANY (''{"{t1,t39}","{t7}"}''::texts[])'), ('ax @> ANY (''{"{t1,t39}","{t7}","{t2,t3}"}''::texts[])'),
    ('v2 && ''3 4'''), ('v2 @> ''1'''), ('v2 && ANY (''{1 2,3,4 5}''::int2vector[])'), ('v2 @> ANY (''{1 2,3,4 5}''::int2vector[])'),
    ('o = ANY (''{1,2}''::regclass[])'), ('i4 = ANY (''{1,2}''::age[])'), ('vc = ANY (''{a,b}''::varchar[])'),
    ('i4 <> ALL (''{1,2,5000000000}''::int8[])'), ('i4 NOT IN (1, 2, NULL)'), ('i8 <> ALL (''{}''::int8[])'), ('2 <> i4'), ('e NOT IN (''sad'', ''ok'')'),
    ('x <> ''a'''), ('x NOT IN (''a'', ''b'')'), ('NOT (i4 = 3 OR i4 = 1)'), ('i2 <> ANY (''{1,2}''::int2[])'),
    ('i4 = 1 OR i4 = 3'), ('i4 = 1 OR 3 = i4 OR i4 = NULL'), ('x = ''a'' OR x = ''b'''), ('e = ''sad'' OR e = ''ok'''), ('i4 < -3 OR i4 < 0'),
    ('i4 = 1 OR i2 = 3'), ('i4 = 1 OR i4 IS NULL'), ('i4 = 1 OR i4 = 3::int8'), ('tz = ''1999-12-31''::date OR tz = ''2026-11-15''::date'),
    ('f8 = 0.1 AND i4 > 0 AND x = ''a'''), ('d >= ''2000-01-01'' AND tz < ''infinity'' AND u = ''00000000-0000-0000-0000-000000000001''');
SELECT count(*) FROM conditions;
SELECT condition, rows_of(condition, true, k, k) AS got, rows_of(condition, false, k, k) AS expected
    FROM conditions, unnest('{7,4000}'::int[]) AS k
    WHERE rows_of(condition, true, k, k) IS DISTINCT FROM rows_of(condition, false, k, k) AND k < 4000
        OR (SELECT array_agg(r ORDER BY r) FROM unnest(rows_of(condition, true, k, k)) AS r) IS DISTINCT FROM
            (SELECT array_agg(r ORDER BY r) FROM unnest(rows_of(condition, false, k, k)) AS r);

-- Parameters, prepared statements, keys that change with every rescan.
SET enable_seqscan = off;
SET ivfpq.target_recall = 1;
PREPARE nearest(int, int) AS SELECT id FROM a WHERE i4 = $1 ORDER BY v <-> vec($2, 8) LIMIT 2;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE nearest(1, 1);
EXECUTE nearest(1, -5);
EXECUTE nearest(2, -5);
EXECUTE nearest(NULL, -5);
EXPLAIN (COSTS OFF) SELECT o.k, n.id FROM generate_series(-4, 7) AS o (k), LATERAL
    (SELECT id FROM a WHERE i4 = o.k ORDER BY v <-> vec(-7, 8) LIMIT 1) AS n;
SELECT o.k, n.id, n.id = (SELECT id FROM a WHERE i4 + 0 = o.k ORDER BY (v <-> vec(-7, 8)) + 0 LIMIT 1) AS same
    FROM generate_series(-4, 7) AS o (k), LATERAL (SELECT id FROM a WHERE i4 = o.k ORDER BY v <-> vec(-7, 8) LIMIT 1) AS n;
-- Rows without a vector have no entries: the index cannot find them.
INSERT INTO a (id, i4) VALUES (5000, 1);
SELECT scans_of('SELECT id FROM a WHERE v IS NULL ORDER BY v <-> vec(1, 8) LIMIT 1');
SELECT id FROM a WHERE v IS NULL ORDER BY v <-> vec(1, 8) LIMIT 1;
-- Other conditions stay with the executor.
EXPLAIN (COSTS OFF) SELECT id FROM a WHERE i4 = 1 AND i2 + 0 > 0 ORDER BY v <-> vec(1, 8) LIMIT 1;

-- Changes: each version of a row has its attributes.
UPDATE a SET i4 = 77 WHERE id % 10 = 3;
SELECT count(*), min(id % 10), max(id % 10) FROM (SELECT id FROM a WHERE i4 = 77 ORDER BY v <-> vec(1, 8) LIMIT 4000) AS r;
DELETE FROM a WHERE id % 20 = 3;
VACUUM (INDEX_CLEANUP ON) a;
SELECT count(*), min(id % 20), max(id % 20) FROM (SELECT id FROM a WHERE i4 = 77 ORDER BY v <-> vec(1, 8) LIMIT 4000) AS r;
SELECT * FROM ivfpq_check('a_v', true);
REINDEX INDEX a_v;
SELECT count(*), min(id % 20), max(id % 20) FROM (SELECT id FROM a WHERE i4 = 77 ORDER BY v <-> vec(1, 8) LIMIT 4000) AS r;

-- Untrained: the pending list has no attributes, its rows do.
CREATE TABLE few (id int, v vector(4), i int, x text);
INSERT INTO few SELECT i, vec(i, 4), i % 7, 'x' || i % 3 FROM generate_series(1, 200) AS i;
CREATE INDEX few_v ON few USING ivfpq (v, i, (upper(x))) WHERE id > 20;
SELECT array_agg(id) FROM (SELECT id FROM few WHERE i = 5 AND upper(x) = 'X1' AND id > 20 ORDER BY v <-> vec(1, 4) LIMIT 5) AS r;
SET enable_seqscan = on; SET enable_indexscan = off;
SELECT array_agg(id) FROM (SELECT id FROM few WHERE i = 5 AND upper(x) = 'X1' AND id > 20 ORDER BY v <-> vec(1, 4) LIMIT 5) AS r;
RESET enable_seqscan; RESET enable_indexscan;

-- Operators that a family should not have: their conditions are checked on the rows.
CREATE FUNCTION reads(text, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN $1 = $2::text; END';
CREATE OPERATOR === (LEFTARG = text, RIGHTARG = int, FUNCTION = reads);
CREATE TABLE odd (id int, v vector(4), x text, y varchar, i int, tags int[]);
INSERT INTO odd SELECT i, vec(i, 4), i % 7, i % 7, i % 7, CASE WHEN i % 7 > 0 THEN ARRAY[i % 7] ELSE '{}' END FROM generate_series(1, 2000) AS i;
ALTER OPERATOR FAMILY text_ops USING ivfpq ADD OPERATOR 3 === (text, int), OPERATOR 1 < (text, text), OPERATOR 6 ^@ (text, text);
ALTER OPERATOR FAMILY array_ops USING ivfpq ADD OPERATOR 3 = (anyarray, anyarray);
ALTER OPERATOR FAMILY integer_ops USING ivfpq ADD OPERATOR 7 <> (int, int);
-- One for varchar has text's operator.
CREATE OPERATOR CLASS short_ops FOR TYPE varchar USING ivfpq AS OPERATOR 3 = (text, text), FUNCTION 2 hashtext(text);
SELECT opcname, amvalidate(oid) FROM pg_opclass WHERE opcname IN ('text_ops', 'array_ops', 'int4_ops', 'short_ops', 'uuid_ops')
    AND opcmethod = (SELECT oid FROM pg_am WHERE amname = 'ivfpq') ORDER BY opcname;
CREATE INDEX odd_v ON odd USING ivfpq (v, x, y short_ops, i, tags) WITH (lists = 4);
ANALYZE odd;
SELECT c, s.* FROM unnest(ARRAY['x === 3', 'x === ANY (''{1,5}'')', 'x < ''3''', 'x < ANY (''{1,4}'')', 'x = ''3''', 'x ^@ ''4''',
    'y = ''3''', 'y < ''3''', 'tags = ''{}''', 'tags = ''{4}''', 'i <> 3', 'i < 3']) AS c, same_rows('odd', c) AS s;
ALTER OPERATOR FAMILY text_ops USING ivfpq DROP OPERATOR 3 (text, int), OPERATOR 1 (text, text), OPERATOR 6 (text, text);
ALTER OPERATOR FAMILY array_ops USING ivfpq DROP OPERATOR 3 (anyarray, anyarray);
ALTER OPERATOR FAMILY integer_ops USING ivfpq DROP OPERATOR 7 (int, int);

-- What the executor has as a filter, the index checks as well; of hashes it cannot tell what differs.
CREATE TABLE kinds (id int, v vector(4), i int, x text, tz timestamptz);
INSERT INTO kinds SELECT i, vec(i, 4), nullif(i % 7, 0), i % 7, timestamptz '2026-03-28 00:00+00' + i * interval '1 minute' FROM generate_series(1, 3000) AS i;
CREATE INDEX kinds_v ON kinds USING ivfpq (v, i, x, tz, (i % 2 <> 0)) WITH (lists = 4);
ANALYZE kinds;
SELECT c, s.* FROM unnest(ARRAY['i <> 3', '3 <> i', 'i NOT IN (1, 3, 9)', 'i <> ALL (''{}'')', 'i = 1 OR i = 5', 'i = 1 OR 5 = i OR i = NULL',
    'x = ''1'' OR x = ''5''', 'x <> ''3''', 'i = 1 OR x = ''5''', 'i = 1 OR i IS NULL', 'i % 2 <> 0']) AS c, same_rows('kinds', c) AS s;
-- Parameters, which change with every rescan.
PREPARE others(int, int) AS SELECT count(*), min(i), max(i), count(DISTINCT i) FROM (SELECT i FROM kinds WHERE i <> $1 AND (i = 1 OR i = $2 OR i = 6) ORDER BY v <-> vec(-1, 4) LIMIT 4000) AS r;
EXECUTE others(1, 5);
EXECUTE others(6, NULL);
EXECUTE others(NULL, 5);
SELECT o.k, n.i FROM generate_series(1, 3) AS o (k), LATERAL (SELECT i FROM kinds WHERE i <> o.k AND (i = o.k OR i = o.k + 1) ORDER BY v <-> vec(-7, 4) LIMIT 1) AS n;
-- A date is a time of the session's time zone: at the ends of summer time, and with any offset.
CREATE FUNCTION same_in_zone(zone text, condition text, OUT rows text, OUT no_others bool) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('timezone', zone, true);
    SELECT * INTO rows, no_others FROM same_rows('kinds', condition);
END $$;
SELECT zone, c, s.* FROM unnest('{UTC,Europe/Berlin,America/New_York,Pacific/Apia}'::text[]) AS zone,
    unnest(ARRAY['tz < ''2026-03-29''::date', 'tz >= ''2026-03-29 02:30''::timestamp', 'tz <> ''2026-03-29''::date']) AS c, same_in_zone(zone, c) AS s;

-- Ranges of an enum with many values, for many rescans.
DO $$ BEGIN
    EXECUTE (SELECT format('CREATE TYPE many AS ENUM (%s)', string_agg(quote_literal(i), ', ' ORDER BY i DESC)) FROM generate_series(1, 2001) AS i);
END $$;
CREATE TABLE enums (id int, v vector(4), e many);
INSERT INTO enums SELECT i, vec(i, 4), i::text::many FROM generate_series(1, 2001) AS i;
CREATE INDEX enums_v ON enums USING ivfpq (v, e) WITH (lists = 4);
ANALYZE enums;
SELECT c, s.* FROM unnest('{e < ANY (given),e <= ANY (given),e >= ANY (given),e > ANY (given)}'::text[]) AS c,
    same_rows('enums', replace(c, 'given', (SELECT quote_literal(array_agg(i)) FROM generate_series(500, 1500) AS i))) AS s;
SET statement_timeout = '10s';
SELECT count(*), bool_and(n.id < 2000) FROM generate_series(1, 100) AS o (k), LATERAL (SELECT id FROM enums
    WHERE e > ANY ((SELECT array_agg(i::text::many) FROM generate_series(1000, 2000) AS i)::many[]) ORDER BY v <-> vec(-o.k, 4) LIMIT 1) AS n;
RESET statement_timeout;

-- Mistakes.
CREATE INDEX ON few USING ivfpq (i, v);
CREATE INDEX ON few USING ivfpq (v, v);
CREATE INDEX ON few USING ivfpq (v, (point(1, 2)));
CREATE INDEX ON few USING ivfpq (v, (ARRAY[point(1, 2)]));
DROP FUNCTION row_of, rows_of, same_rows, same_in_zone;
DROP TABLE a, few, conditions, odd, enums, kinds;
DROP OPERATOR FAMILY short_ops USING ivfpq;
DROP FUNCTION reads CASCADE;
DROP TYPE mood, many;
DROP DOMAIN age, ints, texts;
