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

\qecho a similarity: a number minus the distance
-- Whether few rows pass, whether a scan finds as many of them as was asked for and no other, and what it ranked.
CREATE FUNCTION alike(condition text, metric text, query vector, bound float8, OUT few boolean, OUT same boolean,
                      OUT effort text, OUT ids int[]) LANGUAGE plpgsql AS $$
DECLARE
    rows text := format('SELECT array_agg(id ORDER BY id) FROM (SELECT id FROM t WHERE %s ORDER BY v %s $1 LIMIT 1000) AS s',
        condition, metric);
    truth int[];
BEGIN
    PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
    EXECUTE rows INTO truth USING query, bound;
    PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
    EXECUTE rows INTO ids USING query, bound;
    truth := coalesce(truth, '{}');
    few := cardinality(truth) BETWEEN 20 AND 100;
    ids := coalesce(ids, '{}');
    same := ids <@ truth AND cardinality(ids) >= current_setting('ivfpq.target_recall')::float8 * cardinality(truth);
    effort := last_ranked();
END
$$;
SELECT 1 - max(v <=> :'q') AS cosine, 100 - max(v <-> :'q') AS nearness FROM t WHERE id / 50 = 4711 / 50 \gset
SELECT -(v <#> :'q') AS product FROM t ORDER BY (v <#> :'q') + 0 OFFSET 50 LIMIT 1 \gset
SELECT condition, s.few, s.same, s.effort FROM unnest(ARRAY['1 - (v <=> $1) > $2', '(1 - (v <=> $1)) >= $2', '$2 < 1 - (v <=> $1)', '$2 <= 1 - ($1 <=> v)',
        '1 - (v <=> $1) > $2::real', '$2::real <= 1::real - (v <=> $1)', '1 - (v <=> $1) > $2::numeric',
        '1 - (v <=> $1) BETWEEN $2 AND 1.5', 'id > 4000 AND (SELECT 1) - (v <=> $1) > (SELECT $2)']) AS condition,
    alike(condition, '<=>', :'q', :cosine - 1e-4) AS s;
SELECT condition, s.few, s.same, s.effort FROM unnest(ARRAY['100 - (v <-> $1) >= $2', '$2 <= 100 - ($1 <-> v)']) AS condition,
    alike(condition, '<->', :'q', :nearness) AS s;
SELECT condition, s.ids = d.ids AS same, s.effort FROM unnest(ARRAY['-(v <#> $1) > $2', '$2 <= -(v <#> $1)', '- ($1 <#> v) >= $2', '(v <#> $1) * -1 > $2',
        '-1 * (v <#> $1) > $2', '0 - (v <#> $1) > $2']) AS condition,
    alike(condition, '<#>', :'q', :product - 0.001) AS s, alike('v <#> $1 < -$2', '<#>', :'q', :product - 0.001) AS d;
\qecho no bound: the other side, a factor, a value of its own for each row, a sum
SELECT condition, s.same, s.effort FROM unnest(ARRAY['1 - (v <=> $1) < $2', '$2 > 1 - (v <=> $1)', '(v <=> $1) - 1 > -$2',
        'id % 2 - (v <=> $1) > $2', '1 + (v <=> $1) > $2']) AS condition,
    alike(condition || ' AND id / 50 = 4711 / 50', '<=>', :'q', :cosine - 1e-4) AS s;
SELECT same, effort FROM alike('(v <#> $1) * -2 > 2 * $2', '<#>', :'q', :product);
\qecho null passes no row, and what is above all numbers none or all
SELECT minuend, bound, (SELECT count(*) FROM (SELECT 1 FROM t WHERE minuend - (v <-> :'q') > bound ORDER BY v <-> :'q' LIMIT 30000) AS s)
FROM (VALUES (1.0, null), (null, 1.0), ('infinity', 1.0), (1.0, '-infinity'), (1.0, 'infinity'), (1.0, 'nan'), ('nan', 1.0),
    ('-infinity', 1.0)) AS n (minuend, bound);
\qecho the difference is rounded before it is compared: rows at the bound are kept
SET ivfpq.target_recall = 1;
SELECT minuend, bool_and(s.same) FROM (VALUES (0.1), (1), (-1e15), (1e15)) AS n (minuend), generate_series(0, 9) AS i,
    LATERAL (SELECT minuend - (v <-> :'q') AS bound FROM t WHERE id = 4700 + i) AS b,
    alike(minuend || ' - (v <-> $1) >= $2', '<->', :'q', bound) AS s
GROUP BY minuend ORDER BY minuend;
RESET ivfpq.target_recall;
\qecho a zero vector has no direction: NaN is above all numbers
CREATE TABLE z AS SELECT id, v FROM t WHERE id < 3000;
CREATE INDEX z_v ON z USING ivfpq (v vector_cosine_ops);
SELECT count(*) FROM (SELECT 1 FROM z WHERE 1 - (v <=> '[0,0,0,0,0,0,0,0]') > 0.9 ORDER BY v <=> '[0,0,0,0,0,0,0,0]' LIMIT 5000) AS s;
SELECT count(*) FROM (SELECT 1 FROM z WHERE v <=> '[0,0,0,0,0,0,0,0]' < 0.1 ORDER BY v <=> '[0,0,0,0,0,0,0,0]' LIMIT 5000) AS s;
INSERT INTO z VALUES (-1, '[0,0,0,0,0,0,0,0]');
SET ivfpq.target_recall = 1;
SELECT count(*) > 10, min(id) FROM (SELECT id FROM z WHERE 1 - (v <=> (SELECT v FROM t WHERE id = 471)) > 0.99
    ORDER BY v <=> (SELECT v FROM t WHERE id = 471) LIMIT 2000) AS s;
RESET ivfpq.target_recall;
DROP TABLE z;
DROP FUNCTION alike;

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
