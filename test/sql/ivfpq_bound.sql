-- A condition that bounds the distance a scan is ordered by: the scan ends where no row within the
-- bound is left, and has found as many of them as ivfpq.target_recall asks for.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

-- Rows in clusters of 50, and queries that are not rows.
CREATE TABLE t (id int, v vector(8));
INSERT INTO t SELECT i, ARRAY(SELECT c + (n - 128) / 8 FROM
        unnest(vec(i / 50, 8)::real[], vec(i, 8, 1)::real[]) AS u(c, n))::vector
    FROM generate_series(0, 19999) AS i;
CREATE INDEX t_l2 ON t USING ivfpq (v) WITH (m = 4);
CREATE INDEX t_ip ON t USING ivfpq (v vector_ip_ops) WITH (m = 4);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (m = 4);
ANALYZE t;

-- Of rows within a bound: how many there are, how many a scan finds, whether in order, each within
-- the bound and once, and how many rows it ranked for it.
CREATE FUNCTION within(metric text, query vector, bound float8, wanted int, OUT truth bigint,
                       OUT hits bigint, OUT sound boolean, OUT ranked bigint, OUT rounds int)
LANGUAGE plpgsql AS $$
DECLARE
    condition text := format('v %s $1 < $2', metric);
BEGIN
    PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
    EXECUTE 'SELECT count(*) FROM t WHERE ' || condition INTO truth USING query, bound;
    PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
    EXECUTE format('SELECT count(*), coalesce(bool_and(d < $2 AND d >= before), true) AND
                           count(*) = count(DISTINCT id)
                    FROM (SELECT id, d, coalesce(lag(d) OVER (), d) AS before FROM
                          (SELECT id, v %1$s $1 AS d FROM t WHERE v %1$s $1 < $2
                           ORDER BY v %1$s $1 LIMIT %2$s) AS s) AS s', metric, wanted)
        INTO hits, sound USING query, bound;
    SELECT l.ranked_rows, l.rounds INTO ranked, rounds FROM ivfpq_last_scan() AS l;
END
$$;
-- Over queries.
CREATE FUNCTION all_within(metric text, bound float8, wanted int DEFAULT 100000)
RETURNS TABLE (rows text, recall boolean, sound boolean, effort boolean) LANGUAGE sql AS $$
    SELECT CASE WHEN sum(truth) = 0 THEN 'none' WHEN avg(truth) < 20 THEN 'few'
                WHEN avg(truth) < 500 THEN 'some' ELSE 'many' END,
           sum(hits) >= 0.95 * sum(least(truth, wanted)), bool_and(w.sound),
           avg(ranked) <= 1000 + 4 * avg(truth) AND max(rounds) < 20
    FROM generate_series(1, 20) AS i, within(metric, vec(i, 8, 2), bound, wanted) AS w
$$;

\qecho l2
SELECT * FROM all_within('<->', 3);
SELECT * FROM all_within('<->', 90);
SELECT * FROM all_within('<->', 130);
SELECT * FROM all_within('<->', 190);
SELECT * FROM all_within('<->', 300);
SELECT * FROM all_within('<->', 130, 10);
\qecho inner product
SELECT * FROM all_within('<#>', -400000);
SELECT * FROM all_within('<#>', -280000);
SELECT * FROM all_within('<#>', -200000);
SELECT * FROM all_within('<#>', 0, 10);
\qecho cosine
SELECT * FROM all_within('<=>', 0.001);
SELECT * FROM all_within('<=>', 0.05);
SELECT * FROM all_within('<=>', 0.15);
SELECT * FROM all_within('<=>', 3, 100);

\qecho from a row, within its cluster, by other forms of the condition
SET enable_seqscan = off;
CREATE FUNCTION last_ranked() RETURNS text LANGUAGE sql AS
    $$ SELECT CASE WHEN candidates < 3000 THEN 'stopped' ELSE 'went on' END FROM ivfpq_last_scan() $$;
SELECT v AS q FROM t WHERE id = 4711 \gset
SELECT count(*) FROM (SELECT 1 FROM t WHERE v <-> :'q' <= 60 ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();
SELECT count(*) FROM (SELECT 1 FROM t WHERE 60 > :'q' <-> v ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();
SELECT count(*) FROM (SELECT 1 FROM t WHERE 60::real >= v <-> :'q' ORDER BY :'q' <-> v LIMIT 1000) AS s;
SELECT last_ranked();
SELECT count(*) FROM (SELECT 1 FROM t WHERE v <-> :'q' BETWEEN 1 AND (SELECT 60) AND id > 4000
                      ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();
PREPARE near(vector, float8) AS
    SELECT count(*) FROM (SELECT 1 FROM t WHERE v <-> $1 < $2 ORDER BY v <-> $1) AS s;
SET plan_cache_mode = force_generic_plan;
EXECUTE near(:'q', 60);
SELECT last_ranked();
EXECUTE near(:'q', -1);
EXECUTE near(:'q', null);
EXECUTE near(:'q', 'infinity');
EXECUTE near(:'q', 'nan');
RESET plan_cache_mode;
SELECT id, n FROM (VALUES (50), (4711), (19999)) AS k(id), LATERAL
    (SELECT count(*) AS n FROM (SELECT 1 FROM t WHERE v <-> (SELECT v FROM t AS u WHERE u.id = k.id) < 0.5
                                ORDER BY v <-> (SELECT v FROM t AS u WHERE u.id = k.id)) AS s) AS s;
\qecho no bound: another distance, another vector, a value of its own for each row, the other side
SELECT count(*) FROM (SELECT 1 FROM t WHERE v <+> :'q' < 60 ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();
SELECT count(*) FROM (SELECT 1 FROM t WHERE v <-> '[1,1,1,1,1,1,1,1]' < 1 ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();
SELECT count(*) FROM (SELECT 1 FROM t WHERE v <-> :'q' < id - 19900 ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();
SELECT count(*) FROM (SELECT 1 FROM t WHERE v <-> :'q' < random() ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();
SELECT count(*) FROM (SELECT 1 FROM t WHERE v <-> :'q' > 400 ORDER BY v <-> :'q' LIMIT 1000) AS s;
SELECT last_ranked();

\qecho every one of them
SET ivfpq.target_recall = 1;
SELECT truth = hits, sound FROM generate_series(1, 5) AS i, within('<->', vec(i, 8, 2), 190, 100000);
RESET ivfpq.target_recall;

\qecho from within a dense cluster: of rows within the bound that another condition leaves
CREATE TABLE c (id int, v vector(32));
INSERT INTO c SELECT i, vec(i, 32) FROM generate_series(1, 6000) AS i;
INSERT INTO c SELECT 6000 + i, ARRAY(SELECT x + (n - 128) / 128 FROM
        unnest(vec(17, 32)::real[], vec(i, 32, 1)::real[]) AS u(x, n))::vector
    FROM generate_series(1, 1500) AS i;
CREATE INDEX c_v ON c USING ivfpq (v) WITH (lists = 20, m = 4);
ANALYZE c;
SELECT vec(17, 32) AS q \gset
SELECT v <-> :'q' AS r FROM c ORDER BY (v <-> :'q') + 0 OFFSET 1700 LIMIT 1 \gset
CREATE FUNCTION sparse(query vector, bound float8, OUT recall text, OUT sound boolean, OUT effort text)
LANGUAGE plpgsql AS $$
DECLARE
    truth bigint;
    hits bigint;
BEGIN
    SELECT count(*) INTO truth FROM c WHERE (v <-> query) + 0 < bound AND id <= 6000;
    SELECT count(*), count(*) = count(DISTINCT id) AND bool_and(d < bound) INTO hits, sound
    FROM (SELECT id, v <-> query AS d FROM c WHERE v <-> query < bound AND id <= 6000
          ORDER BY v <-> query) AS s;
    SELECT CASE WHEN hits >= 0.95 * truth THEN 'good' ELSE format('%s of %s', hits, truth) END,
           CASE WHEN ranked_rows < 7000 AND rounds < 25 THEN 'good'
                ELSE format('%s rows in %s rounds', ranked_rows, rounds) END
    INTO recall, effort FROM ivfpq_last_scan();
END
$$;
SET enable_sort = off;
SELECT * FROM sparse(:'q', :r);
\qecho whether the first group has all lists, one or some
SET ivfpq.probes = 20;
SELECT * FROM sparse(:'q', :r);
SET ivfpq.probes = 1;
SELECT * FROM sparse(:'q', :r);
SET ivfpq.probes = 3;
SELECT * FROM sparse(:'q', :r);
\qecho and where candidates go to temporary files
SET work_mem = 64;
SELECT * FROM sparse(:'q', :r);
RESET work_mem;
RESET ivfpq.probes;
RESET enable_sort;
DROP FUNCTION sparse;
DROP TABLE c;

\qecho untrained
SET client_min_messages = warning;
TRUNCATE t;
RESET client_min_messages;
INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(1, 3000) AS i;
SELECT truth = hits, sound FROM generate_series(1, 3) AS i, within('<->', vec(i, 8, 2), 190, 100000);
DROP FUNCTION within, all_within, last_ranked;
DROP TABLE t;
