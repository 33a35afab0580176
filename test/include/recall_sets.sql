-- Sets on which it is hard to keep a target for recall. Tests include this file, and bench/golden runs it.
-- Numbers are made by hashing, so a set is the same on every machine. A call for each step:
--
--   SELECT recall.make_source('gaussian', 20000, 200, 32);   rows and held-out queries of a made set
--   SELECT recall.describe();                                attributes of rows, kinds of queries
--   SELECT recall.make_table('plain', 'vector_l2_ops');      a table of these rows, and its index
--
-- A set from files begins with recall.source (id, v) and recall.held_out (id, v), loaded by the caller.
SET client_min_messages = warning;
CREATE SCHEMA IF NOT EXISTS recall;

CREATE OR REPLACE FUNCTION recall.uniform(i bigint, seed bigint) RETURNS float8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (hashint8extended(i, seed) & 9007199254740991) / 9007199254740992.0::float8;

-- Three vectors of nearly normal numbers (sums of four uniform ones, variance 1), each with its weight. Equal numbers
-- give equal vectors: rows of most sets have theirs in the second place, so what is to be independent of rows is in the third.
CREATE OR REPLACE FUNCTION recall.mixed(
    dims int, i1 bigint, weight1 float8, i2 bigint, weight2 float8, i3 bigint, weight3 float8)
RETURNS vector LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ARRAY(
    SELECT ((weight1 * ((a & 65535) + (a >> 16 & 65535) + (a >> 32 & 65535) + (a >> 48 & 65535) - 131070) +
             weight2 * ((b & 65535) + (b >> 16 & 65535) + (b >> 32 & 65535) + (b >> 48 & 65535) - 131070) +
             weight3 * ((c & 65535) + (c >> 16 & 65535) + (c >> 32 & 65535) + (c >> 48 & 65535) - 131070))
            / 37837)::real
    FROM (SELECT hashint8extended(i1 * 20000 + d, 1) AS a, hashint8extended(i2 * 20000 + d, 2) AS b,
              CASE WHEN weight3 > 0 THEN hashint8extended(i3 * 20000 + d, 3) ELSE 0 END AS c
          FROM generate_series(1, dims) AS d OFFSET 0) AS hashes)::vector;

-- Vector i of a set: a row if i < rows, else a query that is no row.
--   gaussian     clusters of one size and one spread
--   zipf         a few large clusters, many small ones
--   duplicates   twenty copies of each row, so near that most have the same code
--   shifted      twenty copies of a smaller set, each moved as a whole; queries are moved by another shift
--   heavy        norms with a heavy tail
--   frequent     dense and sparse clusters: most rows are in sparse ones, most queries fall into dense ones
CREATE OR REPLACE FUNCTION recall.vector_of(set text, i bigint, rows bigint, dims int) RETURNS vector
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    is_query bool := i >= rows;
    clusters int := greatest(rows / 200, 20);
    chance float8 := recall.uniform(i, 4);
    original bigint := CASE WHEN i < rows THEN i / 20 ELSE hashint8extended(i, 5) & 1073741823 END;
    cluster bigint := floor(clusters * chance);
    scale float8;
BEGIN
    CASE set
    WHEN 'gaussian' THEN
        RETURN recall.mixed(dims, cluster, 1.5, i, 1, 0, 0);
    WHEN 'zipf' THEN
        RETURN recall.mixed(dims, floor(clusters * chance * chance * chance * chance)::bigint, 1.5, i, 1, 0, 0);
    WHEN 'duplicates' THEN
        original := original % greatest(rows / 20, 1);
        RETURN recall.mixed(dims, floor(clusters * recall.uniform(original, 4))::bigint, 1.5, original, 1, i, 0.001);
    WHEN 'shifted' THEN
        -- a query is near originals, but none of its own
        original := CASE WHEN is_query THEN i ELSE original END;
        RETURN recall.mixed(dims, floor(clusters * recall.uniform(original, 4))::bigint, 1.5, original, 1, 0, 0)
            + recall.mixed(dims, CASE WHEN is_query THEN -1 ELSE i % 20 END, 0.3, i, 0.05, 0, 0);
    WHEN 'heavy' THEN
        scale := 1 / sqrt(recall.uniform(i, 6) + 0.0001);
        RETURN recall.mixed(dims, cluster, 1.5 * scale, i, scale, 0, 0);
    WHEN 'frequent' THEN
        -- A tenth of the clusters is dense. One row in ten is there, and eight queries in ten.
        chance := recall.uniform(i, 6);
        cluster := cluster - cluster % 10 + CASE WHEN chance < CASE WHEN is_query THEN 0.8 ELSE 0.1 END
            THEN 0 ELSE 1 + cluster % 9 END;
        RETURN recall.mixed(dims, cluster, 1.5, i, CASE WHEN cluster % 10 = 0 THEN 0.4 ELSE 1.2 END, 0, 0);
    ELSE
        RAISE 'there is no set "%"', set
            USING HINT = 'Sets are gaussian, zipf, duplicates, shifted, heavy and frequent.';
    END CASE;
