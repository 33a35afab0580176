\echo Use "CREATE EXTENSION pgwarp_pgvector" to load this file. \quit

-- For a database that has our own types and pgvector's. Values are the same bytes in both: a column
-- changes from one to the other without a rewrite of its table. See pgwarp--0.2.0.sql for how
-- this script is safe in any schema.

CREATE FUNCTION pgwarp_move_support(internal) RETURNS internal
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION pgwarp_move_support(internal) IS
    'support function of casts between pgwarp and pgvector: drops those that check nothing';

-- Base types only: whoever owns an extension can add types of any other kind to it, under any name,
-- and their values are not vectors. None but a superuser can make a base type.
DO $casts$
DECLARE
    pair record;
    found bool := false;
BEGIN
    FOR pair IN
        SELECT ours.typname AS type, ours.schema AS ours, theirs.schema AS theirs
        FROM (SELECT t.typname, n.nspname AS schema
                FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
                    JOIN pg_catalog.pg_depend AS d ON d.objid = t.oid
                    JOIN pg_catalog.pg_extension AS e ON e.oid = d.refobjid
                WHERE d.classid = 'pg_catalog.pg_type'::regclass::oid
                    AND d.refclassid = 'pg_catalog.pg_extension'::regclass::oid
                    AND d.deptype = 'e' AND e.extname = 'pgwarp' AND t.typtype = 'b') AS ours
            JOIN (SELECT t.typname, n.nspname AS schema
                FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
                    JOIN pg_catalog.pg_depend AS d ON d.objid = t.oid
                    JOIN pg_catalog.pg_extension AS e ON e.oid = d.refobjid
                WHERE d.classid = 'pg_catalog.pg_type'::regclass::oid
                    AND d.refclassid = 'pg_catalog.pg_extension'::regclass::oid
                    AND d.deptype = 'e' AND e.extname = 'vector' AND t.typtype = 'b') AS theirs
            ON theirs.typname = ours.typname
        WHERE ours.typname = 'vector' OR ours.typname = 'halfvec'
        ORDER BY ours.typname
    LOOP
        found := true;
        EXECUTE pg_catalog.format($sql$
            CREATE FUNCTION pgwarp_to_pgvector(%1$I.%3$I, integer, boolean) RETURNS %2$I.%3$I
                AS 'MODULE_PATHNAME', 'pgwarp_move'
                LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE SUPPORT pgwarp_move_support;
            COMMENT ON FUNCTION pgwarp_to_pgvector(%1$I.%3$I, integer, boolean) IS
                'casts from the type of pgwarp to that of pgvector';
            CREATE CAST (%1$I.%3$I AS %2$I.%3$I)
                WITH FUNCTION pgwarp_to_pgvector(%1$I.%3$I, integer, boolean) AS ASSIGNMENT;
            COMMENT ON CAST (%1$I.%3$I AS %2$I.%3$I) IS 'from the type of pgwarp to that of pgvector';

            CREATE FUNCTION pgwarp_from_pgvector(%2$I.%3$I, integer, boolean) RETURNS %1$I.%3$I
                AS 'MODULE_PATHNAME', 'pgwarp_move'
                LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE SUPPORT pgwarp_move_support;
            COMMENT ON FUNCTION pgwarp_from_pgvector(%2$I.%3$I, integer, boolean) IS
                'casts from the type of pgvector to that of pgwarp';
            CREATE CAST (%2$I.%3$I AS %1$I.%3$I)
                WITH FUNCTION pgwarp_from_pgvector(%2$I.%3$I, integer, boolean) AS ASSIGNMENT;
            COMMENT ON CAST (%2$I.%3$I AS %1$I.%3$I) IS 'from the type of pgvector to that of pgwarp';
        $sql$, pair.ours, pair.theirs, pair.type);
    END LOOP;
    IF NOT found THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'pgwarp has no types of its own in this database',
            DETAIL = 'It uses those of pgvector: there is nothing to cast.';
    END IF;
END
$casts$;
