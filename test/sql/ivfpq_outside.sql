-- Rows in groups of near duplicates, and queries that are near none: the index is measured with rows, which find their
-- duplicates at once, and has to find what is asked for these queries, too.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
CREATE TABLE t (id int, v vector(48));
-- 600 groups of 20
INSERT INTO t SELECT i, vec(i % 600, 48, 1) + (SELECT array_agg(e * 0.1) FROM unnest(vec(i, 48, 2)::real[]) AS e)::vector
FROM generate_series(1, 12000) AS i;
CREATE TABLE q AS SELECT i AS id, vec(i, 48, 3) AS v FROM generate_series(1, 200) AS i;
SET enable_indexscan = off;
CREATE TABLE truth AS SELECT q.id, q.v, max(n.d) AS farthest
FROM q CROSS JOIN LATERAL (SELECT t.v <-> q.v AS d FROM t ORDER BY d LIMIT 10) AS n GROUP BY 1, 2;
RESET enable_indexscan;
SET enable_seqscan = off;
-- The share of the ten nearest rows that scans find.
CREATE FUNCTION recall() RETURNS float8 LANGUAGE sql SET ivfpq.enable_batched_join = off AS $$
    SELECT count(*) FILTER (WHERE n.d <= truth.farthest) / (10.0 * (SELECT count(*) FROM truth))
    FROM truth CROSS JOIN LATERAL (SELECT t.v <-> truth.v AS d FROM t ORDER BY t.v <-> truth.v LIMIT 10) AS n
$$;

-- The same of batches.
CREATE FUNCTION batch_recall() RETURNS float8 LANGUAGE sql AS $$
    SELECT count(*) FILTER (WHERE t.v <-> truth.v <= truth.farthest) / (10.0 * (SELECT count(*) FROM truth))
    FROM knn_join('truth', 'id', 'v', to_regclass('t_v'), 'id', 10) AS n JOIN truth ON truth.id = n.query_key JOIN t ON t.id = n.key
$$;

\qecho long codes: lists decide
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40);
SELECT recall() >= 0.93 AS found, batch_recall() >= 0.93 AS "found by batches";
SET ivfpq.target_recall = 0.99;
SELECT recall() >= 0.97 AS found;
RESET ivfpq.target_recall;
-- rows need no more than before
SELECT by_query, probes <= 3 AS few, ivfpq_recall('t_v') >= 0.945 AS found FROM ivfpq_info('t_v');

\qecho short codes with refinements, which the CPU has: candidates, too
SET ivfpq.executor = cpu;
DROP INDEX t_v;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40, bits = 4, m = 12, refine = int8);
SELECT recall() >= 0.93 AS found, batch_recall() >= 0.93 AS "found by batches";
SELECT by_query, candidates <= 30 AS few, ivfpq_recall('t_v') >= 0.945 AS found FROM ivfpq_info('t_v');
-- ranking as many candidates as rows need, such queries find less
SET ivfpq.candidates = 40;
SELECT recall() < 0.9 AS "finds less";
RESET ivfpq.candidates;
-- still shorter codes: batches rank as many candidates as scans do, which find more than the codes tell apart; so does a
-- batch of a join, and one whose queries do not fit into memory together
DROP INDEX t_v;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40, bits = 4, m = 8, refine = int8);
SELECT recall() - batch_recall() < 0.015 AS "as scans";
CREATE FUNCTION join_recall() RETURNS float8 LANGUAGE sql AS $$
    SELECT count(*) FILTER (WHERE n.d <= truth.farthest) / (10.0 * (SELECT count(*) FROM truth))
    FROM truth CROSS JOIN LATERAL (SELECT t.v <-> truth.v AS d FROM t ORDER BY t.v <-> truth.v LIMIT 10) AS n
$$;
SELECT recall() - join_recall() < 0.015 AS "as scans";
SET maintenance_work_mem = '2MB';
SELECT recall() - batch_recall() < 0.015 AS "as scans";
RESET maintenance_work_mem;
DROP TABLE t, q, truth;
DROP FUNCTION recall, batch_recall, join_recall;

\qecho groups that several lists share: rows need few lists, whose centroids are far away by the distance of duplicates. What
\qecho that says of other queries is not that they need most lists
SET ivfpq.executor = cpu;
CREATE TABLE u (id int, v vector(12));
INSERT INTO u SELECT i, vec(i % 200, 12, 1) + (SELECT array_agg(e * 0.02) FROM unnest(vec(i, 12, 2)::real[]) AS e)::vector
FROM generate_series(1, 20000) AS i;
CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 500);
-- Mean number of lists, and share of the true neighbors, of 40 rows, or of queries that are near none.
CREATE FUNCTION looked_at(k int, target text, is_row boolean, OUT lists float8, OUT share float8) LANGUAGE plpgsql AS $$
DECLARE
    query vector;
    farthest float8;
    hits float8;
