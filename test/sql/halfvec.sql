-- The type halfvec: its forms, its arithmetic beside that of vector, its errors.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

\qecho every finite half, by its bits: from its number, in binary and through text
CREATE FUNCTION half_value(bits int) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN bits >= 32768 THEN -1 ELSE 1 END *
           CASE WHEN (bits & 31744) = 0 THEN (bits & 1023) * 2.0::float8 ^ -24
                ELSE (1024 + (bits & 1023)) * 2.0::float8 ^ ((bits >> 10 & 31) - 25) END
$$;
CREATE TABLE half (bits int, h halfvec(1));
INSERT INTO half SELECT bits, ARRAY[half_value(bits)]::halfvec(1)
FROM generate_series(0, 65535) AS bits WHERE (bits & 31744) <> 31744;
SELECT count(*),
       count(*) FILTER (WHERE halfvec_send(h) <> decode('00010000' || lpad(to_hex(bits), 4, '0'), 'hex')) AS other_bits,
       count(*) FILTER (WHERE halfvec_send(h::text::halfvec) <> halfvec_send(h)) AS other_by_text,
       count(*) FILTER (WHERE (h::real[])[1] <> half_value(bits)) AS other_numbers,
       count(*) FILTER (WHERE halfvec_send(h::vector::halfvec) <> halfvec_send(h)) AS other_by_vector
FROM half;
\qecho halfway between two halves, the even one; beyond, the nearer one
SELECT count(*), count(*) FILTER (WHERE halfvec_send(ARRAY[middle]::halfvec) = halfvec_send(even)) AS even,
       count(*) FILTER (WHERE halfvec_send(ARRAY[middle * (1 + 1e-7)]::halfvec) = halfvec_send(above)) AS above,
       count(*) FILTER (WHERE halfvec_send(ARRAY[middle * (1 - 1e-7)]::halfvec) = halfvec_send(below)) AS below
FROM (SELECT a.h AS below, b.h AS above, CASE WHEN a.bits % 2 = 0 THEN a.h ELSE b.h END AS even,
             (half_value(a.bits) + half_value(b.bits)) / 2 AS middle
      FROM half AS a JOIN half AS b ON b.bits = a.bits + 1 WHERE a.bits < 31743) AS s;
SELECT '[-0,65504,-65504,65519.99,5.9604645e-08,2.9e-08,1e-30]'::halfvec;

\qecho what is no halfvec
SELECT error_of(format('SELECT %L::halfvec', text)) FROM unnest(ARRAY['', '[', '[]', '[1', '1,2', '[1,,2]',
    '[1,2]x', '[x]', '[1 2]', '[nan]', '[1,inf]', '[-Infinity]', '[65520]', '[3,-65520.0]', '[1e39]']) AS text;
SELECT error_of('SELECT ''[1,2]''::halfvec(3)'), error_of('SELECT NULL::halfvec(0)'),
       error_of('SELECT NULL::halfvec(16001)'), error_of('SELECT NULL::halfvec(1,2)');
SELECT vector_dims(array_fill(0.5, ARRAY[16000])::halfvec(16000)),
       error_of('SELECT array_fill(0.5, ARRAY[16001])::halfvec'),
       error_of(format('SELECT %L::halfvec', '[' || repeat('1,', 16000) || '1]'));
SELECT error_of('SELECT ARRAY[70000]::halfvec'), error_of('SELECT ARRAY[1,-1e6]::float8[]::halfvec'),
       error_of('SELECT ARRAY[''inf'']::real[]::halfvec'), error_of('SELECT ARRAY[''nan'']::float8[]::halfvec'),
       error_of('SELECT ARRAY[1,NULL]::halfvec'), error_of('SELECT ARRAY[[1]]::halfvec'),
       error_of('SELECT ''{}''::real[]::halfvec'), error_of('SELECT ''[1e5]''::vector::halfvec'),
       error_of('SELECT ''[1,2]''::vector::halfvec(3)'), error_of('SELECT ''[1,2]''::halfvec::vector(3)');

\qecho casts, and which of them happen by themselves
SELECT ARRAY[1,-2]::halfvec, ARRAY[0.1]::halfvec, ARRAY[0.1::real]::halfvec, ARRAY[1e-9::float8]::halfvec,
       '[0.1,2]'::vector::halfvec, '[0.1,2]'::halfvec::vector, '[0.1,2]'::halfvec::real[];
