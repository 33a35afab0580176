-- Vectors made from vectors

SELECT '[1,2,3]'::vector + '[10,20.5,-3]' AS sum, '[1,2,3]'::vector - '[10,20.5,-3]' AS difference,
       '[1,2,3]'::vector * '[10,20.5,-3]' AS product, '[1,2,3]'::vector || '[4]' AS concatenated;
SELECT '[1e-30,0]'::vector * '[1e-10,1e-30]' AS subnormal_and_zero, '[3e38]'::vector - '[3e38]' AS zero;
SELECT '[1]'::vector + NULL AS sum, NULL::vector || '[1]' AS concatenated;
SELECT vector_dims(array_fill(1, ARRAY[8000])::vector || array_fill(2, ARRAY[8000])::vector) AS longest;

-- Operators must not change their operands, whose memory they could reach.
CREATE TABLE arithmetic (a vector, b vector);
INSERT INTO arithmetic
VALUES ('[1,2]', '[3,4]'), (array_fill(1, ARRAY[3000]), array_fill(2, ARRAY[3000]));
SELECT bool_and(a + b - b = a AND subvector(a || b, 1, vector_dims(a)) = a
                AND subvector(a || b, vector_dims(a) + 1, vector_dims(b)) = b) AS all_hold
FROM arithmetic;
SELECT vector_dims(a), subvector(a, 1, 2), subvector(b, 1, 2) FROM arithmetic ORDER BY 1;
DROP TABLE arithmetic;

-- subvector counts from 1 and cuts what lies outside, as substring does.
SELECT start, count, subvector('[1,2,3,4,5]'::vector, start, count), substring('12345', start, count)
FROM (VALUES (1, 5), (2, 3), (5, 1), (4, 10), (-1, 3), (0, 2), (3, 2147483647),
             (-2147483640, 2147483647)) AS ranges(start, count);

SELECT v, l2_normalize(v)
FROM unnest('{"[3,4]",[-5],"[0,0]","[1e-40,0]","[3e38,3e38]"}'::vector[]) AS v;
SELECT count(*) FILTER (WHERE abs(vector_norm(l2_normalize(v)) - 1) > 1e-6) AS not_unit,
       count(*) FILTER (WHERE (l2_normalize(v) <=> v) > 1e-6) AS turned
FROM (SELECT array_agg(sin(dims + i * i) ORDER BY i)::vector AS v
      FROM generate_series(1, 200) AS dims, generate_series(1, dims) AS i GROUP BY dims) AS vectors;

SELECT binary_quantize('[1]'::vector), binary_quantize('[0,-1,0.5,1e-45,-0]'::vector),
       binary_quantize('[1,1,1,1,1,1,1,1,-1,1]'::vector);
SELECT bool_and(length(bits) = dims AND bits::text = expected) AS all_agree
FROM (SELECT dims, binary_quantize(array_agg(sin(i * i) ORDER BY i)::vector) AS bits,
             string_agg((sin(i * i) > 0)::int::text, '' ORDER BY i) AS expected
      FROM generate_series(1, 70) AS dims, generate_series(1, dims) AS i GROUP BY dims) AS quantized;
