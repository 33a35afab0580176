-- The order of vectors: comparison operators, the btree operator class, DISTINCT and joins

SELECT a, b, a < b AS lt, a <= b AS le, a = b AS eq, a <> b AS ne, a >= b AS ge, a > b AS gt,
       vector_cmp(a, b) AS cmp
FROM (VALUES ('[1,2]'::vector, '[1,2]'::vector), ('[1,2]', '[1,3]'), ('[2,1]', '[1,9]'),
             ('[1]', '[1,-5]'), ('[1,-5]', '[1]'), ('[2]', '[1,7]'), ('[0]', '[-0]'),
             ('[-1e-45]', '[0]')) AS pairs(a, b);
SELECT '[1]'::vector = NULL AS eq, NULL::vector < '[1]' AS lt;

CREATE TABLE ordered (id int, v vector);
INSERT INTO ordered SELECT i, ARRAY[i % 10, i % 3]::vector FROM generate_series(1, 1000) AS i;
INSERT INTO ordered VALUES (1001, NULL), (1002, '[4]'), (1003, '[4,1,0]');
CREATE INDEX ordered_v ON ordered (v);
SELECT amname, opcname, opcdefault FROM pg_opclass JOIN pg_am ON pg_am.oid = opcmethod
WHERE opcintype = 'vector'::regtype AND amname = 'btree';

SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT id FROM ordered WHERE v = '[4,1]';
SELECT count(*), min(id), max(id) FROM ordered WHERE v = '[4,1]';
SELECT v, count(*) FROM ordered WHERE v >= '[4]' AND v < '[4,2]' GROUP BY v ORDER BY v;
SELECT v, count(*) FROM ordered WHERE v > '[8,1]' GROUP BY v ORDER BY v DESC;
SELECT id, v FROM ordered WHERE v IS NULL;
RESET enable_seqscan;
RESET enable_bitmapscan;

SELECT count(DISTINCT v) AS distinct_values FROM ordered;
SELECT v FROM ordered WHERE id > 998 ORDER BY v NULLS FIRST;
SELECT count(*) AS joined FROM ordered AS a JOIN ordered AS b USING (v) WHERE a.id <= 30 AND b.id <= 30;
DROP TABLE ordered;

-- Long vectors lie out of line; comparing brings them back.
CREATE TABLE ordered_long (id int PRIMARY KEY, v vector(1000));
INSERT INTO ordered_long SELECT i, array_fill((i * 37) % 100, ARRAY[1000])::vector
FROM generate_series(1, 100) AS i;
SELECT bool_and(n = first) AS sorted FROM
    (SELECT row_number() OVER (ORDER BY v) - 1 AS n, (v::real[])[1] AS first FROM ordered_long) AS s;
SELECT count(*) AS equal FROM ordered_long AS a JOIN ordered_long AS b USING (v);
DROP TABLE ordered_long;

-- A unique index finds the equal vector.
CREATE TABLE ordered_unique (v vector(2) UNIQUE);
INSERT INTO ordered_unique VALUES ('[1,0]'), ('[1,1]');
INSERT INTO ordered_unique VALUES ('[1,-0]');
INSERT INTO ordered_unique VALUES ('[1,1]') ON CONFLICT DO NOTHING;
SELECT count(*) FROM ordered_unique;
DROP TABLE ordered_unique;
