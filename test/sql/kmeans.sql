-- kmeans and kmeans_assign: what comes out, and what is refused.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

\qecho four heaps of rows, far from each other
CREATE TABLE heaps (id int, v vector(2));
INSERT INTO heaps
SELECT i, ARRAY[1000 * (i % 2) + i % 5, 1000 * (i / 2 % 2) + i % 3]::real[]::vector
FROM generate_series(1, 1000) AS i;
INSERT INTO heaps VALUES (0, NULL), (-1, NULL);
CREATE FUNCTION kmeans_of_heaps(seed int) RETURNS TABLE (c int, s bigint, m vector)
LANGUAGE sql AS $$ SELECT * FROM kmeans('heaps', 'v', 4, seed => seed) $$;
SELECT s, m = (SELECT avg(v) FROM heaps WHERE v <-> m < 500) AS mean
FROM kmeans_of_heaps(1) ORDER BY s, m;
SELECT array_agg(c ORDER BY c) FROM kmeans_of_heaps(1);

\qecho one seed, one result
SELECT bool_and(a IS NOT DISTINCT FROM b), count(*)
FROM kmeans('heaps', 'v', 30, seed => 5) AS a
    FULL JOIN kmeans('heaps', 'v', 30, seed => 5) AS b USING (cluster);
SELECT count(*) > 0 FROM
    (SELECT centroid FROM kmeans('heaps', 'v', 30, seed => 5)
     EXCEPT SELECT centroid FROM kmeans('heaps', 'v', 30, seed => 6)) AS other;
SELECT count(*) FROM kmeans('heaps', 'v', 30, seed => -2147483648);

\qecho sizes are those of the last assignment
CREATE TABLE rows AS SELECT i AS id, vec(i, 8) AS v FROM generate_series(1, 3000) AS i;
CREATE TABLE clusters AS SELECT * FROM kmeans('rows', 'v', 50);
SELECT sum(size), count(*) FROM clusters;
SELECT count(*) FROM clusters
    FULL JOIN (SELECT kmeans_assign(v, (SELECT array_agg(centroid ORDER BY cluster) FROM clusters)),
                      count(*) FROM rows GROUP BY 1) AS assigned(cluster, members) USING (cluster)
WHERE size IS DISTINCT FROM members;
-- and the centroids are nearly the means of their rows, after many iterations
SELECT max(centroid <-> mean) < 1 FROM kmeans('rows', 'v', 20, 200) AS k
    JOIN LATERAL
    (SELECT avg(v) AS mean FROM rows
     WHERE kmeans_assign(v, (SELECT array_agg(centroid ORDER BY cluster)
                             FROM kmeans('rows', 'v', 20, 200))) = k.cluster) AS m ON true;
-- each iteration makes it better, or leaves it
CREATE FUNCTION spread(centroids vector[]) RETURNS float8 LANGUAGE sql AS $$
    SELECT avg(vector_l2_squared_distance(v, centroids[kmeans_assign(v, centroids)])) FROM rows
$$;
SELECT bool_and(now <= before * 1.000001) FROM
    (SELECT i, now, lag(now) OVER (ORDER BY i) AS before FROM
        (SELECT i, spread((SELECT array_agg(centroid ORDER BY cluster)
                           FROM kmeans('rows', 'v', 20, i))) AS now
         FROM generate_series(1, 8) AS i) AS s) AS t;

\qecho a table larger than memory is clustered whole, a block at a time
CREATE TABLE large AS SELECT i AS id, vec(i, 200) AS v FROM generate_series(1, 3000) AS i;
CREATE TABLE in_memory AS SELECT * FROM kmeans('large', 'v', 10, 5);
SET maintenance_work_mem = '1MB';
SELECT count(*), sum(b.size), bool_and(abs(a.size - b.size) <= 3),
       max(a.centroid <-> b.centroid) < 1
FROM in_memory AS a JOIN kmeans('large', 'v', 10, 5) AS b USING (cluster);
-- equal rows make empty clusters, which get a part of others
INSERT INTO large SELECT 0, vec(0, 200) FROM generate_series(1, 3000);
SELECT count(*), sum(size), min(size) > 0 FROM kmeans('large', 'v', 40, 20);
RESET maintenance_work_mem;
-- a model that is larger than memory is not
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT kmeans('large', 'v', 1000)$$);
RESET maintenance_work_mem;

\qecho as many clusters as rows; all rows equal
SELECT min(size), max(size) FROM kmeans('rows', 'v', 3000, 1);
CREATE TABLE equal AS SELECT '[1,2]'::vector AS v FROM generate_series(1, 10);
SELECT sum(size), max(centroid <-> '[1,2]') FROM kmeans('equal', 'v', 3);

