-- What the planner is told about the type's functions and operators

SELECT oprname, oprleft::regtype, oprright::regtype, oprresult::regtype, oprcode,
       (SELECT c.oprname FROM pg_operator AS c WHERE c.oid = o.oprcom) AS commutator,
       (SELECT n.oprname FROM pg_operator AS n WHERE n.oid = o.oprnegate) AS negator,
       oprrest, oprjoin
FROM pg_operator AS o WHERE oprleft = 'vector'::regtype ORDER BY oprname COLLATE "C";

-- Every function behind the type, an operator, a cast or an aggregate is immutable, strict and safe
-- in parallel queries.
WITH parts AS (
    SELECT unnest(ARRAY[typinput, typoutput, typreceive, typsend, typmodin]) AS function
    FROM pg_type WHERE oid = 'vector'::regtype
    UNION SELECT oprcode FROM pg_operator WHERE oprleft = 'vector'::regtype
    UNION SELECT castfunc FROM pg_cast WHERE 'vector'::regtype IN (castsource, casttarget)
    UNION SELECT unnest(ARRAY[aggtransfn, aggfinalfn, aggcombinefn])
          FROM pg_aggregate JOIN pg_proc ON pg_proc.oid = aggfnoid
          WHERE proargtypes[0] = 'vector'::regtype AND pronargs = 1
    UNION SELECT unnest(ARRAY['vector_cmp(vector,vector)', 'vector_dims(vector)',
                              'vector_norm(vector)', 'l2_normalize(vector)', 'subvector(vector,int,int)',
                              'binary_quantize(vector)', 'inner_product(vector,vector)',
                              'vector_l2_squared_distance(vector,vector)',
                              'vector_spherical_distance(vector,vector)']::regprocedure[])
)
SELECT count(*) AS functions,
       count(*) FILTER (WHERE provolatile = 'i' AND proisstrict AND proparallel = 's') AS as_they_should
FROM parts JOIN pg_proc ON pg_proc.oid = function;
SELECT aggfnoid::regprocedure, proparallel, aggcombinefn, aggtranstype::regtype
FROM pg_aggregate JOIN pg_proc ON pg_proc.oid = aggfnoid
WHERE proargtypes[0] = 'vector'::regtype ORDER BY aggfnoid::regprocedure::text;

-- Every object of the extension has a comment, which psql shows beside it.
SELECT pg_describe_object(classid, objid, 0) AS without_comment
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
      AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')
      AND obj_description(objid, classid::regclass::name) IS NULL
      -- Later versions have members that no script declares: types of arrays and of rows of views.
      AND NOT EXISTS (SELECT FROM pg_type AS t WHERE t.oid = objid AND classid = 'pg_type'::regclass
                      AND (t.typcategory = 'A' OR t.typrelid <> 0))
ORDER BY 1;
