\echo Use "CREATE EXTENSION pgwarp" to load this file. \quit

-- Safe in any schema: this script runs as a superuser, perhaps in a schema where others create
-- objects, too. What PostgreSQL has is found first where the types of arguments are exactly its own;
-- where they are not, the name is written with its schema.

-- A server that has loaded an older library than the one of this script, or found one, cannot run it.
DO $library$
BEGIN
    CREATE FUNCTION pgwarp_version() RETURNS text
        AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION USING
        ERRCODE = 'object_not_in_prerequisite_state',
        MESSAGE = 'the library of pgwarp is older than version 0.2.0 of the extension',
        HINT = 'Install the library of that version. If it is there, restart the server, which still has the old one.';
END
$library$;
COMMENT ON FUNCTION pgwarp_version() IS 'version of the library, which may be newer than the extension';

-- pgvector's types, if this database has pgvector: the schema of these, and from now on the extension
-- depends on that one. Null: our own types, which the next block makes.
CREATE FUNCTION pgwarp_bind_types() RETURNS name
    AS 'MODULE_PATHNAME' LANGUAGE C;

-- Our own types. Names, casts and volatility are pgvector's, so that what was written for it works
-- here. The C symbols have a prefix of their own: a server may have both libraries loaded, and their
-- symbols share one namespace.

DO $own_types$
DECLARE
    of_type text;
    made record;
BEGIN

IF pgwarp_bind_types() IS NOT NULL THEN
    RETURN;
END IF;

