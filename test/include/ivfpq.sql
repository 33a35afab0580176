-- What the tests of ivfpq share. SQL tests include it, TAP tests run it once a database.
SET client_min_messages = warning;
CREATE SCHEMA IF NOT EXISTS ivfpq_test;
GRANT USAGE ON SCHEMA ivfpq_test TO PUBLIC;
SET search_path = public, ivfpq_test;

-- The i-th vector of a seed: whole numbers from 0 to 255, so that distances of up to 256 dimensions
-- are exact in any order of summation, on every machine. A body that is parsed now: from 17 on, maintenance
-- calls it with another search_path.
CREATE OR REPLACE FUNCTION ivfpq_test.vec(i bigint, dims int, seed bigint DEFAULT 0) RETURNS vector
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ARRAY(SELECT (hashint8extended(i * 20000 + d, seed) & 255)::real
             FROM generate_series(1, dims) AS d)::vector;

-- The scan nodes of a plan: "Index Scan t_v_idx", "Seq Scan".
CREATE OR REPLACE FUNCTION ivfpq_test.scans_of(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN (WITH RECURSIVE node(plan) AS (
                SELECT plan->0->'Plan'
                UNION ALL
                SELECT json_array_elements(node.plan->'Plans') FROM node)
            SELECT string_agg(concat_ws(' ', node.plan->>'Node Type', node.plan->>'Index Name'),
                              ', ')
            FROM node WHERE node.plan->>'Node Type' LIKE '%Scan');
END
$$;

-- A plan as 14 to 16 print it: 17 names initial plans in another way, 18 tells nodes that are disabled.
CREATE OR REPLACE FUNCTION ivfpq_test.plan_of(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
        CONTINUE WHEN line ~ '^ *Disabled: true$';
        -- 19 calls it "InitPlan expr_1".
        line := regexp_replace(regexp_replace(line, ' \(returns \$\d+\)$', ''), 'InitPlan expr_1', 'InitPlan 1');
        RETURN NEXT regexp_replace(line, '\(InitPlan 1\)\.col1', '$0');
    END LOOP;
END
$$;

-- Runs a whole ordered scan through the index, and once more exactly, with one snapshot. `relation`
-- has a column id; `distance` is what the scan is ordered by.
CREATE OR REPLACE FUNCTION ivfpq_test.compare_scan(
    relation text, distance text, condition text DEFAULT 'true', OUT scan text, OUT rows bigint,
    OUT same_rows boolean, OUT each_once boolean, OUT in_order boolean)
LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT id, %2$s AS d FROM %1$s WHERE %3$s ORDER BY %2$s', relation,
                         distance, condition);
    gather text := 'SELECT coalesce(array_agg(id), ''{}''), coalesce(array_agg(d), ''{}'') FROM ('
                   || query || ') AS s';
    ids bigint[];
    distances float8[];
    exact_ids bigint[];
    exact_distances float8[];
BEGIN
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
            set_config('enable_bitmapscan', 'off', true);
    scan := scans_of(query);
    EXECUTE gather INTO ids, distances;
    PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
            set_config('enable_bitmapscan', 'on', true), set_config('enable_indexscan', 'off', true);
    EXECUTE gather INTO exact_ids, exact_distances;
    PERFORM set_config('enable_indexscan', 'on', true);
    rows := cardinality(ids);
    each_once := rows = (SELECT count(DISTINCT id) FROM unnest(ids) AS u(id));
    same_rows := (SELECT array_agg(DISTINCT id ORDER BY id) FROM unnest(ids) AS u(id)) IS NOT
                 DISTINCT FROM
                 (SELECT array_agg(id ORDER BY id) FROM unnest(exact_ids) AS u(id));
    in_order := distances = exact_distances;
END
$$;

-- The error a statement raises. From 17 on the search_path of CREATE INDEX is pg_catalog alone, and messages
-- name the schema of what is elsewhere; here they do not.
CREATE OR REPLACE FUNCTION ivfpq_test.error_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
    hint text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    -- 19 made detail and hint of one hint.
    IF detail = 'No operator of that name accepts the given argument types.' THEN
        hint := 'No operator matches the given name and argument types. ' || hint;
        detail := '';
    END IF;
    RETURN regexp_replace(regexp_replace(SQLSTATE || ' ' || SQLERRM ||
           CASE WHEN detail <> '' THEN ' | ' || detail ELSE '' END ||
           CASE WHEN hint <> '' THEN ' | ' || hint ELSE '' END,
           'OPERATOR\(public\.([^)]*)\)', '\1', 'g'), 'public\.', '', 'g');
END
$$;

RESET client_min_messages;

-- Statistics of what this session has done are in the views of the next statement. Before 15, sessions report
-- twice a second at most, when they become idle.
CREATE OR REPLACE FUNCTION ivfpq_test.flush_statistics() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('server_version_num')::int >= 150000 THEN
        PERFORM pg_stat_force_next_flush();
    ELSE
        PERFORM pg_sleep(0.6);
    END IF;
END
$$;

-- A digest of an index, leaving out what differs by design: positions in WAL, checksums, and on the
-- metapage the random build id (bytes 33 to 40: behind a header of 24, magic and version) and the
-- time when recall was measured (bytes 7177 to 7184). Needs the extension pageinspect when it is
-- called.
CREATE OR REPLACE FUNCTION ivfpq_test.digest(index regclass) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) || ' pages, ' || md5(string_agg(md5(
                       CASE WHEN block = 0 THEN substr(page, 11, 22) || substr(page, 41, 7136) || substr(page, 7185)
                            ELSE substr(page, 11) END), '' ORDER BY block))
            FROM (SELECT block, get_raw_page(index::text, block::int) AS page
                  FROM generate_series(0, pg_relation_size(index) / 8192 - 1) AS block) AS p);
END
$$;
