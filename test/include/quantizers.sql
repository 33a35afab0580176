-- For tests of quantizers: a table t of 3000 rows whose dimensions hang together, and a trial of an index.
SET client_min_messages = warning;
-- From four numbers of chance a row: what a rotation, or a sum of words, is good for.
CREATE FUNCTION correlated(i bigint, dims int) RETURNS vector LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(round((h[1] * sin(d) + h[2] * cos(2 * d) + h[3] * sin(3 * d + 1) +
                            h[4] * cos(5 * d) / 4)::numeric, 1)::real ORDER BY d)::real[]::vector
    FROM generate_series(1, dims) AS d,
         (SELECT array_agg((hashint8extended(i * 7 + k, 3) & 255)::float8 - 128) AS h
          FROM generate_series(1, 4) AS k) AS s
$$;
CREATE TABLE t (id int, v vector(12)) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT i, correlated(i, 12) FROM generate_series(1, 3000) AS i;

-- Whether it is sound, and answers as a sort does: at once, with some rows more and others gone, and in
-- rounds.
CREATE FUNCTION try(options text, ops text, distance text, more int, OUT sound boolean, OUT answer text,
                    OUT in_rounds boolean)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('ivfpq.probes', '32768', true), set_config('ivfpq.candidates', '100000', true);
    EXECUTE format('CREATE INDEX t_v ON t USING ivfpq (v %s) WITH (%s)', ops, options);
    SELECT compare_scan('t', distance)::text INTO answer;
    INSERT INTO t SELECT top + i, correlated(top + i, 12)
    FROM generate_series(1, more) AS i, (SELECT max(id) AS top FROM t) AS s;
    DELETE FROM t WHERE id % 7 = 0;
    SELECT answer || ' ' || compare_scan('t', distance)::text INTO answer;
    sound := NOT EXISTS (SELECT * FROM ivfpq_check('t_v'));
    -- few lists and candidates at a time, until all are through
    PERFORM set_config('ivfpq.probes', '2', true), set_config('ivfpq.candidates', '30', true);
    SELECT same_rows AND each_once INTO in_rounds FROM compare_scan('t', distance);
    DROP INDEX t_v;
END
$$;