-- Both types have the same operators and functions. In the text below, @ is the name of the type.
FOREACH of_type IN ARRAY '{vector,halfvec}'::text[]
LOOP
    EXECUTE pg_catalog.format('CREATE TYPE %s', of_type);

    FOR made IN SELECT * FROM (VALUES
        ('@_in', 'cstring, oid, integer', '@', 'reads a @ from its text'),
        ('@_out', '@', 'cstring', 'writes a @ as text'),
        ('@_typmod_in', 'cstring[]', 'integer', 'reads the number of dimensions in @(n)'),
        ('@_recv', 'internal, oid, integer', '@', 'reads a @ from its binary form'),
        ('@_send', '@', 'bytea', 'writes a @ in its binary form'),
        (NULL, NULL, NULL, NULL),  -- from here on the type is there

        ('l2_distance', '@, @', 'float8', 'L2 distance'),
        ('@_l2_squared_distance', '@, @', 'float8', 'square of the L2 distance'),
        ('inner_product', '@, @', 'float8', 'inner product'),
        ('@_negative_inner_product', '@, @', 'float8', 'inner product, negated so that nearer is less'),
        ('cosine_distance', '@, @', 'float8', 'cosine distance: 1 - cosine similarity'),
        ('@_spherical_distance', '@, @', 'float8', 'angle between two vectors of unit length, divided by pi'),
        ('l1_distance', '@, @', 'float8', 'L1 distance: sum of the absolute differences'),

        ('vector_dims', '@', 'integer', 'number of dimensions of a @'),
        (CASE of_type WHEN 'vector' THEN 'vector_norm' ELSE 'l2_norm' END, '@', 'float8', 'L2 norm (length) of a @'),
        ('l2_normalize', '@', '@', '@ of the same direction with L2 norm 1; the zero vector stays zero'),
        ('subvector', '@, integer, integer', '@',
            'elements of a @ from a position on, counted from 1: @, start, count'),
        ('binary_quantize', '@', 'bit', 'a bit for each element: 1 where the element is positive'),

        ('@_add', '@, @', '@', 'adds two vectors, element by element'),
        ('@_sub', '@, @', '@', 'subtracts the second vector from the first, element by element'),
        ('@_mul', '@, @', '@', 'multiplies two vectors, element by element'),
        ('@_concat', '@, @', '@', 'appends the second vector to the first'),

        ('@', '@, integer, boolean', '@', 'casts @ to @(n): an error where the dimensions differ'),
        ('array_to_@', 'integer[], integer, boolean', '@', 'casts integer[] to @'),
        ('array_to_@', 'real[], integer, boolean', '@', 'casts real[] to @'),
        ('array_to_@', 'double precision[], integer, boolean', '@', 'casts double precision[] to @'),
        ('array_to_@', 'numeric[], integer, boolean', '@', 'casts numeric[] to @'),
        ('@_to_float4', '@, integer, boolean', 'real[]', 'casts @ to real[]'),

        ('@_accum', 'double precision[], @', 'double precision[]', 'transition function of avg(@): counts and adds a @'),
        ('@_combine', 'double precision[], double precision[]', 'double precision[]',
            'combine function of avg(@): adds two partial sums'),
        ('@_avg', 'double precision[]', '@', 'final function of avg(@): divides the sum by the count'),

        ('@_lt', '@, @', 'boolean', 'whether the first vector sorts before the second'),
        ('@_le', '@, @', 'boolean', 'whether the first vector sorts before the second or equals it'),
        ('@_eq', '@, @', 'boolean', 'whether two vectors are equal'),
        ('@_ne', '@, @', 'boolean', 'whether two vectors differ'),
        ('@_ge', '@, @', 'boolean', 'whether the first vector sorts after the second or equals it'),
        ('@_gt', '@, @', 'boolean', 'whether the first vector sorts after the second'),
        ('@_cmp', '@, @', 'integer', 'compares two vectors, element by element: -1, 0 or 1'))
        AS v (name, arguments, result, description)
    LOOP
        IF made.name IS NULL THEN
            -- Stored out of line but not compressed: floats do not compress, and reading must be quick.
            EXECUTE pg_catalog.replace('CREATE TYPE @ (INPUT = @_in, OUTPUT = @_out, TYPMOD_IN = @_typmod_in,
                RECEIVE = @_recv, SEND = @_send, STORAGE = external)', '@', of_type);
            CONTINUE;
        END IF;
        EXECUTE pg_catalog.replace(pg_catalog.format('CREATE FUNCTION %1$s(%2$s) RETURNS %3$s
            AS ''MODULE_PATHNAME'', %5$L LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
            COMMENT ON FUNCTION %1$s(%2$s) IS %4$L', made.name, made.arguments, made.result, made.description,
            -- Of functions that have one name for both types, the symbol of vector's has that name alone.
            CASE WHEN made.name ~ '@' OR of_type = 'vector' THEN 'pgwarp_' || made.name
                WHEN made.name = 'vector_dims' THEN 'pgwarp_halfvec_dims'
                ELSE 'pgwarp_halfvec_' || made.name END), '@', of_type);
    END LOOP;

    FOR made IN SELECT * FROM (VALUES
        ('<->', 'l2_distance', 'COMMUTATOR = <->', 'L2 distance'),
        ('<#>', '@_negative_inner_product', 'COMMUTATOR = <#>', 'inner product, negated so that nearer is less'),
        ('<=>', 'cosine_distance', 'COMMUTATOR = <=>', 'cosine distance'),
        ('<+>', 'l1_distance', 'COMMUTATOR = <+>', 'L1 distance'),
        ('+', '@_add', 'COMMUTATOR = +', 'adds two vectors, element by element'),
        ('-', '@_sub', NULL, 'subtracts the second vector from the first, element by element'),
        ('*', '@_mul', 'COMMUTATOR = *', 'multiplies two vectors, element by element'),
        ('||', '@_concat', NULL, 'appends the second vector to the first'),
        ('<', '@_lt', 'COMMUTATOR = >, NEGATOR = >=, RESTRICT = scalarltsel, JOIN = scalarltjoinsel', 'sorts before'),
        ('<=', '@_le', 'COMMUTATOR = >=, NEGATOR = >, RESTRICT = scalarlesel, JOIN = scalarlejoinsel',
            'sorts before or equals'),
        ('=', '@_eq', 'COMMUTATOR = =, NEGATOR = <>, RESTRICT = eqsel, JOIN = eqjoinsel', 'equals'),
        ('<>', '@_ne', 'COMMUTATOR = <>, NEGATOR = =, RESTRICT = neqsel, JOIN = neqjoinsel', 'differs from'),
        ('>=', '@_ge', 'COMMUTATOR = <=, NEGATOR = <, RESTRICT = scalargesel, JOIN = scalargejoinsel',
            'sorts after or equals'),
        ('>', '@_gt', 'COMMUTATOR = <, NEGATOR = <=, RESTRICT = scalargtsel, JOIN = scalargtjoinsel', 'sorts after'))
        AS v (name, function, properties, description)
    LOOP
        EXECUTE pg_catalog.replace(pg_catalog.format('CREATE OPERATOR %1$s (LEFTARG = @, RIGHTARG = @, FUNCTION = %2$s%3$s);
            COMMENT ON OPERATOR %1$s (@, @) IS %4$L', made.name, made.function, ', ' || made.properties, made.description),
            '@', of_type);
    END LOOP;

    EXECUTE pg_catalog.replace($sql$
        CREATE AGGREGATE avg(@) (SFUNC = @_accum, STYPE = double precision[], FINALFUNC = @_avg,
            COMBINEFUNC = @_combine, INITCOND = '{0}', PARALLEL = SAFE);
        COMMENT ON AGGREGATE avg(@) IS 'mean of the vectors, element by element';

        CREATE AGGREGATE sum(@) (SFUNC = @_add, STYPE = @, COMBINEFUNC = @_add, PARALLEL = SAFE);
        COMMENT ON AGGREGATE sum(@) IS 'sum of the vectors, element by element';

        -- For btree indexes, ORDER BY and DISTINCT.
        CREATE OPERATOR CLASS @_ops DEFAULT FOR TYPE @ USING btree AS
            OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 @_cmp(@, @);
        COMMENT ON OPERATOR CLASS @_ops USING btree IS 'order of vectors, element by element';
        COMMENT ON OPERATOR FAMILY @_ops USING btree IS 'order of vectors, element by element';
    $sql$, '@', of_type);
END LOOP;

COMMENT ON TYPE vector IS 'vector of float4, 1 to 16000 dimensions';
COMMENT ON TYPE halfvec IS 'vector of halves, 16-bit floating-point numbers, 1 to 16000 dimensions';

-- Casts

CREATE FUNCTION halfvec_to_vector(halfvec, integer, boolean) RETURNS vector
    AS 'MODULE_PATHNAME', 'pgwarp_halfvec_to_vector' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION halfvec_to_vector(halfvec, integer, boolean) IS 'casts halfvec to vector';

CREATE FUNCTION vector_to_halfvec(vector, integer, boolean) RETURNS halfvec
    AS 'MODULE_PATHNAME', 'pgwarp_vector_to_halfvec' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION vector_to_halfvec(vector, integer, boolean) IS 'casts vector to halfvec';

FOR made IN SELECT * FROM (VALUES
    ('vector', 'vector', 'vector', 'IMPLICIT', 'to vector(n): an error where the dimensions differ'),
    ('vector', 'halfvec', 'vector_to_halfvec', 'IMPLICIT', 'rounded to halves'),
    ('vector', 'real[]', 'vector_to_float4', 'IMPLICIT', 'elements of a vector as an array'),
    ('integer[]', 'vector', 'array_to_vector', 'ASSIGNMENT', 'array to vector'),
    ('real[]', 'vector', 'array_to_vector', 'ASSIGNMENT', 'array to vector'),
    ('double precision[]', 'vector', 'array_to_vector', 'ASSIGNMENT', 'array to vector, rounded to float4'),
    ('numeric[]', 'vector', 'array_to_vector', 'ASSIGNMENT', 'array to vector, rounded to float4'),
    ('halfvec', 'halfvec', 'halfvec', 'IMPLICIT', 'to halfvec(n): an error where the dimensions differ'),
    ('halfvec', 'vector', 'halfvec_to_vector', 'ASSIGNMENT', 'the same elements as float4'),
    ('halfvec', 'real[]', 'halfvec_to_float4', 'ASSIGNMENT', 'elements of a halfvec as an array'),
    ('integer[]', 'halfvec', 'array_to_halfvec', 'ASSIGNMENT', 'array to halfvec, rounded to halves'),
    ('real[]', 'halfvec', 'array_to_halfvec', 'ASSIGNMENT', 'array to halfvec, rounded to halves'),
    ('double precision[]', 'halfvec', 'array_to_halfvec', 'ASSIGNMENT', 'array to halfvec, rounded to halves'),
    ('numeric[]', 'halfvec', 'array_to_halfvec', 'ASSIGNMENT', 'array to halfvec, rounded to halves'))
    AS v (source, target, function, context, description)
LOOP
    EXECUTE pg_catalog.format('CREATE CAST (%1$s AS %2$s) WITH FUNCTION %3$s(%1$s, integer, boolean) AS %4$s;
        COMMENT ON CAST (%1$s AS %2$s) IS %5$L', made.source, made.target, made.function, made.context, made.description);
END LOOP;

END
$own_types$;

-- The index access method.

CREATE FUNCTION ivfpq_handler(internal) RETURNS index_am_handler
    AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON FUNCTION ivfpq_handler(internal) IS 'handler of the index access method ivfpq';

CREATE ACCESS METHOD ivfpq TYPE INDEX HANDLER ivfpq_handler;
COMMENT ON ACCESS METHOD ivfpq IS 'inverted lists with product quantization';

CREATE FUNCTION ivfpq_metric_l2(int4) RETURNS int4
    AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION ivfpq_metric_l2(int4) IS
    'support function of vector_l2_ops: the metric of its indexes';
CREATE FUNCTION ivfpq_metric_inner_product(int4) RETURNS int4
    AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION ivfpq_metric_inner_product(int4) IS
    'support function of vector_ip_ops: the metric of its indexes';
CREATE FUNCTION ivfpq_metric_cosine(int4) RETURNS int4
    AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION ivfpq_metric_cosine(int4) IS
    'support function of vector_cosine_ops: the metric of its indexes';

-- Operator classes for each type of vectors, ours or pgvector's.
DO $classes$
DECLARE
    types_schema name := coalesce(pgwarp_bind_types(), current_schema());
    class record;
BEGIN
    FOR class IN SELECT * FROM (VALUES
        ('vector', 'l2', '<->', 'l2', 'DEFAULT', 'L2 distance'),
        ('vector', 'ip', '<#>', 'inner_product', '', 'negative inner product'),
        ('vector', 'cosine', '<=>', 'cosine', '', 'cosine distance'),
        ('halfvec', 'l2', '<->', 'l2', 'DEFAULT', 'L2 distance'),
        ('halfvec', 'ip', '<#>', 'inner_product', '', 'negative inner product'),
        ('halfvec', 'cosine', '<=>', 'cosine', '', 'cosine distance'))
        AS v (type, name, operator, metric, is_default, distance)
    LOOP
        EXECUTE pg_catalog.format('CREATE OPERATOR CLASS %1$s_%2$s_ops %3$s FOR TYPE %4$I.%1$s USING ivfpq AS
            OPERATOR 1 %4$I.%5$s (%4$I.%1$s, %4$I.%1$s) FOR ORDER BY pg_catalog.float_ops,
            FUNCTION 1 ivfpq_metric_%6$s(int4)',
            class.type, class.name, class.is_default, types_schema, class.operator, class.metric);
        EXECUTE pg_catalog.format('COMMENT ON OPERATOR CLASS %1$s_%2$s_ops USING ivfpq IS %3$L',
            class.type, class.name, pg_catalog.format('ORDER BY %s, %s', class.distance, class.operator));
        EXECUTE pg_catalog.format('COMMENT ON OPERATOR FAMILY %1$s_%2$s_ops USING ivfpq IS %3$L',
            class.type, class.name, pg_catalog.format('ORDER BY %s, %s', class.distance, class.operator));
    END LOOP;
END
$classes$;

-- Attributes: the columns of an index beside the vector, for conditions. Operators 1 to 5 are those of
-- a btree, 6 is &&, 7 is @>. Function 2, a hash, makes an attribute that is good for = only.

CREATE OPERATOR FAMILY integer_ops USING ivfpq;
CREATE OPERATOR FAMILY float_ops USING ivfpq;
CREATE OPERATOR FAMILY datetime_ops USING ivfpq;
COMMENT ON OPERATOR FAMILY integer_ops USING ivfpq IS 'conditions on integers';
COMMENT ON OPERATOR FAMILY float_ops USING ivfpq IS 'conditions on floating-point numbers';
COMMENT ON OPERATOR FAMILY datetime_ops USING ivfpq IS 'conditions on dates and timestamps';

DO $$
DECLARE
    class record;
    other record;
    operators text;
BEGIN
    -- Values that have an order.
    FOR class IN SELECT * FROM (VALUES
        ('int2_ops', 'smallint', 'integer_ops'),
        ('int4_ops', 'integer', 'integer_ops'),
        ('int8_ops', 'bigint', 'integer_ops'),
        ('float4_ops', 'real', 'float_ops'),
        ('float8_ops', 'double precision', 'float_ops'),
        ('date_ops', 'date', 'datetime_ops'),
        ('timestamp_ops', 'timestamp', 'datetime_ops'),
        ('timestamptz_ops', 'timestamptz', NULL),
        ('time_ops', 'time', NULL),
        ('bool_ops', 'boolean', NULL),
        ('char_ops', '"char"', NULL),
        ('oid_ops', 'oid', NULL),
        ('enum_ops', 'anyenum', NULL)) AS v (name, type, family)
    LOOP
        IF class.family IS NULL THEN
            class.family := class.name;
            EXECUTE pg_catalog.format('CREATE OPERATOR FAMILY %I USING ivfpq', class.family);
            EXECUTE pg_catalog.format('COMMENT ON OPERATOR FAMILY %I USING ivfpq IS %L', class.family,
                'conditions on type ' || class.type);
        END IF;
        EXECUTE pg_catalog.format('CREATE OPERATOR CLASS %I DEFAULT FOR TYPE %s USING ivfpq FAMILY %I AS
            OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >',
            class.name, class.type, class.family);
        EXECUTE pg_catalog.format('COMMENT ON OPERATOR CLASS %I USING ivfpq IS %L', class.name,
            'conditions on type ' || class.type);
    END LOOP;
    -- The other way round, the attribute would have to be moved by the time zone: in a gap of summer time, that
    -- does not keep the order.
    FOR class IN SELECT a.type AS type, b.type AS other, a.family
        FROM (VALUES ('int2', 'integer_ops'), ('int4', 'integer_ops'), ('int8', 'integer_ops'),
                ('float4', 'float_ops'), ('float8', 'float_ops'), ('timestamptz', 'timestamptz_ops'),
                ('date', 'datetime_ops'), ('timestamp', 'datetime_ops')) AS a (type, family)
            JOIN (VALUES ('int2', 'integer_ops'), ('int4', 'integer_ops'), ('int8', 'integer_ops'),
                ('float4', 'float_ops'), ('float8', 'float_ops'), ('date', 'timestamptz_ops'), ('timestamp', 'timestamptz_ops'),
                ('date', 'datetime_ops'), ('timestamp', 'datetime_ops')) AS b (type, family)
            ON a.family = b.family AND a.type <> b.type
    LOOP
        SELECT pg_catalog.string_agg(pg_catalog.format('OPERATOR %s %s (%s, %s)', number, name, class.type, class.other), ', ')
            INTO operators FROM pg_catalog.unnest('{<,<=,=,>=,>}'::text[]) WITH ORDINALITY AS o (name, number);
        EXECUTE pg_catalog.format('ALTER OPERATOR FAMILY %I USING ivfpq ADD %s', class.family, operators);
    END LOOP;

    -- Values that are kept as a hash.
    FOR class IN SELECT * FROM (VALUES
        ('text_ops', 'text', 'hashtext'),
        ('bpchar_ops', 'bpchar', 'hashbpchar'),
        ('name_ops', 'name', 'hashname'),
        ('uuid_ops', 'uuid', 'uuid_hash'),
        ('numeric_ops', 'numeric', 'hash_numeric'),
        ('interval_ops', 'interval', 'interval_hash'),
        ('timetz_ops', 'timetz', 'timetz_hash'),
        ('inet_ops', 'inet', 'hashinet'),
        ('macaddr_ops', 'macaddr', 'hashmacaddr'),
        ('macaddr8_ops', 'macaddr8', 'hashmacaddr8'),
        ('jsonb_ops', 'jsonb', 'jsonb_hash'),
        ('range_ops', 'anyrange', 'hash_range')) AS v (name, type, hash)
    LOOP
        EXECUTE pg_catalog.format('CREATE OPERATOR CLASS %I DEFAULT FOR TYPE %s USING ivfpq AS
            OPERATOR 3 =, FUNCTION 2 %I (%s)', class.name, class.type, class.hash, class.type);
        EXECUTE pg_catalog.format('COMMENT ON OPERATOR CLASS %I USING ivfpq IS %L', class.name,
            'equality with values of type ' || class.type);
        EXECUTE pg_catalog.format('COMMENT ON OPERATOR FAMILY %I USING ivfpq IS %L', class.name,
            'equality with values of type ' || class.type);
    END LOOP;
END $$;

CREATE OPERATOR CLASS array_ops DEFAULT FOR TYPE anyarray USING ivfpq AS
    OPERATOR 6 && (anyarray, anyarray),
    OPERATOR 7 @> (anyarray, anyarray);
COMMENT ON OPERATOR CLASS array_ops USING ivfpq IS 'conditions on elements of arrays, && and @>';
COMMENT ON OPERATOR FAMILY array_ops USING ivfpq IS 'conditions on elements of arrays, && and @>';

-- Seeing inside an index.

CREATE FUNCTION ivfpq_info(
    index regclass,
    OUT trained boolean,
    OUT dims int,
    OUT metric text,
    OUT attributes text[],
    OUT lists int,
    OUT m int,
    OUT bits int,
    OUT quantizer text,
    OUT code_dims int,
    OUT refine text,
    OUT rows bigint,
    OUT pending_rows bigint,
    OUT pages bigint,
    OUT bytes bigint,
    OUT model_bytes bigint,
    OUT list_bytes bigint,
    OUT refinement_bytes bigint,
    OUT pending_bytes bigint,
    OUT free_bytes bigint,
    OUT empty_lists bigint,
    OUT shortest_list bigint,
    OUT median_list bigint,
    OUT longest_list bigint,
    OUT training_rows bigint,
    OUT rows_at_build bigint,
    OUT quantization_error real,
    OUT target_recall double precision,
    OUT probes int,
    OUT candidates int,
    OUT recall_by_probes json,
    OUT by_query boolean,
    OUT threshold real,
    OUT expected_recall double precision,
    OUT expected_within double precision,
    OUT curve_source text,
    OUT curve_queries int,
    OUT curve_at timestamptz,
    OUT learned_correction real,
    OUT learned_recall real,
    OUT learned_searches bigint,
    OUT learned_at timestamptz,
    OUT leaf_index regclass,
    OUT pending_reason text,
    OUT pending_since timestamptz,
    OUT parents int)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT ROWS 1;
COMMENT ON FUNCTION ivfpq_info(regclass) IS
    'what an ivfpq index is made of, and the effort of a scan with LIMIT 10';

CREATE FUNCTION ivfpq_recall_curve(
    index regclass,
    by_query boolean DEFAULT false,
    OUT k int,
    OUT probes int,
    OUT candidates int,
    OUT scanned double precision,
    OUT recall double precision,
    OUT threshold real,
    OUT queries int,
    OUT leaf_index regclass)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION ivfpq_recall_curve(regclass, boolean) IS
    'recall against effort, as measured when the index was built, or by ivfpq_learn';

CREATE FUNCTION ivfpq_learn(
    index regclass,
    query_table regclass,
    vector_column name,
    queries int DEFAULT 1000,
    OUT k int,
    OUT used int,
    OUT old_expected double precision,
    OUT old_recall double precision,
    OUT old_probes int,
    OUT old_candidates int,
    OUT new_recall double precision,
    OUT new_within double precision,
    OUT new_probes int,
    OUT new_candidates int,
    OUT leaf_index regclass)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION ivfpq_learn(regclass, regclass, name, int) IS
    'measures the recall curve of an ivfpq index with given queries, and tells what changes';

CREATE FUNCTION ivfpq_forget(index regclass) RETURNS void
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION ivfpq_forget(regclass) IS
    'forgets what audits of live searches have learned of an ivfpq index';

CREATE FUNCTION ivfpq_check(
    index regclass,
    heap_all_indexed boolean DEFAULT false,
    OUT block bigint,
    OUT problem text,
    OUT leaf_index regclass)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION ivfpq_check(regclass, boolean) IS
    'problems of an ivfpq index, none if it is sound';

CREATE FUNCTION ivfpq_recall(index regclass, samples int DEFAULT 100, k int DEFAULT 10)
    RETURNS double precision
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION ivfpq_recall(regclass, int, int) IS
    'recall of an ivfpq index now, measured against exact search with sampled rows as queries';

CREATE FUNCTION ivfpq_compare(
    "table" regclass,
    vector_column name,
    bytes int,
    sample int DEFAULT 50000,
    OUT quantizer text,
    OUT bits int,
    OUT training_seconds double precision,
    OUT rows_per_second double precision,
    OUT error double precision,
    OUT recall_at_1 double precision,
    OUT recall_at_10 double precision,
    OUT recall_at_100 double precision)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION ivfpq_compare(regclass, name, int, int) IS
    'what codes of so many bytes are worth on a sample of a column, quantizer by quantizer, by L2';

CREATE FUNCTION ivfpq_last_scan(
    OUT index regclass,
    OUT path text,
    OUT reason text,
    OUT rounds int,
    OUT probes int,
    OUT candidates bigint,
    OUT ranked_rows bigint,
    OUT lists_read int,
    OUT lists_grown int,
    OUT score double precision,
    OUT expected_recall double precision)
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION ivfpq_last_scan() IS
    'how this session''s last ivfpq scan was done: who searched the lists, and how much';

-- The service.

CREATE FUNCTION pgwarp_prewarm(index regclass) RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
COMMENT ON FUNCTION pgwarp_prewarm(regclass) IS
    'loads the lists of an ivfpq index into the service; returns how many are resident';

CREATE FUNCTION pgwarp_service(
    OUT serves boolean,
    OUT pid int,
    OUT reason text,
    OUT since timestamptz,
    OUT last_failure text,
    OUT last_failure_at timestamptz)
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION pgwarp_service() IS
    'whether the service answers searches, or why it does not, since when, and why it ended last';

CREATE FUNCTION pgwarp_devices(
    OUT device int,
    OUT name text,
    OUT memory bigint,
    OUT used bigint,
    OUT reserved bigint,
    OUT place int,
    OUT indexes bigint,
    OUT busy int,
    OUT serves boolean,
    OUT pid int,
    OUT reason text,
    OUT since timestamptz,
    OUT last_failure text,
    OUT last_failure_at timestamptz)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON FUNCTION pgwarp_devices() IS
    'devices of the service: their number (null: the host), memory, searches that they have to do, and whether they serve';

CREATE FUNCTION pgwarp_stat_indexes(
    OUT index oid,
    OUT cpu_searches bigint,
    OUT service_searches bigint,
    OUT fallbacks bigint,
    OUT candidates bigint,
    OUT ranked_rows bigint,
    OUT batches bigint,
    OUT batch_queries bigint,
    OUT reloads bigint,
    OUT appends bigint,
    OUT received_bytes bigint,
    OUT evictions bigint,
    OUT errors bigint,
    OUT lists bigint,
    OUT resident_lists bigint,
    OUT bytes bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON FUNCTION pgwarp_stat_indexes() IS
    'what the view pg_stat_pgwarp reads: counters by index, of this database';

CREATE FUNCTION pgwarp_stat_copies(
    OUT index oid,
    OUT place int,
    OUT lists bigint,
    OUT resident_lists bigint,
    OUT bytes bigint,
    OUT batches bigint,
    OUT batch_queries bigint,
    OUT own_lists bigint,
    OUT part int,
    OUT refused_bytes bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON FUNCTION pgwarp_stat_copies() IS
    'what the views pg_stat_pgwarp and pg_stat_pgwarp_devices read: what each device has of each index of this database';

CREATE FUNCTION pgwarp_stat_audits(
    OUT index oid,
    OUT audited bigint,
    OUT recall float8,
    OUT recall_low float8,
    OUT recall_high float8,
    OUT share_below_80 float8,
    OUT corrections real[],
    OUT conditions_audited bigint,
    OUT conditions_recall float8,
    OUT conditions_recall_low float8,
    OUT conditions_recall_high float8,
    OUT conditions_share_below_80 float8,
    OUT conditions_corrections real[],
    OUT audits_dropped bigint,
    OUT reason text,
    OUT rows_at_build float8,
    OUT rows float8,
    OUT file oid)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON FUNCTION pgwarp_stat_audits() IS
    'what the views pg_stat_pgwarp and ivfpq_drift read: audits by index, of this database';

CREATE VIEW pg_stat_pgwarp AS
    SELECT n.nspname AS schemaname, t.relname AS tablename, i.relname AS indexname,
        i.oid AS indexrelid, s.cpu_searches, s.service_searches, s.fallbacks, s.candidates,
        s.ranked_rows, s.batches,
        CASE WHEN s.batches > 0 THEN s.batch_queries::float8 / s.batches::float8 END AS mean_batch,
        s.lists, s.resident_lists, s.bytes, s.reloads, s.appends, s.received_bytes, s.evictions,
        s.errors, a.audited, a.recall, a.recall_low, a.recall_high, a.share_below_80, a.corrections,
        a.conditions_audited, a.conditions_recall, a.conditions_recall_low,
        a.conditions_recall_high, a.conditions_share_below_80, a.conditions_corrections,
        a.audits_dropped, r.refused_bytes
    FROM pgwarp_stat_indexes() AS s
        FULL JOIN pgwarp_stat_audits() AS a ON a.index = s.index
        LEFT JOIN (SELECT c.index, pg_catalog.max(c.refused_bytes) AS refused_bytes
            FROM pgwarp_stat_copies() AS c GROUP BY c.index) AS r ON r.index = coalesce(s.index, a.index)
        JOIN pg_class AS i ON i.oid = coalesce(s.index, a.index)
        JOIN pg_index AS x ON x.indexrelid = i.oid
        JOIN pg_class AS t ON t.oid = x.indrelid
        JOIN pg_namespace AS n ON n.oid = i.relnamespace;
COMMENT ON VIEW pg_stat_pgwarp IS 'searches of ivfpq indexes, and what the service holds of them';
GRANT SELECT ON pg_stat_pgwarp TO PUBLIC;

CREATE VIEW pg_stat_pgwarp_devices AS
    SELECT n.nspname AS schemaname, t.relname AS tablename, i.relname AS indexname,
        i.oid AS indexrelid, c.place, c.lists, c.resident_lists, c.bytes, c.batches,
        CASE WHEN c.batches > 0 THEN c.batch_queries::float8 / c.batches::float8 END AS mean_batch,
        c.own_lists, c.part, c.refused_bytes
    FROM pgwarp_stat_copies() AS c
        JOIN pg_class AS i ON i.oid = c.index
        JOIN pg_index AS x ON x.indexrelid = i.oid
        JOIN pg_class AS t ON t.oid = x.indrelid
        JOIN pg_namespace AS n ON n.oid = i.relnamespace;
COMMENT ON VIEW pg_stat_pgwarp_devices IS 'which devices of the service have lists of an ivfpq index, and how many';
GRANT SELECT ON pg_stat_pgwarp_devices TO PUBLIC;

CREATE VIEW ivfpq_drift AS
    SELECT n.nspname AS schemaname, t.relname AS tablename, i.relname AS indexname,
        i.oid AS indexrelid, a.reason, a.recall, a.recall_low, a.recall_high, a.conditions_recall,
        a.conditions_recall_low, a.conditions_recall_high, a.rows_at_build, a.rows,
        pg_catalog.format('REINDEX INDEX CONCURRENTLY %I.%I', n.nspname, i.relname) AS way_out
    FROM pgwarp_stat_audits() AS a
        JOIN pg_class AS i ON i.oid = a.index
        JOIN pg_index AS x ON x.indexrelid = i.oid
        JOIN pg_class AS t ON t.oid = x.indrelid
        JOIN pg_namespace AS n ON n.oid = i.relnamespace
    WHERE a.reason IS NOT NULL AND a.file = pg_catalog.pg_relation_filenode(i.oid);
COMMENT ON VIEW ivfpq_drift IS
    'ivfpq indexes whose searches find less than the target, and that need to be built again';
GRANT SELECT ON ivfpq_drift TO PUBLIC;

CREATE FUNCTION pg_stat_pgwarp_reset() RETURNS void
    AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON FUNCTION pg_stat_pgwarp_reset() IS
    'sets the counters of pg_stat_pgwarp to zero in this database';
REVOKE ALL ON FUNCTION pg_stat_pgwarp_reset() FROM PUBLIC;

-- Work on whole tables.

CREATE FUNCTION knn_join(
    query_table regclass,
    query_key_column name,
    query_vector_column name,
    index regclass,
    key_column name,
    k int,
    probes int DEFAULT NULL,
    condition text DEFAULT NULL,
    on_equal text[] DEFAULT NULL,
    max_distance double precision DEFAULT NULL)
    RETURNS TABLE (query_key bigint, rank int, key bigint, distance float4)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_join' LANGUAGE C STABLE ROWS 10000 COST 1000000;
COMMENT ON FUNCTION knn_join(regclass, name, name, regclass, name, int, int, text, text[],
                             double precision) IS
    'the k rows nearest to each row of another table, by an ivfpq index';
CREATE FUNCTION knn_join_text(
    query_table regclass,
    query_key_column name,
    query_vector_column name,
    index regclass,
    key_column name,
    k int,
    probes int DEFAULT NULL,
    condition text DEFAULT NULL,
    on_equal text[] DEFAULT NULL,
    max_distance double precision DEFAULT NULL)
    RETURNS TABLE (query_key text, rank int, key text, distance float4)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_join' LANGUAGE C STABLE ROWS 10000 COST 1000000;
COMMENT ON FUNCTION knn_join_text(regclass, name, name, regclass, name, int, int, text, text[],
                                  double precision) IS
    'knn_join for keys of type uuid, text or integer, which it returns as text';

CREATE FUNCTION pgwarp_checked_condition("table" regclass, condition text) RETURNS text
    AS 'MODULE_PATHNAME' LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION pgwarp_checked_condition(regclass, text) IS
    'the condition, or an error unless it is one expression over columns of the table';

-- Nearest rows of a table whose partitions are on other servers. PostgreSQL pushes LIMIT down for one
-- foreign table, not below a Merge Append: so each partition has a query of its own. The search path
-- is fixed: names in the text below must mean what they mean here.
CREATE FUNCTION knn_shards(
    parent regclass,
    key_column name,
    vector_column name,
    query text,
    k int,
    operator text DEFAULT '<->',
    condition text DEFAULT NULL)
    RETURNS TABLE (shard regclass, rank int, key bigint, distance double precision)
    LANGUAGE plpgsql STABLE ROWS 100 COST 100000 SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    vector_type oid;
    type_schema name;
    type_name text;
    operator_name text;
    checked text;
    statement text;
BEGIN
    IF parent IS NULL OR key_column IS NULL OR vector_column IS NULL OR query IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'parent, key_column, vector_column and query must not be null';
    END IF;
    IF k IS NULL OR k < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'k must be at least 1';
    END IF;
    -- Below any domains.
    WITH RECURSIVE types (oid, base) AS (
        SELECT t.oid, t.typbasetype FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
        WHERE a.attrelid = parent AND a.attname = vector_column AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT t.oid, t.typbasetype FROM types JOIN pg_type AS t ON t.oid = types.base)
    SELECT t.oid, n.nspname, format('%I.%I', n.nspname, t.typname) INTO vector_type, type_schema, type_name
    FROM types JOIN pg_type AS t ON t.oid = types.oid JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE types.base = 0;
    IF NOT FOUND THEN
        RAISE undefined_column USING MESSAGE = format('column "%s" of relation "%s" does not exist', vector_column, parent);
    END IF;
    -- The type's own operators, not those that anybody may have made for it in another schema.
    SELECT format('OPERATOR(%I.%s)', type_schema, o.oprname) INTO operator_name
    FROM pg_operator AS o JOIN pg_type AS t ON t.typnamespace = o.oprnamespace
    WHERE t.oid = vector_type AND o.oprname = operator AND o.oprleft = t.oid AND o.oprright = t.oid AND o.oprresult = 'float8'::regtype;
    IF NOT FOUND THEN
        RAISE undefined_function USING MESSAGE = format('there is no distance "%s" for type %s', operator, format_type(vector_type, NULL)),
            HINT = 'Distances are <->, <#>, <=> and <+>.';
    END IF;
    EXECUTE format('SELECT %I.pgwarp_checked_condition($1, $2)', (SELECT n.nspname FROM pg_extension AS e
        JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'pgwarp')) INTO checked USING parent, condition;
    WITH RECURSIVE members (oid) AS (
        SELECT parent::oid
        UNION ALL SELECT i.inhrelid FROM pg_inherits AS i JOIN members AS m ON i.inhparent = m.oid)
    SELECT string_agg(format('(SELECT %s::oid AS shard, %I::bigint AS key, %I %s %L::%s AS distance FROM ONLY %s AS %I %s ORDER BY %3$I %4$s %5$L::%6$s LIMIT %10$s)',
        c.oid, key_column, vector_column, operator_name, query, type_name, c.oid::regclass, p.relname, 'WHERE (' || checked || E'\n)', k), ' UNION ALL ')
    INTO statement
    FROM members AS m JOIN pg_class AS c ON c.oid = m.oid JOIN pg_class AS p ON p.oid = parent WHERE c.relkind <> 'p';
    IF statement IS NULL THEN
        RETURN;
    END IF;
    -- Materialized: a Merge Append, for the order, would ask one server after the other.
    RETURN QUERY EXECUTE format('WITH a AS MATERIALIZED (%s)
        SELECT s.shard::regclass, (row_number() OVER (ORDER BY s.distance))::int, s.key, s.distance
        FROM (SELECT * FROM a ORDER BY a.distance LIMIT %s) AS s ORDER BY s.distance', statement, k);
END
$function$;
COMMENT ON FUNCTION knn_shards(regclass, name, name, text, int, text, text) IS
    'the k rows nearest to a vector in a table whose partitions are on other servers';
CREATE FUNCTION knn_shards(
    parent regclass,
    key_column name,
    vector_column name,
    query anyelement,
    k int,
    operator text DEFAULT '<->',
    condition text DEFAULT NULL)
    RETURNS TABLE (shard regclass, rank int, key bigint, distance double precision)
    LANGUAGE plpgsql STABLE ROWS 100 COST 100000 AS $function$
DECLARE
    own_schema name := (SELECT n.nspname FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
                        WHERE e.extname OPERATOR(pg_catalog.=) 'pgwarp');
BEGIN
    RETURN QUERY EXECUTE pg_catalog.format('SELECT * FROM %I.knn_shards($1, $2, $3, $4, $5, $6, $7)', own_schema)
        USING parent, key_column, vector_column, query::pg_catalog.text, k, operator, condition;
END
$function$;
COMMENT ON FUNCTION knn_shards(regclass, name, name, anyelement, int, text, text) IS
    'the k rows nearest to a vector in a table whose partitions are on other servers';

-- Functions whose arguments or results are vectors, for each type of these.
DO $functions$
DECLARE
    types_schema name := coalesce(pgwarp_bind_types(), current_schema());
    type record;
BEGIN
    FOR type IN SELECT * FROM (VALUES ('vector', ''), ('halfvec', '_halfvec')) AS v (name, symbol)
    LOOP
        EXECUTE pg_catalog.format($sql$
            CREATE FUNCTION knn_search(
                index regclass,
                queries %1$I.%2$s[],
                k int,
                probes int DEFAULT NULL,
                condition text DEFAULT NULL)
                RETURNS TABLE (query int, rank int, ctid tid, distance float4, tableoid regclass)
                AS 'MODULE_PATHNAME', 'pgwarp_knn_search' LANGUAGE C STABLE ROWS 1000 COST 100000;
            COMMENT ON FUNCTION knn_search(regclass, %1$I.%2$s[], int, int, text) IS
                'the k rows nearest to each of many queries, by an ivfpq index';
            CREATE FUNCTION knn_search(
                index regclass,
                query_vector %1$I.%2$s,
                k int,
                probes int DEFAULT NULL,
                condition text DEFAULT NULL)
                RETURNS TABLE (query int, rank int, ctid tid, distance float4, tableoid regclass)
                AS 'MODULE_PATHNAME', 'pgwarp_knn_search_vector' LANGUAGE C STABLE ROWS 10 COST 10000;
            COMMENT ON FUNCTION knn_search(regclass, %1$I.%2$s, int, int, text) IS
                'the k rows nearest to a vector, by an ivfpq index';

            CREATE FUNCTION kmeans_assign(%1$I.%2$s, centroids %1$I.%2$s[]) RETURNS int
                AS 'MODULE_PATHNAME', 'pgwarp_kmeans_assign%3$s'
                LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 100;
            COMMENT ON FUNCTION kmeans_assign(%1$I.%2$s, %1$I.%2$s[]) IS
                'the number, from 1 on, of the centroid that is nearest to a vector';
        $sql$, types_schema, type.name, type.symbol);
    END LOOP;

    -- Centroids of kmeans() are of type vector. A literal without a type would be any of these
    -- types: PostgreSQL takes it for text, and it is what the centroids are.
    FOR type IN SELECT * FROM (VALUES (types_schema, 'halfvec', '_halfvec'),
        ('pg_catalog', 'text', '_text')) AS v (schema, name, symbol)
    LOOP
        EXECUTE pg_catalog.format($sql$
            CREATE FUNCTION kmeans_assign(%2$I.%3$s, centroids %1$I.vector[]) RETURNS int
                AS 'MODULE_PATHNAME', 'pgwarp_kmeans_assign%4$s'
                LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 100;
            COMMENT ON FUNCTION kmeans_assign(%2$I.%3$s, %1$I.vector[]) IS
                'the number, from 1 on, of the centroid that is nearest to a vector';
        $sql$, types_schema, type.schema, type.name, type.symbol);
    END LOOP;

    EXECUTE pg_catalog.format($sql$
        CREATE FUNCTION kmeans(
            "table" regclass,
            vector_column name,
            k int,
            iterations int DEFAULT 20,
            seed int DEFAULT 0)
            RETURNS TABLE (cluster int, size bigint, centroid %I.vector)
            AS 'MODULE_PATHNAME', 'pgwarp_kmeans' LANGUAGE C STABLE ROWS 100 COST 1000000
    $sql$, types_schema);
END
$functions$;
-- As for kmeans_assign: the index says of which type the vectors of a text are.
CREATE FUNCTION knn_search(
    index regclass,
    queries text,
    k int,
    probes int DEFAULT NULL,
    condition text DEFAULT NULL)
    RETURNS TABLE (query int, rank int, ctid tid, distance float4, tableoid regclass)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_search_text' LANGUAGE C STABLE ROWS 1000 COST 100000;
COMMENT ON FUNCTION knn_search(regclass, text, int, int, text) IS
    'the k rows nearest to each of many queries, given as the text of an array or of one vector, by an ivfpq index';
COMMENT ON FUNCTION kmeans(regclass, name, int, int, int) IS
    'clusters the vectors of a table: k centroids and how many vectors are nearest to each';

-- Graphs of nearest neighbors.

CREATE FUNCTION knn_graph(
    "table" regclass,
    key name,
    vector_column name,
    k int,
    method text DEFAULT 'auto',
    metric text DEFAULT 'l2',
    samples int DEFAULT NULL,
    iterations int DEFAULT NULL,
    probes int DEFAULT NULL,
    seed int DEFAULT 0)
    RETURNS TABLE (src bigint, rank int, dst bigint, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph' LANGUAGE C STABLE ROWS 1000000 COST 1000000;
COMMENT ON FUNCTION knn_graph(regclass, name, name, int, text, text, int, int, int, int) IS
    'the k nearest other rows of every row of a table';

CREATE FUNCTION knn_graph_merge(
    first_graph regclass,
    first_table regclass,
    second_graph regclass,
    second_table regclass,
    key name,
    vector_column name,
    k int DEFAULT NULL,
    metric text DEFAULT 'l2',
    samples int DEFAULT NULL,
    iterations int DEFAULT NULL,
    seed int DEFAULT 0)
    RETURNS TABLE (src bigint, rank int, dst bigint, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph_merge' LANGUAGE C STABLE ROWS 1000000 COST 1000000;
COMMENT ON FUNCTION knn_graph_merge(regclass, regclass, regclass, regclass, name, name, int, text,
                                    int, int, int) IS
    'the graph of two tables together, from the graph of each';

CREATE FUNCTION knn_graph_append(
    graph regclass,
    "table" regclass,
    key name,
    vector_column name,
    k int DEFAULT NULL,
    metric text DEFAULT 'l2',
    samples int DEFAULT NULL,
    iterations int DEFAULT NULL,
    seed int DEFAULT 0,
    OUT added bigint,
    OUT changed bigint,
    OUT removed bigint)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph_append' LANGUAGE C VOLATILE COST 1000000;
COMMENT ON FUNCTION knn_graph_append(regclass, regclass, name, name, int, text, int, int, int) IS
    'brings a graph up to date with its table; returns how many rows'' lists it wrote';

CREATE FUNCTION knn_graph_recall(
    graph regclass,
    "table" regclass,
    key name,
    vector_column name,
    samples int DEFAULT 100,
    metric text DEFAULT 'l2')
    RETURNS double precision
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph_recall' LANGUAGE C STABLE STRICT COST 1000000;
COMMENT ON FUNCTION knn_graph_recall(regclass, regclass, name, name, int, text) IS
    'recall of a graph, measured against exact search with rows drawn from its table';

CREATE FUNCTION knn_graph_create(
    graph text,
    "table" regclass,
    key name,
    vector_column name,
    k int,
    method text DEFAULT 'auto',
    metric text DEFAULT 'l2',
    samples int DEFAULT NULL,
    iterations int DEFAULT NULL,
    probes int DEFAULT NULL,
    seed int DEFAULT 0,
    compact boolean DEFAULT false,
    unlogged boolean DEFAULT false,
    auto boolean DEFAULT false,
    OUT created regclass,
    OUT edges bigint,
    OUT seconds double precision,
    OUT recall double precision)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph_create' LANGUAGE C VOLATILE COST 1000000;
COMMENT ON FUNCTION knn_graph_create(text, regclass, name, name, int, text, text, int, int, int,
                                     int, boolean, boolean, boolean) IS
    'makes a table of the graph with its primary key, and measures the graph''s recall';

CREATE FUNCTION knn_graph_keep() RETURNS trigger
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph_keep' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION knn_graph_keep() IS
    'the trigger of knn_graph_create(..., auto => true): repairs a graph where rows of its table change';

CREATE FUNCTION knn_graph_stop(graph regclass) RETURNS boolean
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph_stop' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION knn_graph_stop(regclass) IS
    'drops the triggers that keep a graph current; returns whether there were any';

CREATE FUNCTION knn_path(
    graph regclass,
    src bigint,
    dst bigint,
    directed boolean DEFAULT false)
    RETURNS TABLE (step int, node bigint, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_path' LANGUAGE C STABLE STRICT ROWS 20 COST 100000;
COMMENT ON FUNCTION knn_path(regclass, bigint, bigint, boolean) IS
    'the path between two nodes of a graph whose longest edge is shortest';

CREATE FUNCTION knn_components(graph regclass)
    RETURNS TABLE (node bigint, component bigint)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_components' LANGUAGE C STABLE STRICT ROWS 100000 COST 100000;
COMMENT ON FUNCTION knn_components(regclass) IS
    'which nodes of a graph hang together: a component is named by its smallest node';

CREATE FUNCTION similar_pairs(
    "table" regclass,
    key name,
    vector_column name,
    max_distance double precision,
    metric text DEFAULT 'l2',
    method text DEFAULT 'exact',
    recall double precision DEFAULT NULL)
    RETURNS TABLE (a bigint, b bigint, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_similar_pairs' LANGUAGE C STABLE ROWS 1000000 COST 1000000;
COMMENT ON FUNCTION similar_pairs(regclass, name, name, double precision, text, text, double precision) IS
    'all pairs of rows of a table whose distance is at most max_distance';

CREATE FUNCTION duplicate_groups(
    "table" regclass,
    key name,
    vector_column name,
    max_distance double precision,
    representative text DEFAULT 'first',
    metric text DEFAULT 'l2')
    RETURNS TABLE (group_number bigint, size bigint, representative_key bigint, row_key bigint, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_duplicate_groups' LANGUAGE C STABLE ROWS 100000 COST 1000000;
COMMENT ON FUNCTION duplicate_groups(regclass, name, name, double precision, text, text) IS
    'groups of rows that hang together by pairs whose distance is at most max_distance, and one row to stand for each';

CREATE FUNCTION embedding_layout(
    graph regclass,
    min_dist double precision DEFAULT 0.1,
    spread double precision DEFAULT 1,
    epochs int DEFAULT NULL,
    seed int DEFAULT 0)
    RETURNS TABLE (key bigint, x real, y real)
    AS 'MODULE_PATHNAME', 'pgwarp_embedding_layout' LANGUAGE C STABLE ROWS 100000 COST 1000000;
COMMENT ON FUNCTION embedding_layout(regclass, double precision, double precision, int, int) IS
    'two coordinates for each node of a graph, near each other where rows are: a map to draw (UMAP)';

-- The same for keys of type uuid and text.

CREATE FUNCTION knn_graph_text(
    "table" regclass,
    key name,
    vector_column name,
    k int,
    method text DEFAULT 'auto',
    metric text DEFAULT 'l2',
    samples int DEFAULT NULL,
    iterations int DEFAULT NULL,
    probes int DEFAULT NULL,
    seed int DEFAULT 0)
    RETURNS TABLE (src text, rank int, dst text, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph' LANGUAGE C STABLE ROWS 1000000 COST 1000000;
COMMENT ON FUNCTION knn_graph_text(regclass, name, name, int, text, text, int, int, int, int) IS
    'knn_graph for keys of type uuid, text or integer, which it returns as text';

CREATE FUNCTION knn_graph_merge_text(
    first_graph regclass,
    first_table regclass,
    second_graph regclass,
    second_table regclass,
    key name,
    vector_column name,
    k int DEFAULT NULL,
    metric text DEFAULT 'l2',
    samples int DEFAULT NULL,
    iterations int DEFAULT NULL,
    seed int DEFAULT 0)
    RETURNS TABLE (src text, rank int, dst text, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_graph_merge' LANGUAGE C STABLE ROWS 1000000 COST 1000000;
COMMENT ON FUNCTION knn_graph_merge_text(regclass, regclass, regclass, regclass, name, name, int, text,
                                         int, int, int) IS
    'knn_graph_merge for keys of type uuid, text or integer, which it returns as text';

CREATE FUNCTION knn_path(
    graph regclass,
    src text,
    dst text,
    directed boolean DEFAULT false)
    RETURNS TABLE (step int, node text, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_path' LANGUAGE C STABLE STRICT ROWS 20 COST 100000;
COMMENT ON FUNCTION knn_path(regclass, text, text, boolean) IS
    'the path between two nodes, given as text, of a graph whose longest edge is shortest';

CREATE FUNCTION similar_pairs_text(
    "table" regclass,
    key name,
    vector_column name,
    max_distance double precision,
    metric text DEFAULT 'l2',
    method text DEFAULT 'exact',
    recall double precision DEFAULT NULL)
    RETURNS TABLE (a text, b text, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_similar_pairs' LANGUAGE C STABLE ROWS 1000000 COST 1000000;
COMMENT ON FUNCTION similar_pairs_text(regclass, name, name, double precision, text, text, double precision) IS
    'similar_pairs for keys of type uuid, text or integer, which it returns as text';

CREATE FUNCTION duplicate_groups_text(
    "table" regclass,
    key name,
    vector_column name,
    max_distance double precision,
    representative text DEFAULT 'first',
    metric text DEFAULT 'l2')
    RETURNS TABLE (group_number bigint, size bigint, representative_key text, row_key text, distance real)
    AS 'MODULE_PATHNAME', 'pgwarp_duplicate_groups' LANGUAGE C STABLE ROWS 100000 COST 1000000;
COMMENT ON FUNCTION duplicate_groups_text(regclass, name, name, double precision, text, text) IS
    'duplicate_groups for keys of type uuid, text or integer, which it returns as text';

CREATE FUNCTION knn_components_text(graph regclass)
    RETURNS TABLE (node text, component text)
    AS 'MODULE_PATHNAME', 'pgwarp_knn_components' LANGUAGE C STABLE STRICT ROWS 100000 COST 100000;
COMMENT ON FUNCTION knn_components_text(regclass) IS
    'knn_components for nodes of type uuid, text or integer, which it returns as text';

-- Clusters and communities of a graph.

CREATE FUNCTION graph_hdbscan(
    graph regclass,
    min_cluster_size int DEFAULT 5,
    min_samples int DEFAULT NULL,
    selection text DEFAULT 'eom')
    RETURNS TABLE (key bigint, label int, probability real, outlier_score real)
    AS 'MODULE_PATHNAME', 'pgwarp_graph_hdbscan' LANGUAGE C STABLE ROWS 100000 COST 100000;
COMMENT ON FUNCTION graph_hdbscan(regclass, int, int, text) IS
    'clusters by density over a graph (HDBSCAN): label -1 is noise';

CREATE FUNCTION graph_communities(
    graph regclass,
    resolution float8 DEFAULT 1,
    quality text DEFAULT 'modularity',
    weights text DEFAULT 'gaussian',
    seed int DEFAULT 0,
    iterations int DEFAULT 2)
    RETURNS TABLE (key bigint, community int)
    AS 'MODULE_PATHNAME', 'pgwarp_graph_communities' LANGUAGE C STABLE ROWS 100000 COST 100000;
COMMENT ON FUNCTION graph_communities(regclass, float8, text, text, int, int) IS
    'communities of a graph, by the Leiden algorithm';

CREATE FUNCTION graph_hdbscan_text(
    graph regclass,
    min_cluster_size int DEFAULT 5,
    min_samples int DEFAULT NULL,
    selection text DEFAULT 'eom')
    RETURNS TABLE (key text, label int, probability real, outlier_score real)
    AS 'MODULE_PATHNAME', 'pgwarp_graph_hdbscan' LANGUAGE C STABLE ROWS 100000 COST 100000;
COMMENT ON FUNCTION graph_hdbscan_text(regclass, int, int, text) IS
    'graph_hdbscan for keys of type uuid, text or integer, which it returns as text';

CREATE FUNCTION graph_communities_text(
    graph regclass,
    resolution float8 DEFAULT 1,
    quality text DEFAULT 'modularity',
    weights text DEFAULT 'gaussian',
    seed int DEFAULT 0,
    iterations int DEFAULT 2)
    RETURNS TABLE (key text, community int)
    AS 'MODULE_PATHNAME', 'pgwarp_graph_communities' LANGUAGE C STABLE ROWS 100000 COST 100000;
COMMENT ON FUNCTION graph_communities_text(regclass, float8, text, text, int, int) IS
    'graph_communities for keys of type uuid, text or integer, which it returns as text';

CREATE FUNCTION embedding_layout_text(
    graph regclass,
    min_dist double precision DEFAULT 0.1,
    spread double precision DEFAULT 1,
    epochs int DEFAULT NULL,
    seed int DEFAULT 0)
    RETURNS TABLE (key text, x real, y real)
    AS 'MODULE_PATHNAME', 'pgwarp_embedding_layout' LANGUAGE C STABLE ROWS 100000 COST 1000000;
COMMENT ON FUNCTION embedding_layout_text(regclass, double precision, double precision, int, int) IS
    'embedding_layout for nodes of type uuid, text or integer, which it returns as text';

CREATE FUNCTION pgwarp_graph_progress(
    OUT pid int,
    OUT datid oid,
    OUT relid oid,
    OUT phase text,
    OUT done bigint,
    OUT total bigint,
    OUT parts_done bigint,
    OUT parts_total bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION pgwarp_graph_progress() IS
    'what the view pg_stat_progress_knn_graph reads: graphs that are being made';
CREATE VIEW pg_stat_progress_knn_graph AS
    SELECT p.pid, p.datid, d.datname, p.relid, p.phase, p.done, p.total, p.parts_done, p.parts_total
    FROM pgwarp_graph_progress() AS p LEFT JOIN pg_catalog.pg_database AS d ON d.oid = p.datid;
COMMENT ON VIEW pg_stat_progress_knn_graph IS 'graphs that are being made';
GRANT SELECT ON pg_stat_progress_knn_graph TO PUBLIC;

DROP FUNCTION pgwarp_bind_types();
