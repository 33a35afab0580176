-- What is refused, by which SQLSTATE and in which words. Tools written for pgvector match on these.

-- The error a statement raises.
CREATE FUNCTION error_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    IF SQLSTATE = '42883' THEN
        detail := ''; -- what was a hint before 19
    END IF;
    RETURN SQLSTATE || ' ' || SQLERRM || CASE WHEN detail <> '' THEN ' | ' || detail ELSE '' END;
END
$$;

\pset format unaligned
\pset tuples_only on

\qecho text
SELECT format('%-16s', literal), error_of(format('SELECT %L::vector', literal))
FROM unnest(ARRAY['', ' ', '1,2', '{1,2}', '[', '[]', '[ ]', '[,1]', '[1', '[1,', '[1,]', '[1,,2]',
                  '[1 2]', '[1;2]', '[a]', '[1a]', '[1e]', '[1e+]', '[--1]', '[.]', '[0x]', '[1]]',
                  '[1] x', '[[1]]', '[1,nan]', '[NaN(7)]', '[inf]', '[-Infinity]', '[1e39]',
                  '[1, -3.5e+38 ]', '[3.4028236e38]', '[1e4000]']) WITH ORDINALITY AS l(literal, n)
ORDER BY n;
SELECT error_of(format('SELECT %L::vector', '[' || repeat('1,', 16000) || '1]'));

\qecho type modifiers
SELECT statement, error_of('SELECT ' || statement)
FROM (VALUES ($$'[1]'::vector(0)$$), ($$'[1]'::vector(-1)$$), ($$'[1]'::vector(16001)$$),
             ($$'[1]'::vector(1, 2)$$), ($$'[1]'::vector('x')$$), ($$'[1,2]'::vector(3)$$),
             ($$'[1,2]'::vector::vector(3)$$), ($$ARRAY[1,2]::vector(3)$$),
             ($$'{"[1]","[1,2]"}'::vector(1)[]$$)) AS s(statement);

\qecho casts
SELECT statement, error_of('SELECT ' || statement)
FROM (VALUES ($$'{}'::real[]::vector$$), ($$'{{1,2},{3,4}}'::real[]::vector$$),
             ($$'{1,NULL}'::int[]::vector$$), ($$'{NULL}'::numeric[]::vector$$),
             ($$'{NaN}'::real[]::vector$$), ($$'{-Infinity}'::real[]::vector$$),
             ($$'{NaN}'::float8[]::vector$$), ($$'{1e39}'::float8[]::vector$$),
             ($$'{NaN}'::numeric[]::vector$$), ($$'{1e39}'::numeric[]::vector$$),
             ($$array_fill(1, ARRAY[16001])::vector$$),
             ($$array_fill(1::numeric, ARRAY[16001])::vector$$),
             ($$ARRAY['1']::vector$$), ($$ARRAY[1]::bigint[]::vector$$)) AS s(statement);

\qecho operators and functions
SELECT statement, error_of('SELECT ' || statement)
FROM (SELECT format('%L::vector %s %L::vector', '[1,2]', op, '[1,2,3]')
      FROM unnest(ARRAY['<->', '<#>', '<=>', '<+>', '+', '-', '*']) WITH ORDINALITY AS o(op, n)
      ORDER BY n) AS s(statement);
SELECT statement, error_of('SELECT ' || statement)
FROM (VALUES ($$'[3e38]'::vector + '[3e38]'$$), ($$'[1,-3e38]'::vector - '[1,3e38]'$$),
             ($$'[1e20]'::vector * '[1e20]'$$), ($$'[1e-30]'::vector * '[1e-30]'$$),
             ($$'[0]'::vector * '[1e-30]'$$),
             ($$array_fill(1, ARRAY[16000])::vector || '[1]'$$),
             ($$vector_l2_squared_distance('[1]', '[1,2]')$$),
             ($$inner_product('[1]'::vector, '[1,2]')$$),
             ($$vector_spherical_distance('[1]'::vector, '[1,2]')$$),
             ($$subvector('[1,2]'::vector, 1, 0)$$), ($$subvector('[1,2]'::vector, 3, 1)$$),
             ($$subvector('[1,2]'::vector, -5, 6)$$),
             ($$subvector('[1,2]'::vector, -2147483648, 2147483647)$$),
             ($$subvector('[1,2]'::vector, 2147483647, 2147483647)$$),
             ($$'[1]'::vector <-> '{1}'::int[]$$)) AS s(statement);

\qecho aggregates and their parts
SELECT statement, error_of('SELECT ' || statement)
FROM (VALUES ($$avg(v) FROM (VALUES ('[1]'::vector), ('[1,2]')) AS t(v)$$),
             ($$sum(v) FROM (VALUES ('[1]'::vector), ('[1,2]')) AS t(v)$$),
             ($$sum(v) FROM (VALUES ('[3e38]'::vector), ('[3e38]')) AS t(v)$$),
             ($$vector_accum('{}', '[1]')$$), ($$vector_accum('{{1,2}}', '[1]')$$),
             ($$vector_accum('{1,NULL}', '[1]')$$), ($$vector_accum('{1,2,3}', '[1]')$$),
             ($$vector_accum('{1,Infinity}', '[1]')$$),
             ($$vector_combine('{}', '{0}')$$), ($$vector_combine('{0}', '{{1}}')$$),
             ($$vector_combine('{1,2}', '{1,2,3}')$$),
             ($$vector_combine('{1,1e308}', '{1,1e308}')$$),
             ($$vector_combine('{0}', array_fill(1::float8, ARRAY[16002]))$$),
             ($$vector_avg('{}')$$), ($$vector_avg('{3}')$$), ($$vector_avg('{1,1e300}')$$),
             ($$vector_avg('{1,NaN}')$$),
             ($$vector_avg(array_fill(1::float8, ARRAY[16002]))$$)) AS s(statement);

DROP FUNCTION error_of;