\qecho what is refused
SET maintenance_work_mem = '64MB';
SELECT k, error_of(format($$SELECT kmeans('rows', 'v', %s)$$, k))
FROM unnest(ARRAY['0', '-1', '3001', '2147483647', '5, 0', '5, -3']) AS k;
SELECT a, error_of(format($$SELECT kmeans(%s)$$, a)) FROM unnest(ARRAY[
    'NULL, ''v'', 3', '''rows'', NULL, 3', '''rows'', ''v'', NULL', '''rows'', ''v'', 3, NULL',
    '''rows'', ''v'', 3, 3, NULL']) AS a;
CREATE TABLE mixed (v vector);
SELECT error_of($$SELECT kmeans('mixed', 'v', 1)$$);
INSERT INTO mixed VALUES (NULL), (NULL);
SELECT error_of($$SELECT kmeans('mixed', 'v', 1)$$);
INSERT INTO mixed VALUES ('[1,2]'), ('[3,4]'), ('[1,2,3]');
SELECT error_of($$SELECT kmeans('mixed', 'v', 1)$$);

\qecho kmeans_assign
SELECT kmeans_assign('[1,1]', ARRAY['[0,0]', '[1,2]', '[5,5]']::vector[]),
       kmeans_assign('[5,4]', ARRAY['[0,0]', '[1,2]', '[5,5]']::vector[]),
       kmeans_assign('[5,4]', ARRAY['[0,0]']::vector[]);
-- the first among equals
SELECT kmeans_assign('[1,0]', ARRAY['[3,3]', '[2,0]', '[0,0]', '[2,0]']::vector[]);
SELECT kmeans_assign(NULL, ARRAY['[0,0]']::vector[]), kmeans_assign('[1,2]', NULL);
SELECT a, error_of(format($$SELECT kmeans_assign(%s)$$, a)) FROM unnest(ARRAY[
    '''[1,2]'', ''{}''', '''[1,2]'', ARRAY[NULL]::vector[]',
    '''[1,2]'', ARRAY[''[1,2]'', NULL]::vector[]',
    '''[1,2]'', ARRAY[''[1,2,3]'']::vector[]', '''[1,2]'', ARRAY[''[1,2]'', ''[1,2,3]'']::vector[]',
    '''[1,2]'', ARRAY[ARRAY[''[1,2]'', ''[1,2]'']]::vector[]']) AS a;
-- of a table's rows some may have other dimensions
SELECT error_of($$SELECT kmeans_assign(v, ARRAY['[1,2]']::vector[]) FROM mixed$$);

\qecho kmeans_assign, by where the array comes from: a constant, a parameter, stored, made
CREATE TABLE arrays (id int, c vector[]);
INSERT INTO arrays SELECT i, array_agg(vec(100 * i + j, 8)) FROM generate_series(1, 3) AS i,
    generate_series(1, 400) AS j GROUP BY i;
ALTER TABLE arrays ALTER c SET STORAGE EXTERNAL;
INSERT INTO arrays SELECT i + 3, c FROM arrays AS a(i, c);
UPDATE arrays SET c = c[1:2] WHERE id = 6;
CREATE FUNCTION nearest(v vector, c vector[]) RETURNS int LANGUAGE sql AS $$
    SELECT i::int FROM unnest(c) WITH ORDINALITY AS u(x, i) ORDER BY u.x <-> v, i LIMIT 1
$$;
SELECT id, count(*), count(*) FILTER (WHERE kmeans_assign(v, c) = nearest(v, c))
FROM arrays, LATERAL (SELECT v FROM rows LIMIT 40) AS r GROUP BY id ORDER BY id;
-- another array for every row
SELECT count(*) FILTER (WHERE kmeans_assign(v, c) = nearest(v, c))
FROM (SELECT v, c FROM rows, arrays WHERE rows.id <= 40 ORDER BY rows.id, arrays.id OFFSET 0) AS s;
SELECT count(*) FILTER (WHERE kmeans_assign(v, c || c) = nearest(v, c || c))
FROM (SELECT v, c FROM rows, arrays WHERE rows.id <= 40 ORDER BY rows.id, arrays.id OFFSET 0) AS s;
PREPARE assign(vector[]) AS
    SELECT sum(kmeans_assign(v, $1)) = sum(nearest(v, $1)) FROM (SELECT v FROM rows LIMIT 40) AS r;
SET plan_cache_mode = force_generic_plan;
EXECUTE assign(ARRAY[vec(1, 8), vec(2, 8)]);
EXECUTE assign(ARRAY[vec(4, 8), vec(3, 8), vec(5, 8)]);
RESET plan_cache_mode;
-- PL/pgSQL evaluates one expression again and again
DO $$
DECLARE
    c vector[];
BEGIN
    FOR i IN 1..20 LOOP
        c := ARRAY[vec(i, 8), vec(i + 100, 8), vec(i + 200, 8)];
        IF kmeans_assign(vec(7, 8), c) <> nearest(vec(7, 8), c) THEN RAISE 'array %', i; END IF;
    END LOOP;
END
$$;
DROP TABLE heaps, rows, clusters, large, in_memory, equal, mixed, arrays;
DROP FUNCTION kmeans_of_heaps, spread, nearest;

\qecho a view that becomes another between two passes
CREATE TABLE swap_rows AS SELECT vec(i, 200) AS v FROM generate_series(1, 3000) AS i;
CREATE TABLE swapped (i int);
CREATE FUNCTION swap_view_of(v vector) RETURNS vector LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM swapped) THEN
        INSERT INTO swapped VALUES (1);
        DROP VIEW swap_view;
        CREATE VIEW swap_view AS SELECT 123456789::bigint AS v FROM generate_series(1, 3000);
    END IF;
    RETURN v;
END
$$;
CREATE VIEW swap_view AS SELECT swap_view_of(v) AS v FROM swap_rows;
SET maintenance_work_mem = '1MB';
SELECT error_of($$SELECT count(*) FROM kmeans('swap_view', 'v', 10, 5)$$);
RESET maintenance_work_mem;
DROP VIEW swap_view;
DROP FUNCTION swap_view_of;
DROP TABLE swap_rows, swapped;
