-- avg and sum, alone, grouped, in windows and in parallel

SELECT avg(v), sum(v), count(v) FROM (VALUES ('[1,2]'::vector), (NULL), ('[3,5]'), ('[8,-1]')) AS t(v);
SELECT avg(v) AS avg_of_one, sum(v) AS sum_of_one FROM (VALUES ('[1,-0,2.5]'::vector)) AS t(v);
SELECT avg(v) IS NULL AS avg_of_none, sum(v) IS NULL AS sum_of_none FROM (SELECT NULL::vector) AS t(v);
SELECT avg(v) FILTER (WHERE false) IS NULL AS avg_filtered FROM (VALUES ('[1]'::vector)) AS t(v);

-- avg sums in float8: neither large sums nor many small ones are lost.
SELECT avg(v) AS large FROM (VALUES ('[3e38]'::vector), ('[3e38]'), ('[3e38]')) AS t(v);
SELECT avg('[1,0.1]'::vector) AS many FROM generate_series(1, 100000);

SELECT vector_accum('{0}', '[1,2]') AS first, vector_accum('{1,1,2}', '[3,4]') AS second,
       vector_combine('{1,1,2}', '{2,3,4}') AS both, vector_combine('{0}', '{2,3,4}') AS only_right,
       vector_combine('{1,1,2}', '{0}') AS only_left, vector_combine('{0}', '{0}') AS neither,
       vector_avg('{2,3,4}') AS averaged, vector_avg('{0}') IS NULL AS of_none;

-- The transition functions write into the aggregate's state, and must write into nothing else: not
-- into the first row, not into a value they are handed outside an aggregate.
CREATE TABLE aggregated (id int, g int, v vector);
INSERT INTO aggregated
SELECT i, i % 7, array_fill(i::real, ARRAY[CASE WHEN i % 7 < 4 THEN 3 ELSE 1000 END])::vector
FROM generate_series(1, 7000) AS i;
ANALYZE aggregated;
SELECT g, vector_dims(avg(v)) AS dims, subvector(avg(v), 1, 2) AS avg, subvector(sum(v), 1, 1) AS sum
FROM aggregated GROUP BY g ORDER BY g;
SELECT count(*) AS changed FROM aggregated WHERE subvector(v, 1, 1) <> ARRAY[id]::vector;
SELECT id, sum(v) OVER (ORDER BY id) AS running_sum, avg(v) OVER (ORDER BY id) AS running_avg
FROM aggregated WHERE id IN (1, 2, 3, 8) ORDER BY id;
SELECT id, sum(v) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS pairs
FROM aggregated WHERE id IN (1, 2, 3, 8) ORDER BY id;
WITH state AS MATERIALIZED (SELECT '{1,2,3}'::float8[] AS s, '[1,1]'::vector AS v)
SELECT vector_accum(s, v), vector_accum(s, v), vector_combine(s, s), s, v + v, v FROM state;

-- In parallel: the same plan in several processes, joined by the combine functions
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
EXPLAIN (COSTS OFF) SELECT avg(v), sum(v) FROM aggregated WHERE g < 4;
SELECT avg(v), sum(v) FROM aggregated WHERE g < 4;
SELECT subvector(avg(v), 999, 2), subvector(sum(v), 999, 2) FROM aggregated WHERE g >= 4;
SELECT avg(v) IS NULL AS avg_of_none, sum(v) IS NULL AS sum_of_none FROM aggregated WHERE g > 7;
RESET ALL;
DROP TABLE aggregated;