BEGIN
    lists := 0;
    share := 0;
    PERFORM set_config('ivfpq.target_recall', target, true);
    FOR i IN 1 .. 40 LOOP
        query := CASE WHEN is_row THEN (SELECT v FROM u WHERE id = 37 * i) ELSE vec(i, 12, 3) END;
        PERFORM set_config('enable_indexscan', 'off', true);
        SELECT max(d) INTO farthest FROM (SELECT v <-> query AS d FROM u ORDER BY 1 LIMIT k) AS s;
        PERFORM set_config('enable_indexscan', 'on', true);
        SELECT count(*) FILTER (WHERE d <= farthest) INTO hits FROM (SELECT v <-> query AS d FROM u ORDER BY v <-> query LIMIT k) AS s;
        share := share + hits / k / 40;
        lists := lists + (SELECT probes FROM ivfpq_last_scan()) / 40.0;
    END LOOP;
END $$;
SELECT k, target, is_row, lists <= CASE WHEN is_row THEN 16 ELSE 120 END AS few, share >= target::float8 AS found
FROM unnest(ARRAY[1, 10]) AS k, unnest(ARRAY['0.95', '0.99']) AS target, unnest(ARRAY[true, false]) AS is_row
    CROSS JOIN LATERAL looked_at(k, target, is_row) ORDER BY 1, 2, 3;
DROP TABLE u;
DROP FUNCTION looked_at;

\qecho groups in few long lists: no threshold finds the duplicates of rows, which two or three lists have. Other queries have the
\qecho duplicates of their nearest row at about one distance, and need as many lists as if they wanted all of them
CREATE TABLE w (id int, v vector(24));
INSERT INTO w SELECT i, vec(i % 1000, 24, 1) + (SELECT array_agg(e * 0.3) FROM unnest(vec(i, 24, 2)::real[]) AS e)::vector
FROM generate_series(1, 20000) AS i;
CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 20);
CREATE TABLE truth AS SELECT q.id, q.v, max(n.d) AS farthest
FROM (SELECT i AS id, vec(i, 24, 3) AS v FROM generate_series(1, 100) AS i OFFSET 0) AS q
    CROSS JOIN LATERAL (SELECT w.v <-> q.v AS d FROM w ORDER BY (w.v <-> q.v) + 0 LIMIT 10) AS n GROUP BY 1, 2;
CREATE FUNCTION recall() RETURNS float8 LANGUAGE sql SET ivfpq.enable_batched_join = off AS $$
    SELECT count(*) FILTER (WHERE n.d <= truth.farthest) / (10.0 * (SELECT count(*) FROM truth))
    FROM truth CROSS JOIN LATERAL (SELECT w.v <-> truth.v AS d FROM w ORDER BY w.v <-> truth.v LIMIT 10) AS n
$$;
SELECT recall() >= 0.85 AS found, probes <= 4 AS "few for rows" FROM ivfpq_info('w_v');
SET ivfpq.target_recall = 0.99;
SELECT recall() >= 0.99 AS found, probes <= 8 AS "few for rows" FROM ivfpq_info('w_v');
RESET ivfpq.target_recall;
DROP TABLE w, truth;
DROP FUNCTION recall;

\qecho conditions that most rows pass: queries that are near no cluster find as much as without
CREATE TABLE c (id int, price float8, v vector(48));
INSERT INTO c SELECT i, (hashint8extended(i, 9) & 1023) / 1024.0, vec(i % 80, 48, 1) +
    (SELECT array_agg(e * 0.35) FROM unnest(vec(i, 48, 2)::real[]) AS e)::vector FROM generate_series(1, 3000) AS i;
CREATE TABLE q AS SELECT i AS id, vec(i, 48, 3) AS v FROM generate_series(1, 200) AS i;
ANALYZE c, q;
CREATE FUNCTION found(condition text, batched boolean, OUT recall float8, OUT by_batch boolean) LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT q.id, s.d FROM q CROSS JOIN LATERAL (SELECT c.v <-> q.v AS d FROM c WHERE %s ORDER BY c.v <-> q.v LIMIT 10) AS s', condition);
    plan json;
BEGIN
    PERFORM set_config('ivfpq.enable_batched_join', batched::text, true), set_config('enable_seqscan', 'off', true);
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    by_batch := plan::text LIKE '%Ivfpq Batch%';
    EXECUTE 'CREATE TEMP TABLE found ON COMMIT DROP AS ' || query;
    PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
    EXECUTE 'SELECT avg((d <= farthest)::int) FROM found JOIN (SELECT id, max(d) AS farthest FROM (' || query || ') AS s GROUP BY id) AS e USING (id)' INTO recall;
    PERFORM set_config('enable_indexscan', 'on', true);
    DROP TABLE found;
END $$;
CREATE INDEX c_v ON c USING ivfpq (v);
SELECT condition, batched, by_batch OR NOT batched OR current_setting('ivfpq.executor') <> 'cpu' AS as_planned, recall >= 0.93 AS found
FROM unnest(ARRAY['true', 'price >= 0', 'price < 0.9', 'price < 0.5']) AS condition, unnest(ARRAY[false, true]) AS batched CROSS JOIN LATERAL found(condition, batched)
ORDER BY batched, condition;
DROP INDEX c_v;
CREATE INDEX c_v ON c USING ivfpq (v, price);
SELECT condition, batched, recall >= 0.93 AS found
FROM unnest(ARRAY['true', 'price >= 0', 'price < 0.9', 'price < 0.5']) AS condition, unnest(ARRAY[false, true]) AS batched CROSS JOIN LATERAL found(condition, batched)
ORDER BY batched, condition;
DROP TABLE c, q;
DROP FUNCTION found;
