-- Lists that have parents: queries are compared with these first, and with the lists of the nearest ones.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
SET enable_seqscan = off;
CREATE TABLE t (id int, kind int, v vector(4));
INSERT INTO t SELECT i, i % 50, vec(i, 4) FROM generate_series(1, 12000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 800, parents = 40);
ANALYZE t;
SELECT lists, parents FROM ivfpq_info('t_v');
SELECT * FROM ivfpq_check('t_v');

-- Of the rows that an exact search finds, how many a query by the index does.
CREATE FUNCTION found(relation text, distance text, k int, condition text DEFAULT 'true') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT id FROM %s WHERE %s ORDER BY %s LIMIT %s', relation, condition, distance, k);
    ids int[];
    exact int[];
BEGIN
    EXECUTE format('SELECT array_agg(id) FROM (%s) AS s', query) INTO ids;
    PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
    EXECUTE format('SELECT array_agg(id) FROM (%s) AS s', query) INTO exact;
    PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
    RETURN (SELECT count(*) FROM (SELECT unnest(ids) INTERSECT SELECT unnest(exact)) AS s);
END
$$;

\qecho whole scans, from one list on: every row once
SET ivfpq.probes = 1;
SET ivfpq.candidates = 50;
SELECT rows, same_rows, each_once FROM compare_scan('t', 'v <-> ''[9,99,199,255]''');
SET ivfpq.probes = 160;
SELECT rows, same_rows, each_once FROM compare_scan('t', 'v <-> ''[250,1,1,250]''');

\qecho all lists in one round: in exact order
SET ivfpq.probes = 800;
SET ivfpq.candidates = 12000;
SELECT * FROM compare_scan('t', 'v <-> ''[9,99,199,255]''');
SELECT * FROM compare_scan('t', 'v <-> ''[9,99,199,255]''', 'kind < 3');
RESET ivfpq.probes;
RESET ivfpq.candidates;

\qecho as many as the index chooses
SELECT sum(found('t', format('v <-> %L', vec(q, 4, 1)), 10)) >= 460 FROM generate_series(1, 50) AS q;
SELECT sum(found('t', format('v <-> %L', vec(q, 4, 1)), 10, 'kind = 7')) >= 180 FROM generate_series(1, 20) AS q;

\qecho a bound on the distance
SET ivfpq.target_recall = 0.999;
SELECT bound, rows, same_rows, each_once FROM unnest('{1,5,20,60}'::int[]) AS bound,
    compare_scan('t', 'v <-> ''[100,100,100,100]''', format('v <-> ''[100,100,100,100]'' < %s', bound));
RESET ivfpq.target_recall;

\qecho batches
CREATE TABLE q AS SELECT i AS id, vec(i, 4, 2) AS v FROM generate_series(1, 50) AS i;
CREATE FUNCTION wrong_pairs(probes int) RETURNS bigint LANGUAGE sql AS $$
    WITH exact AS (SELECT q.id, s.rank, s.d FROM q, LATERAL
             (SELECT row_number() OVER (ORDER BY t.v <-> q.v, t.id) AS rank, t.v <-> q.v AS d FROM t ORDER BY t.v <-> q.v, t.id LIMIT 5) AS s),
         j AS (SELECT * FROM knn_join('q', 'id', 'v', 't_v', 'id', 5, probes))
    SELECT count(*) FROM exact FULL JOIN j ON j.query_key = exact.id AND j.rank = exact.rank
    WHERE j.distance IS NULL OR exact.d IS NULL OR abs(j.distance - exact.d) > 1e-4 * exact.d
$$;
SET enable_indexscan = off;
SET enable_seqscan = on;
SET ivfpq.candidates = 1000;
SELECT wrong_pairs(800), wrong_pairs(1) > 0;
RESET ivfpq.candidates;
RESET enable_indexscan;
SET enable_seqscan = off;

\qecho rows that come, change and go
INSERT INTO t SELECT i, i % 50, vec(i, 4) FROM generate_series(12001, 13000) AS i;
UPDATE t SET v = vec(id, 4, 7) WHERE id % 10 = 3;
DELETE FROM t WHERE id % 7 = 1;
SET ivfpq.probes = 800;
SET ivfpq.candidates = 15000;
SELECT rows, same_rows, each_once, in_order FROM compare_scan('t', 'v <-> ''[9,99,199,255]''');
VACUUM (INDEX_CLEANUP ON) t;
SELECT rows, same_rows, each_once, in_order FROM compare_scan('t', 'v <-> ''[9,99,199,255]''');
SELECT * FROM ivfpq_check('t_v');
REINDEX INDEX t_v;
SELECT rows, same_rows, each_once, in_order FROM compare_scan('t', 'v <-> ''[9,99,199,255]''');
SELECT lists, parents FROM ivfpq_info('t_v');
SELECT * FROM ivfpq_check('t_v');
-- a new row has the list that a build gives it: it is found where it is
INSERT INTO t SELECT 100000 + i, 0, vec(i, 4, 11) FROM generate_series(1, 200) AS i;
SET ivfpq.probes = 1;
SET ivfpq.candidates = 100;
SELECT count(*) >= 190 FROM generate_series(1, 200) AS i,
    LATERAL (SELECT id FROM t ORDER BY v <-> vec(i, 4, 11) LIMIT 1) AS s WHERE s.id = 100000 + i;