END
$$;

CREATE OR REPLACE FUNCTION recall.make_source(set text, rows int, queries int, dims int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DROP TABLE IF EXISTS recall.source, recall.held_out;
    EXECUTE format('CREATE TABLE recall.source (id int, v vector(%s))', dims);
    EXECUTE format('CREATE TABLE recall.held_out (id int, v vector(%s))', dims);
    INSERT INTO recall.source SELECT i, recall.vector_of(set, i, rows, dims) FROM generate_series(0, rows - 1) AS i;
    INSERT INTO recall.held_out
    SELECT i, recall.vector_of(set, rows + i, rows, dims) FROM generate_series(0, queries - 1) AS i;
END
$$;

-- factor * v, element by element
CREATE OR REPLACE FUNCTION recall.times(v vector, factor float8) RETURNS vector
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN v * array_fill(factor::real, ARRAY[vector_dims(v)])::vector;

-- recall.rows: the source with attributes.
--   chance     0 to 9999, independent of the vector
--   along      0 to 9999, the row's rank along a line through the set
--   category   which of nine rows is nearest
-- recall.queries: by kind and id, with attributes as a row has them, and the category of the row that is farthest.
--   held_out   as they came
--   between    halfway between two of these
--   noise      a row with noise as long as the way to about its 32nd neighbor
--   far        four times as far from the middle of the set as a held-out query, every other one in a random direction
--   random     a random direction, as long as a row
CREATE OR REPLACE FUNCTION recall.describe() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    dims int := (SELECT vector_dims(v) FROM recall.held_out LIMIT 1);
    asked int := (SELECT count(*) FROM recall.held_out);
    first vector := (SELECT v FROM recall.source ORDER BY id LIMIT 1);
    line vector := (SELECT v FROM recall.source ORDER BY v <-> first DESC, id LIMIT 1) - first;
    anchors vector[] := (SELECT array_agg(v) FROM (SELECT v FROM recall.source ORDER BY hashint8extended(id, 7), id LIMIT 9) AS s);
    middle vector := (SELECT avg(v) FROM recall.source);
    steps float8[];
BEGIN
    DROP TABLE IF EXISTS recall.rows, recall.queries;
    EXECUTE format('CREATE TABLE recall.rows (id int, v vector(%s), chance int, along int, category int)', dims);
    INSERT INTO recall.rows
    SELECT id, v, (hashint8extended(id, 8) & 2147483647) % 10000,
        10000 * (row_number() OVER (ORDER BY v <#> line, id) - 1) / count(*) OVER (),
        (SELECT n FROM unnest(anchors) WITH ORDINALITY AS a (anchor, n) ORDER BY v <-> anchor, n LIMIT 1)
    FROM recall.source;
    steps := (SELECT array_agg(step ORDER BY step) FROM (SELECT min(v <#> line) AS step FROM recall.rows GROUP BY along) AS s);

    EXECUTE format('CREATE TABLE recall.queries (kind text, id int, v vector(%s), along int, category int, far_category int)', dims);
    INSERT INTO recall.queries SELECT 'held_out', id, v FROM recall.held_out;
    INSERT INTO recall.queries
    SELECT 'between', a.id, recall.times(a.v + b.v, 0.5)
    FROM recall.held_out AS a JOIN recall.held_out AS b ON b.id = (a.id + 1) % asked;
    -- The fourth neighbor of an eighth of the rows; the first may be the row itself.
    INSERT INTO recall.queries
    SELECT 'noise', row_number() OVER () - 1, r.v + recall.mixed(dims, 0, 0, 0, 0, r.id * 4::bigint, n.length / sqrt(dims))
    FROM (SELECT * FROM recall.rows ORDER BY hashint8extended(id, 9), id LIMIT asked) AS r,
        LATERAL (SELECT s.v <-> r.v AS length FROM recall.source AS s
                 WHERE s.id % 8 = 0 AND s.id <> r.id ORDER BY s.v <-> r.v OFFSET 3 LIMIT 1) AS n;
    INSERT INTO recall.queries
    SELECT 'far', id, middle + recall.times(CASE WHEN id % 2 = 0 THEN v - middle
        ELSE recall.times(l2_normalize(recall.mixed(dims, 0, 0, 0, 0, id * 4 + 1, 1)), v <-> middle) END, 4)
    FROM recall.held_out;
    INSERT INTO recall.queries
    SELECT 'random', id, recall.times(l2_normalize(recall.mixed(dims, 0, 0, 0, 0, id * 4 + 2, 1)),
        (SELECT avg(vector_norm(v)) FROM recall.held_out)) FROM recall.held_out;
    UPDATE recall.queries AS q
    SET along = least(greatest((10000.0 * width_bucket(q.v <#> line, steps) / cardinality(steps))::int, 0), 9999),
        category = (SELECT n FROM unnest(anchors) WITH ORDINALITY AS a (anchor, n) ORDER BY q.v <-> anchor, n LIMIT 1),
        far_category = (SELECT n FROM unnest(anchors) WITH ORDINALITY AS a (anchor, n) ORDER BY q.v <-> anchor DESC, n LIMIT 1);
    ALTER TABLE recall.queries ADD PRIMARY KEY (kind, id);
    ANALYZE recall.rows, recall.queries;
END
$$;

-- The values from low up to, but not with, high that a query's condition lets pass, as a share of all rows:
--   chance         on the column of this name: independent
--   along          on that column, around the query: the rows that pass are near
--   against        on that column, at its far end: the rows that pass are far away
--   category       the query's own; far_category: that of the farthest of nine rows. The share does not matter
CREATE OR REPLACE FUNCTION recall.window_of(
    condition text, share float8, id int, along int, category int, far_category int, OUT low int, OUT high int)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    width int := 10000 * share;
BEGIN
    CASE condition
    WHEN 'chance' THEN
        low := (hashint8extended(id, 10) & 2147483647) % (10001 - width);
    WHEN 'along' THEN
        low := least(greatest(along - width / 2, 0), 10000 - width);
    WHEN 'against' THEN
        low := CASE WHEN along >= 5000 THEN 0 ELSE 10000 - width END;
    WHEN 'category', 'far_category' THEN
        low := CASE condition WHEN 'category' THEN category ELSE far_category END;
        width := 1;
    END CASE;
    high := low + width;
END
$$;

-- The column that window_of() is about.
CREATE OR REPLACE FUNCTION recall.column_of(condition text) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE condition WHEN 'chance' THEN 'chance' WHEN 'along' THEN 'along' WHEN 'against' THEN 'along' ELSE 'category' END;

-- Fails for rows from half of recall.pending_below up to that number, once the index of table `name` is trained. VACUUM moves
-- the first page of the pending list, then the list from its end.
CREATE OR REPLACE FUNCTION recall.movable(id int, name text) RETURNS int LANGUAGE plpgsql IMMUTABLE COST 1 AS $$
DECLARE
    below int := nullif(current_setting('recall.pending_below', true), '');
BEGIN
    IF id < below AND id >= below / 2 AND
       (SELECT trained FROM public.ivfpq_info(to_regclass('public.' || name || '_v'))) THEN
        RAISE 'row % stays pending', id;
    END IF;
    RETURN id;
END
$$;

-- A table of recall.rows, in `parts` partitions if that is not 0, with an index of name NAME_v, in one of these states:
--   plain      as it was built
--   condition  with the columns of conditions in the index
--   refined    with finer codes
--   dead       each row has been updated one and a half times, without VACUUM
--   pending    rows are in the pending list of the index: those of one partition; without partitions, most of
--              those below recall.pending_below, if a VACUUM with this setting follows
CREATE OR REPLACE PROCEDURE recall.make_table(name text, ops text, state text DEFAULT 'plain', parts int DEFAULT 0)
LANGUAGE plpgsql AS $$
DECLARE
    -- An error in an expression of the index is what keeps rows pending.
    columns text := CASE WHEN state = 'condition' THEN ', chance, along, category'
        WHEN state = 'pending' AND parts = 0 THEN format(', (recall.movable(id, %L))', name) ELSE '' END;
    create_index text := format('CREATE INDEX %I ON %I USING ivfpq (v %s%s) WITH (refine = %s)', name || '_v', name, ops,
        columns, CASE state WHEN 'refined' THEN 'int8' ELSE 'none' END);
    leaf regclass;
BEGIN
    SET LOCAL client_min_messages = warning;
    EXECUTE format('DROP TABLE IF EXISTS %I', name);
    EXECUTE format('CREATE TABLE %I (LIKE recall.rows, touched int NOT NULL DEFAULT 0) %s', name,
        CASE WHEN parts > 0 THEN 'PARTITION BY HASH (id)' ELSE 'WITH (autovacuum_enabled = off)' END);
    FOR part IN 1 .. parts LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s) WITH (autovacuum_enabled = off)',
            name || '_' || part, name, parts, part - 1);
    END LOOP;
    IF state = 'pending' THEN
        EXECUTE create_index;
    END IF;
    EXECUTE format('INSERT INTO %I SELECT * FROM recall.rows ORDER BY id', name);
    IF state <> 'pending' THEN
        EXECUTE create_index;
    ELSE
        FOR leaf IN SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass(name || '_v') ORDER BY inhrelid OFFSET 1 LOOP
            EXECUTE format('REINDEX INDEX %s', leaf);
        END LOOP;
    END IF;
    IF state = 'dead' THEN
        -- An index on the column that changes: no new version is a heap-only tuple.
        EXECUTE format('CREATE INDEX ON %I (touched)', name);
        EXECUTE format('UPDATE %I SET touched = touched + 1', name);
        EXECUTE format('UPDATE %I SET touched = touched + 1 WHERE id %% 2 = 0', name);
    END IF;
    EXECUTE format('ANALYZE %I', name);
END
$$;
RESET client_min_messages;
