-- Text in, text out: what is accepted, and that what comes out is the shortest form that reads back
-- as the same float.

SELECT '[7]'::vector AS one, '[0.1,-2.5,1000000]'::vector AS three, '[.5,5.,+3,-.25]'::vector AS bare;
SELECT E'\t[ 1 ,\n2\r,\x0B3\f] '::vector AS spaces_anywhere;
SELECT '[1e3,1E-3,1e+3,-1.5e-07,123456789,1e30]'::vector AS exponents;
SELECT '[0x1F,0x1p-3,-0X.8]'::vector AS hexadecimal;
SELECT '[0,-0,0.0,1e-50,-1e-50]'::vector AS zeros;
SELECT '[3.4028235e38,-3.4028235e38,1.1754944e-38,1e-45]'::vector AS extremes;
SELECT '[16777217,16777219,33554434,0.100000001490116119384765625]'::vector AS rounded_once;
SELECT '[0.1234567890123456789012345678901234567890,12345678901234567890123]'::vector AS many_digits;

-- Text and float4 agree for numbers of every magnitude, written by float8 and by numeric.
WITH numbers AS (
    SELECT (sin(i) * 10 ^ (i % 70 - 35))::float8 AS x FROM generate_series(1, 7000) AS i
)
SELECT count(*) AS differing FROM numbers
WHERE ('[' || x || ']')::vector::real[] <> ARRAY[x]::real[]
   OR ('[' || x::numeric || ']')::vector::real[] <> ARRAY[x]::real[]
   OR ('[' || x::real || ']')::vector::text <> '[' || x::real || ']';

SELECT vector_dims(text_form::vector) AS dims, md5(text_form) = md5(text_form::vector::text) AS same
FROM (SELECT '[' || string_agg(i::text, ',') || ']' AS text_form
      FROM generate_series(1, 16000) AS i) AS longest;

-- The dimensions a column or cast asks for
CREATE TABLE io_typed (id int, v vector(3));
INSERT INTO io_typed VALUES (1, '[1,2,3]'), (2, NULL);
SELECT id, v, format_type(atttypid, atttypmod) AS type
FROM io_typed, pg_attribute WHERE attrelid = 'io_typed'::regclass AND attname = 'v' ORDER BY id;
SELECT '[1,2]'::vector(2) AS two, '[1]'::vector(1) AS one;
ALTER TABLE io_typed ALTER v TYPE vector;
INSERT INTO io_typed VALUES (3, '[4,5]');
SELECT id, vector_dims(v) FROM io_typed ORDER BY id;
DROP TABLE io_typed;

-- Arrays and composites carry vectors too.
SELECT ('{"[1,2]","[3,4.5]",NULL}'::vector(2)[])[2] AS second, ROW('[1,2]'::vector) AS in_row;

-- Stored as pgvector stores it: a 4-byte header, two int16, then the floats, never compressed.
SELECT typlen, typalign, typstorage FROM pg_type WHERE oid = 'vector'::regtype;
SELECT encode(vector_send('[1,-2]'), 'hex') AS sent;
CREATE TABLE io_stored (v vector);
INSERT INTO io_stored SELECT array_fill(0, ARRAY[dims])::vector FROM unnest(ARRAY[1, 40, 16000]) AS dims;
SELECT vector_dims(v), pg_column_size(v) FROM io_stored ORDER BY 1;
DROP TABLE io_stored;