RESET ivfpq.probes;
RESET ivfpq.candidates;

\qecho other metrics, quantizers and refinements
CREATE TABLE u (id int, v vector(12));
INSERT INTO u SELECT i, vec(i, 12) FROM generate_series(1, 3000) AS i;
CREATE FUNCTION compare_with(options text, class text, operator text)
RETURNS TABLE (class_ text, rows bigint, same_rows boolean, each_once boolean, in_order boolean, problems bigint)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE INDEX u_v ON u USING ivfpq (v %s) WITH (lists = 150, parents = 12%s)', class, options);
    PERFORM set_config('ivfpq.probes', '150', true), set_config('ivfpq.candidates', '10000', true);
    RETURN QUERY SELECT class || options, c.rows, c.same_rows, c.each_once, c.in_order,
                        (SELECT count(*) FROM ivfpq_check('u_v'))
        FROM compare_scan('u', format('v %s ''[9,99,199,255,1,2,3,4,5,6,7,8]''', operator)) AS c;
    PERFORM set_config('ivfpq.probes', '1', true), set_config('ivfpq.candidates', '20', true);
    RETURN QUERY SELECT class || options, c.rows, c.same_rows, c.each_once, NULL::boolean, NULL::bigint
        FROM compare_scan('u', format('v %s ''[9,99,199,255,1,2,3,4,5,6,7,8]''', operator)) AS c;
    DROP INDEX u_v;
END
$$;
SELECT * FROM compare_with('', 'vector_cosine_ops', '<=>');
SELECT * FROM compare_with(', refine = int8', 'vector_ip_ops', '<#>');
SELECT * FROM compare_with(', bits = 4, refine = int8', 'vector_l2_ops', '<->');
SELECT * FROM compare_with(', quantizer = opq', 'vector_l2_ops', '<->');
SELECT * FROM compare_with(', quantizer = opq, dims = 8', 'vector_l2_ops', '<->');
SELECT * FROM compare_with(', quantizer = lsq, m = 2', 'vector_l2_ops', '<->');

\qecho an index that VACUUM trains
CREATE TABLE w (id int, v vector(3));
CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 40, parents = 6);
INSERT INTO w SELECT i, vec(i, 3) FROM generate_series(1, 11000) AS i;
VACUUM w;
SELECT trained, lists, parents FROM ivfpq_info('w_v');
SELECT * FROM ivfpq_check('w_v');
SELECT rows, same_rows, each_once FROM compare_scan('w', 'v <-> ''[9,99,199]''');

\qecho options
SELECT error_of('CREATE INDEX ON u USING ivfpq (v) WITH (lists = 10, parents = 11)');
SELECT error_of('CREATE INDEX ON u USING ivfpq (v) WITH (parents = 65537)');
SELECT error_of('CREATE INDEX ON u USING ivfpq (v) WITH (lists = 1048577)');
SET client_min_messages = notice;
ALTER INDEX w_v SET (parents = 1);
ALTER INDEX w_v RESET (parents);
SET client_min_messages = warning;
REINDEX INDEX w_v;
SELECT lists, parents FROM ivfpq_info('w_v');
-- as many parents as lists, and more than rows have
CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 100, parents = 100);
SELECT rows, same_rows, each_once FROM compare_scan('u', 'v <-> ''[9,99,199,255,1,2,3,4,5,6,7,8]''');
DROP INDEX u_v;
-- rows that are all alike
CREATE TABLE x AS SELECT i AS id, '[1,2,3]'::vector(3) AS v FROM generate_series(1, 3000) AS i;
CREATE INDEX x_v ON x USING ivfpq (v) WITH (lists = 50, parents = 10);
SELECT rows, same_rows, each_once FROM compare_scan('x', 'v <-> ''[9,99,199]''');
SELECT * FROM ivfpq_check('x_v');

\qecho lists beyond 32,768, which have parents without the option
CREATE TABLE y AS SELECT i AS id, vec(i, 3)::vector(3) AS v FROM generate_series(1, 1000) AS i;
CREATE INDEX y_v ON y USING ivfpq (v) WITH (lists = 33000);
SELECT lists, parents > 100 FROM ivfpq_info('y_v');
SET ivfpq.probes = 10;
SELECT rows, same_rows, each_once FROM compare_scan('y', 'v <-> ''[9,99,199]''');
RESET ivfpq.probes;
INSERT INTO y SELECT i, vec(i, 3) FROM generate_series(1001, 1100) AS i;
DELETE FROM y WHERE id % 3 = 0;
VACUUM (INDEX_CLEANUP ON) y;
SELECT rows, same_rows, each_once FROM compare_scan('y', 'v <-> ''[9,99,199]''');
SELECT id FROM y ORDER BY v <-> '[9,99,199]' LIMIT 1;
SELECT * FROM ivfpq_check('y_v');
DROP TABLE t, q, u, w, x, y;
DROP FUNCTION found, wrong_pairs, compare_with;