SELECT castsource::regtype, casttarget::regtype, castcontext FROM pg_cast
WHERE 'halfvec'::regtype IN (castsource, casttarget)
ORDER BY castsource::regtype::text COLLATE "C", casttarget::regtype::text COLLATE "C";
CREATE TABLE kept (h halfvec(2), v vector(2), a real[]);
INSERT INTO kept SELECT v, v::halfvec, v::halfvec FROM (SELECT '[0.1,0.2]'::vector AS v) AS s;
SELECT * FROM kept;
SELECT error_of('INSERT INTO kept (h) VALUES (''[1,2,3]''::vector)');
DROP TABLE kept;

\qecho random vectors: what halfvec computes is what vector does, rounded where it is a vector again
CREATE TABLE pair AS
SELECT i, (SELECT array_agg(random_bits::float8 / 512 - 64) FROM (
           SELECT hashint8extended(i * 4000 + d, 1) & 65535 AS random_bits FROM generate_series(1, 1 + i % 300) AS d) AS s)::halfvec AS a,
          (SELECT array_agg(random_bits::float8 / 512 - 64) FROM (
           SELECT hashint8extended(i * 4000 + d, 2) & 65535 AS random_bits FROM generate_series(1, 1 + i % 300) AS d) AS s)::halfvec AS b
