-- Filters that are not in the index: the scan checks them on the rows it ranks, and finds as many of
-- the nearest rows that pass as ivfpq.target_recall asks for.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all
SET client_min_messages = warning;
CREATE TABLE t (id int, v vector(8), n int);
INSERT INTO t SELECT i, vec(i, 8), hashint4(i) & 1023 FROM generate_series(1, 20000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v, n);
ANALYZE t;
SET enable_seqscan = off;
SET jit = off;
CREATE FUNCTION found(condition text, k int, OUT recall text, OUT in_order bool, OUT few_ranked bool) LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT array_agg(id) FROM (SELECT id FROM t WHERE %s ORDER BY v <-> $1 LIMIT %s) AS s', condition, k);
    got int[];
    truth int[];
    hits float8 := 0;
    wanted float8 := 0;
BEGIN
    in_order := true;
    few_ranked := true;
    FOR q IN 1 .. 20 LOOP
        PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
        EXECUTE query INTO truth USING vec(-q, 8);
        PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
        EXECUTE query INTO got USING vec(-q, 8);
        -- At once: from 16 on the check of the order below may scan the index, too.
        few_ranked := few_ranked AND (SELECT ranked_rows < 10000 FROM ivfpq_last_scan());
        hits := hits + (SELECT count(*) FROM unnest(got) AS g WHERE g = ANY (truth));
        wanted := wanted + cardinality(truth);
        in_order := in_order AND got = (SELECT array_agg(g ORDER BY v <-> vec(-q, 8), g) FROM unnest(got) AS g JOIN t ON id = g);
    END LOOP;
    recall := CASE WHEN hits >= 0.95 * wanted THEN 'as asked' ELSE (hits / wanted)::text END;
END $$;
SELECT * FROM found('id % 2 = 1', 10);
SELECT * FROM found('id % 10 = 3', 10);
SELECT * FROM found('id % 100 = 3', 10);
-- What passes is fewer than LIMIT: all rows are ranked.
SELECT recall, in_order FROM found('id % 4000 = 3', 10);
SELECT recall, in_order FROM found('id < 0', 10);
-- With a condition in the index beside it.
SELECT * FROM found('id % 10 = 3 AND n < 512', 10);
SELECT * FROM found('id % 10 = 3 AND n < 100', 10);
SELECT * FROM found('id % 3 = 1 AND n IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)', 5);
-- The planner knows nothing of this one, or the wrong thing.
CREATE FUNCTION odd(i int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN i % 2 = 1; END';
SELECT * FROM found('odd(id)', 10);
SELECT * FROM found('odd(id) AND odd(id + 2) AND odd(id + 4) AND odd(id + 6)', 10);
-- OFFSET, parameters, a nested loop with another filter for each row.
SELECT array_agg(id) = (SELECT array_agg(id) FROM (SELECT id FROM t WHERE id % 7 = 1 ORDER BY (v <-> vec(-1, 8)) + 0 LIMIT 5 OFFSET 5) AS s)
    FROM (SELECT id FROM t WHERE id % 7 = 1 ORDER BY v <-> vec(-1, 8) LIMIT 5 OFFSET 5) AS s;
SET ivfpq.target_recall = 1;
SELECT o.m, n.id = (SELECT id FROM t WHERE id % 50 = o.m ORDER BY (v <-> vec(-2, 8)) + 0 LIMIT 1) AS same
    FROM generate_series(0, 4) AS o (m), LATERAL (SELECT id FROM t WHERE id % 50 = o.m ORDER BY v <-> vec(-2, 8) LIMIT 1) AS n;
RESET ivfpq.target_recall;
-- A volatile function sees the rows that are fetched, and no others.
CREATE SEQUENCE calls;
CREATE FUNCTION counted(i int) RETURNS bool LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN nextval(''calls'') > 0; END';
SELECT count(*) FROM (SELECT id FROM t WHERE counted(id) ORDER BY v <-> vec(-3, 8) LIMIT 7) AS s;
SELECT last_value FROM calls;
-- Users see only rows that policies let them see.
CREATE ROLE ivfpq_reader;
GRANT SELECT ON t TO ivfpq_reader;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY odd_rows ON t FOR SELECT USING (id % 2 = 1);
SET ROLE ivfpq_reader;
SELECT bool_and(id % 10 = 3), count(*) FROM (SELECT id FROM t WHERE id % 5 = 3 ORDER BY v <-> vec(-4, 8) LIMIT 20) AS s;
RESET ROLE;
-- A filter sees no row that a condition of the index excludes: the condition may keep it from an error, or be a policy.
-- Rows of an untrained index have no attributes; 't38395' and 't5357' have one hash.
CREATE TABLE p (id int, v vector(8), x int, owner text);
INSERT INTO p SELECT i, vec(i, 8), i % 5, CASE i % 2 WHEN 0 THEN 't38395' ELSE 't5357' END FROM generate_series(1, 300) AS i;
CREATE INDEX p_v ON p USING ivfpq (v, x, owner);
ANALYZE p;
CREATE FUNCTION seen(i int, owner text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF owner <> 't38395' THEN RAISE 'saw the row of another owner'; END IF;
    RETURN i % 4 = 2;
END $$;
GRANT SELECT ON p TO ivfpq_reader;
ALTER TABLE p ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON p USING (owner = 't38395');
CREATE FUNCTION guarded(OUT trained bool, OUT no_error text, OUT own_rows text) LANGUAGE plpgsql AS $$ BEGIN
    trained := (SELECT lists IS NOT NULL FROM ivfpq_info('p_v'));
    no_error := (SELECT array_agg(id) = (SELECT array_agg(id) FROM (SELECT id FROM p WHERE CASE WHEN x > 0 THEN 10 / x > 2 END
            ORDER BY (v <-> vec(-1, 8)) + 0 LIMIT 5) AS s)
        FROM (SELECT id FROM p WHERE x > 0 AND 10 / x > 2 ORDER BY v <-> vec(-1, 8) LIMIT 5) AS s);
    SET LOCAL ROLE ivfpq_reader;
    own_rows := (SELECT array_agg(id) FROM (SELECT id FROM p WHERE seen(id, owner) ORDER BY v <-> vec(-1, 8) LIMIT 3) AS s);
    SET LOCAL ROLE NONE;
END $$;
SELECT * FROM guarded();
INSERT INTO p SELECT i, vec(i, 8), i % 5, CASE i % 2 WHEN 0 THEN 't38395' ELSE 't5357' END FROM generate_series(301, 6000) AS i;
REINDEX INDEX p_v;
SELECT * FROM guarded();
SELECT array_agg(id) FROM (SELECT id FROM p WHERE owner = 't38395' AND id % 4 = 2 ORDER BY (v <-> vec(-1, 8)) + 0 LIMIT 3) AS s;
DROP TABLE t, p;
DROP ROLE ivfpq_reader;
DROP FUNCTION found, odd, counted, seen, guarded;
DROP SEQUENCE calls;
