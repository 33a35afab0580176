-- Casts from arrays and back, and where they happen without being asked for

SELECT ARRAY[1,-2,3]::vector AS from_int, ARRAY[1.5,2.25]::vector AS from_numeric,
       ARRAY[0.1::real]::vector AS from_float4, ARRAY[0.1::float8,1e-50]::vector AS from_float8,
       '{16777217}'::int[]::vector AS rounded;
SELECT '[0.1,2,-3e-05]'::vector::real[] AS to_float4, ('[4,5,6]'::vector::real[])[2] AS element,
       array_dims('[4,5,6]'::vector::real[]), array_length('[1,2]'::vector::real[], 1);
SELECT '[5:7]={1,2,3}'::int[]::vector AS other_lower_bound, ('{1,NULL,3}'::int[])[3:3]::vector AS sliced;
SELECT ARRAY[1,2]::vector(2), NULL::int[]::vector AS "null", ARRAY[1,2,3]::real[]::vector::text::vector;

-- An array that once held a NULL keeps its bitmap; without NULLs left it is good.
CREATE TABLE cast_arrays (a int[], b numeric[]);
INSERT INTO cast_arrays VALUES ('{1,NULL,3}', '{1.5,NULL,-2}');
UPDATE cast_arrays SET a[2] = 2, b[2] = 1e-3;
SELECT a::vector, b::vector FROM cast_arrays;
DROP TABLE cast_arrays;

SELECT bool_and(v::real[] = a AND v::real[]::vector = v) AS round_trip
FROM (SELECT array_agg(sin(i)::real ORDER BY i) AS a, array_agg(sin(i)::real ORDER BY i)::vector AS v
      FROM generate_series(1, 500) AS dims, generate_series(1, dims) AS i GROUP BY dims) AS vectors;

-- Arrays turn into vectors on assignment, not within expressions; vectors turn into float4[] anywhere.
CREATE TABLE cast_assigned (v vector(2));
INSERT INTO cast_assigned VALUES (ARRAY[1,2]), (ARRAY[0.5,0.25]), ('{3,4}'::real[]), ('{5,6}'::float8[]);
CREATE FUNCTION cast_total(real[]) RETURNS real LANGUAGE sql AS 'SELECT sum(x) FROM unnest($1) AS x';
SELECT v, cast_total(v) FROM cast_assigned ORDER BY v;
\set VERBOSITY terse
SELECT '[1,2]'::vector = ARRAY[1,2];
\set VERBOSITY default
INSERT INTO cast_assigned VALUES (ARRAY[1,2,3]);
UPDATE cast_assigned SET v = v || '[1]';
DROP TABLE cast_assigned;
DROP FUNCTION cast_total;
SELECT ARRAY[1,2] = ARRAY[1,2] AS arrays_still_compare, ARRAY[1,2] || ARRAY[3] AS arrays_still_join;

SELECT castsource::regtype, casttarget::regtype, castcontext FROM pg_cast
WHERE 'vector'::regtype IN (castsource, casttarget)
ORDER BY castsource::regtype::text COLLATE "C", casttarget::regtype::text COLLATE "C";
