-- Distances: small cases by hand, and random vectors of every length against sums in float8.

SELECT '[1,2,3]'::vector <-> '[4,6,3]' AS l2,
       '[1,2,3]'::vector <#> '[4,5,6]' AS negative_inner_product,
       '[1,0]'::vector <=> '[0,5]' AS cosine,
       '[1,2,3]'::vector <+> '[4,0,3]' AS l1;
SELECT l2_distance('[1,2,3]'::vector, '[4,6,3]'), vector_l2_squared_distance('[1,2,3]', '[4,6,3]'),
       inner_product('[1,2,3]'::vector, '[4,5,6]'), vector_negative_inner_product('[1,2,3]', '[4,5,6]'),
       l1_distance('[1,2,3]'::vector, '[4,0,3]');
SELECT cosine_distance('[1,1]'::vector, '[2,2]') AS same_direction,
       cosine_distance('[1,1]'::vector, '[-3,-3]') AS opposite,
       cosine_distance('[1,2]'::vector, '[0,0]') AS no_direction,
       cosine_distance('[1e-30]'::vector, '[1e-30]') AS norm_underflows;
SELECT vector_spherical_distance('[1,0]'::vector, '[0,1]') AS quarter_turn,
       vector_spherical_distance('[1,0]'::vector, '[-1,0]') AS half_turn,
       vector_spherical_distance('[2,0]'::vector, '[2,0]') AS clamped,
       vector_spherical_distance('[2,0]'::vector, '[-2,0]') AS clamped_below;
SELECT vector_norm('[3,4]'::vector), vector_norm('[0]'::vector),
       vector_norm('[1.5e38,2e38]'::vector)::real AS no_overflow, vector_dims('[1,2,3]'::vector);

-- Distances overflow to infinity without an error.
SELECT '[3e38]'::vector <-> '[-3e38]' AS l2, '[3e38]'::vector <#> '[3e38]' AS inner_product,
       '[3e38,3e38]'::vector <+> '[-3e38,-3e38]' AS l1, '[3e38]'::vector <=> '[3e38]' AS cosine;

-- A distance to NULL is NULL.
SELECT '[1]'::vector <-> NULL AS l2, NULL::vector <=> '[1]' AS cosine, vector_norm(NULL);

CREATE TABLE distance_pairs AS
SELECT dims,
       (SELECT array_agg((sin(dims * 1000 + i) * 3)::real ORDER BY i)
        FROM generate_series(1, dims) AS i) AS a,
       (SELECT array_agg((cos(dims * 777 + i * i) + 0.5)::real ORDER BY i)
        FROM generate_series(1, dims) AS i) AS b
FROM (SELECT generate_series(1, 140)
      UNION VALUES (255), (256), (257), (784), (1536), (16000)) AS d(dims);

-- Relative to the sum of magnitudes, float32 sums may be off by a few parts in a million.
WITH exact AS (
    SELECT dims, a::vector AS a, b::vector AS b, squared, product, absolute, norm_a, norm_b, magnitude
    FROM distance_pairs,
         LATERAL (SELECT sum((x::float8 - y) ^ 2) AS squared, sum(x::float8 * y) AS product,
                         sum(abs(x::float8 - y)) AS absolute, sum(x::float8 ^ 2) AS norm_a,
                         sum(y::float8 ^ 2) AS norm_b, sum(abs(x::float8 * y)) AS magnitude
                  FROM unnest(a, b) AS e(x, y)) AS sums
)
SELECT count(*) AS pairs,
       count(*) FILTER (WHERE abs((a <-> b) - sqrt(squared)) > 2e-6 * sqrt(squared)) AS l2_off,
       count(*) FILTER (WHERE abs(vector_l2_squared_distance(a, b) - squared) > 4e-6 * squared)
           AS squared_off,
       count(*) FILTER (WHERE abs((a <#> b) + product) > 4e-6 * magnitude) AS product_off,
       count(*) FILTER (WHERE abs((a <+> b) - absolute) > 4e-6 * absolute) AS l1_off,
       count(*) FILTER (WHERE abs((a <=> b) - (1 - product / sqrt(norm_a * norm_b))) > 4e-6)
           AS cosine_off,
       count(*) FILTER (WHERE abs(vector_norm(a) - sqrt(norm_a)) > 1e-12 * vector_norm(a)) AS norm_off,
       count(*) FILTER (WHERE (a <-> b) <> (b <-> a) OR (a <=> b) <> (b <=> a)) AS asymmetric,
       count(*) FILTER (WHERE a <-> a <> 0 OR a <+> a <> 0 OR abs(a <=> a) > 1e-6) AS not_zero_to_itself
FROM exact;
DROP TABLE distance_pairs;

-- Nearest neighbors without an index
CREATE TABLE distance_points (id int, v vector(2));
INSERT INTO distance_points VALUES (1, '[0,1]'), (2, '[3,3]'), (3, '[-1,0]'), (4, '[10,0]'), (5, NULL);
SELECT id, v <-> '[0,0]' AS distance FROM distance_points ORDER BY v <-> '[0,0]', id LIMIT 3;
SELECT id, v <#> '[1,1]' AS distance FROM distance_points ORDER BY v <#> '[1,1]' LIMIT 2;
SELECT id FROM distance_points ORDER BY v <=> '[1,0.1]', id LIMIT 2;
SELECT id, v <+> '[1,1]' AS distance FROM distance_points ORDER BY v <+> '[1,1]', id;
DROP TABLE distance_points;