FROM generate_series(1, 600) AS i;
SELECT count(*),
       bool_and((a <-> b) = (a::vector <-> b::vector)) AS l2, bool_and((a <#> b) = (a::vector <#> b::vector)) AS ip,
       bool_and((a <=> b) = (a::vector <=> b::vector)) AS cosine, bool_and((a <+> b) = (a::vector <+> b::vector)) AS l1,
       bool_and(l2_distance(a, b) = (a <-> b) AND inner_product(a, b) = -(a <#> b) AND
                cosine_distance(a, b) = (a <=> b) AND l1_distance(a, b) = (a <+> b)) AS functions,
       bool_and(halfvec_l2_squared_distance(a, b) = vector_l2_squared_distance(a::vector, b::vector)) AS squared,
       bool_and(halfvec_negative_inner_product(a, b) = (a <#> b)) AS negative,
       bool_and(halfvec_spherical_distance(l2_normalize(a), l2_normalize(b)) =
                vector_spherical_distance(l2_normalize(a)::vector, l2_normalize(b)::vector)) AS spherical,
       bool_and(a + b = (a::vector + b::vector)::halfvec) AS sum, bool_and(a - b = (a::vector - b::vector)::halfvec) AS difference,
       bool_and(a * b = (a::vector * b::vector)::halfvec) AS product,
       bool_and((a || b)::vector = a::vector || b::vector) AS joined,
       bool_and(vector_dims(a) = 1 + i % 300) AS dims,
       bool_and(abs(l2_norm(a) - vector_norm(a::vector)) < 1e-9) AS norm,
       bool_and(l2_normalize(a) = l2_normalize(a::vector)::halfvec) AS normalized,
       bool_and(binary_quantize(a) = binary_quantize(a::vector)) AS bits,
       bool_and(subvector(a || b, 1, vector_dims(a)) = a AND subvector(a || b, vector_dims(a) + 1, 500) = b) AS cut,
       bool_and(halfvec_cmp(a, b) = vector_cmp(a::vector, b::vector) AND (a < b) = (a::vector < b::vector) AND
                (a <= b) = (a::vector <= b::vector) AND (a = b) = (a::vector = b::vector) AND
                (a <> b) = (a::vector <> b::vector) AND (a >= b) = (a::vector >= b::vector) AND
                (a > b) = (a::vector > b::vector) AND a = a AND a <= a AND NOT a < a) AS ordered
FROM pair;
SELECT '[1,0,-0.5,0,0,0,0,7,1]'::halfvec AS v, binary_quantize('[1,0,-0.5,0,0,0,0,7,1]'::halfvec);

\qecho stored plainly, compressed by no one, and beside the table
CREATE TABLE stored (i int, h halfvec);
INSERT INTO stored SELECT i, array_fill(i::real / 8, ARRAY[d])::halfvec
FROM (VALUES (1, 1), (2, 3), (3, 50), (4, 1000), (5, 1001), (6, 8000)) AS s(i, d);
SELECT i, vector_dims(h), pg_column_size(h), round(l2_norm(h)::numeric, 4),
       h <-> array_fill(0, ARRAY[vector_dims(h)])::halfvec = l2_norm(h) AS far FROM stored ORDER BY i;
SELECT attstorage FROM pg_attribute WHERE attrelid = 'stored'::regclass AND attname = 'h';

\qecho errors of operators and functions
SELECT error_of('SELECT ''[1,2]''::halfvec ' || op || ' ''[1]''') FROM unnest('{<->,<#>,<=>,<+>,+,-,*}'::text[]) AS op;
SELECT error_of('SELECT ''[60000]''::halfvec + ''[6000]'''), error_of('SELECT ''[-60000]''::halfvec - ''[6000]'''),
       error_of('SELECT ''[300]''::halfvec * ''[300]'''), error_of('SELECT ''[1e-5]''::halfvec * ''[1e-5]'''),
       error_of('SELECT array_fill(1, ARRAY[9000])::halfvec || array_fill(1, ARRAY[9000])::halfvec'),
       error_of('SELECT subvector(''[1,2,3]''::halfvec, 4, 1)'), error_of('SELECT subvector(''[1,2,3]''::halfvec, 1, 0)');
SELECT '[1,2]'::halfvec <=> '[0,0]', l2_normalize('[0,0]'::halfvec), l2_normalize('[5e-8,0]'::halfvec);

\qecho aggregates, and an array that is no state of theirs
SELECT avg(h), sum(h) FROM unnest('{"[1,2]","[2,4]",NULL,"[4.5,0]"}'::halfvec[]) AS h;
SELECT avg(h), sum(h) FROM unnest('{}'::halfvec[]) AS h;
SELECT avg(h) FROM unnest('{"[65504]","[65504]","[65504]"}'::halfvec[]) AS h;
SELECT i, sum(h) OVER (ORDER BY i) FROM (VALUES (1, '[1,2]'::halfvec), (2, '[3,4]'), (3, '[5,6]')) AS s(i, h);
SELECT error_of('SELECT sum(h) FROM unnest(''{"[65504]","[65504]"}''::halfvec[]) AS h'),
       error_of('SELECT avg(h) FROM unnest(''{"[1]","[1,2]"}''::halfvec[]) AS h'),
       error_of('SELECT halfvec_avg(''{1,70000}'')'), error_of('SELECT halfvec_avg(''{{1}}'')'),
       error_of('SELECT halfvec_accum(''{}'', ''[1]'')'), error_of('SELECT halfvec_combine(''{1,2}'', ''{1,2,3}'')');
SELECT halfvec_accum('{2,1,1}', '[0.5,3]'), halfvec_combine('{2,1,1}', '{3,4,5}'), halfvec_avg('{4,2,6}');

\qecho btree, DISTINCT, ORDER BY
CREATE INDEX stored_h ON stored USING btree (subvector(h, 1, 1));
SET enable_seqscan = off;
SELECT i FROM stored WHERE subvector(h, 1, 1) >= '[0.375]' ORDER BY subvector(h, 1, 1) DESC;
RESET enable_seqscan;
SELECT DISTINCT h FROM unnest('{"[2]","[1,5]","[1]","[2]","[0]"}'::halfvec[]) AS h ORDER BY h;

\qecho binary copies, and messages that are no halfvec
CREATE TABLE copied (LIKE stored);
\copy stored TO 'test/results/halfvec_copy.bin' WITH (FORMAT binary)
\copy copied FROM 'test/results/halfvec_copy.bin' WITH (FORMAT binary)
SELECT count(*), bool_and(halfvec_send(a.h) = halfvec_send(b.h)) FROM stored AS a JOIN copied AS b USING (i);
SELECT halfvec_send('[1,-2,65504]');
CREATE TABLE received (h halfvec(2));
\set VERBOSITY terse
\copy (SELECT '\x000200003c00c000'::bytea) TO 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x000200003c007c00'::bytea) TO 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x000200003c007c01'::bytea) TO 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x000200013c00c000'::bytea) TO 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x000200003c00'::bytea) TO 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x000100003c00'::bytea) TO 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x00000000'::bytea) TO 'test/results/halfvec_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/halfvec_message.bin' WITH (FORMAT binary)
SELECT * FROM received;

\qecho what the planner is told
SELECT oprname, oprcode, (SELECT c.oprname FROM pg_operator AS c WHERE c.oid = o.oprcom) AS commutator,
       (SELECT n.oprname FROM pg_operator AS n WHERE n.oid = o.oprnegate) AS negator, oprrest, oprjoin
FROM pg_operator AS o WHERE oprleft = 'halfvec'::regtype ORDER BY oprname COLLATE "C";
SELECT count(*), count(*) FILTER (WHERE provolatile = 'i' AND proisstrict AND proparallel = 's') AS as_they_should
FROM pg_proc WHERE prokind = 'f' AND proname <> 'knn_search' AND (proname LIKE 'halfvec%' OR 'halfvec'::regtype = ANY (proargtypes::oid[]));
DROP TABLE half, pair, stored, copied, received;
DROP FUNCTION half_value;
