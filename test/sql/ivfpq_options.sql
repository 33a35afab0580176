-- CREATE INDEX ... USING ivfpq: what it takes, and what it refuses before any work.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

-- the access method itself
SELECT amname, amhandler, amtype FROM pg_am WHERE amname = 'ivfpq';
SELECT opcname, opcdefault, opcintype::regtype, amvalidate(oid)
FROM pg_opclass WHERE opcmethod = (SELECT oid FROM pg_am WHERE amname = 'ivfpq') ORDER BY opcname;
SELECT property, pg_indexam_has_property(oid, property)
FROM pg_am, unnest(ARRAY['can_order', 'can_unique', 'can_multi_col', 'can_exclude', 'can_include'])
     AS p(property)
WHERE amname = 'ivfpq';

CREATE TABLE t (id int, v vector(3), w vector, x real[], a vector(3), f vector(8));
INSERT INTO t SELECT i, vec(i, 3), vec(i, 3), ARRAY[i], vec(i, 3), vec(i, 8)
FROM generate_series(1, 1200) AS i;

\qecho options
SELECT options, error_of('CREATE INDEX t_i ON t USING ivfpq (v) WITH (' || options || ')')
FROM unnest(ARRAY['lists = -1', 'lists = 2000000', 'lists = 1048577', 'lists = x', 'm = -1',
                  'm = 4', 'm = 9000', 'm = 17000', 'bits = 5', 'bits = 9', 'bits = -1', 'quantizer = rq',
                  'dims = 2', 'quantizer = opq, dims = 4', 'quantizer = opq, dims = -1',
                  'quantizer = opq, dims = 2, m = 3', 'fillfactor = 50', 'probes = 1'])
     WITH ORDINALITY AS o(options, n) ORDER BY n;

\qecho the same on an empty table
CREATE TABLE e (v vector(3));
SELECT error_of('CREATE INDEX ON e USING ivfpq (v) WITH (m = 4)'),
       error_of('CREATE INDEX ON e USING ivfpq (v) WITH (lists = 2000000)'),
       error_of('CREATE INDEX CONCURRENTLY ON e USING ivfpq (v)');
CREATE UNLOGGED TABLE u (v vector(3));
SELECT error_of('CREATE INDEX ON u USING ivfpq (v) WITH (m = 4)');
SELECT count(*) FROM pg_class WHERE relname LIKE '%\_v\_idx%' OR relname = 't_i';

\qecho columns
SELECT ddl, error_of('CREATE INDEX t_i ON t ' || ddl)
FROM unnest(ARRAY['USING ivfpq (w)', 'USING ivfpq (w, id)', 'USING ivfpq ((v + a), id, x)', 'USING ivfpq (x)', 'USING ivfpq ((x || x), id)', 'USING ivfpq (id)', 'USING ivfpq (v, a)',
                  'USING ivfpq (v) INCLUDE (id)', 'USING ivfpq (v DESC)',
                  'USING ivfpq (v NULLS FIRST)', 'USING ivfpq ((v + a))',
                  'USING ivfpq (v vector_ops)', 'USING ivfpq (v bit_ops)'])
     WITH ORDINALITY AS o(ddl, n) ORDER BY n;
SELECT error_of('CREATE UNIQUE INDEX ON t USING ivfpq (v)'),
       error_of('ALTER TABLE t ADD EXCLUDE USING ivfpq (v WITH <->)'),
       error_of('ALTER TABLE t ADD EXCLUDE USING ivfpq (v WITH =)');

\qecho a domain has the dimensions of its type
CREATE DOMAIN embedding AS vector(3);
CREATE DOMAIN known_embedding AS embedding NOT NULL;
CREATE DOMAIN any_embedding AS vector;
CREATE TABLE d (id int, v known_embedding, w any_embedding);
INSERT INTO d SELECT i, vec(i, 3), vec(i, 3) FROM generate_series(1, 1200) AS i;
CREATE INDEX d_v ON d USING ivfpq (v, id) WITH (lists = 4);
SELECT dims, rows, pending_rows FROM ivfpq_info('d_v');
SELECT scan, rows, same_rows, each_once FROM compare_scan('d', 'v <-> ''[1,2,3]''', 'id > 100');
SELECT * FROM ivfpq_check('d_v', true);
SELECT quantizer, bits FROM ivfpq_compare('d', 'v', 1) ORDER BY 1, 2;
SELECT error_of('INSERT INTO d VALUES (0, ''[1,2]'')'), error_of('CREATE INDEX ON d USING ivfpq (w)'),
       error_of('ALTER INDEX d_v SET (m = 4)');
DROP TABLE d;
DROP DOMAIN known_embedding, embedding, any_embedding;

\qecho a code has to fit a page
CREATE TABLE wide (v vector(9000));
SELECT error_of('CREATE INDEX ON wide USING ivfpq (v) WITH (m = 8140)'),
       error_of('CREATE INDEX ON wide USING ivfpq (v) WITH (m = 9001)');
DROP TABLE wide;

\qecho settings that make devices fail or sessions wait are for superusers
CREATE ROLE regress_ivfpq_options;
GRANT regress_ivfpq_options TO CURRENT_USER;
SET ROLE regress_ivfpq_options;
SELECT setting, error_of(format('SET pgwarp.%s = 1', setting)) FROM unnest('{debug_fault_after,debug_fault,debug_fault_device,
    debug_pause,debug_pause_after}'::text[]) AS setting;
RESET ROLE;
DROP ROLE regress_ivfpq_options;

\qecho what works
CREATE INDEX t_l2 ON t USING ivfpq (v);
CREATE INDEX t_l2_named ON t USING ivfpq (v vector_l2_ops) WITH (lists = 5, m = 3, bits = 8);
CREATE INDEX t_ip ON t USING ivfpq (v vector_ip_ops) WITH (lists = 0, m = 0);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 7, m = 2);
CREATE INDEX t_cast ON t USING ivfpq ((w::vector(3))) WITH (lists = 2);
CREATE INDEX t_one ON t USING ivfpq (f) WITH (lists = 1, m = 1);
CREATE INDEX t_most ON t USING ivfpq (f) WITH (lists = 1200, m = 8);
CREATE INDEX t_chosen ON t USING ivfpq (f) WITH (bits = 0, m = 0);
CREATE INDEX t_four ON t USING ivfpq (f) WITH (bits = 4, m = 4);
SELECT c.relname, i.trained, i.dims, i.metric, i.bits, i.rows, i.pending_rows,
       CASE WHEN reloptions::text ~ 'lists=[^0]' THEN i.lists END AS lists,
       CASE WHEN reloptions::text ~ 'm=[^0]' THEN i.m END AS m
FROM pg_class AS c, ivfpq_info(c.oid) AS i WHERE c.relname LIKE 't\_%' ORDER BY c.relname;
SELECT indexdef FROM pg_indexes WHERE tablename = 't' ORDER BY indexname;

-- what was given at first is kept until the index is built again
ALTER INDEX t_l2_named SET (lists = 9);
SELECT lists FROM ivfpq_info('t_l2_named');
REINDEX INDEX t_l2_named;
SELECT lists FROM ivfpq_info('t_l2_named');
SELECT error_of('ALTER INDEX t_l2_named SET (lists = 2000000)');
ALTER INDEX t_l2_named RESET (lists);
ALTER INDEX t_l2_named SET (m = 2);
REINDEX INDEX t_l2_named;
SELECT lists > 9, m FROM ivfpq_info('t_l2_named');
-- an m that fits the range of options but not the column
SELECT error_of('ALTER INDEX t_l2_named SET (m = 4)');
SELECT reloptions, m FROM pg_class, ivfpq_info(oid) WHERE relname = 't_l2_named';

\qecho settings
SELECT name, boot_val, min_val, max_val, enumvals, context
FROM pg_settings WHERE name LIKE 'ivfpq.%' ORDER BY name;
SELECT s, error_of('SET ivfpq.' || s)
FROM unnest(ARRAY['probes = -1', 'probes = 1048577', 'candidates = -1', 'target_recall = 1.1',
                  'target_recall = -0.1', 'iterative_scan = on', 'max_probes = -1',
                  'max_scan_tuples = -1', 'max_scan_tuples = 3000000000']) AS s;
-- Before 15, prefixes are not reserved.
SELECT error_of('SET ivfpq.nonsense = 1') = CASE WHEN current_setting('server_version_num')::int < 150000 THEN 'no error'
    ELSE '42602 invalid configuration parameter name "ivfpq.nonsense" | "ivfpq" is a reserved prefix.' END AS expected;

DROP TABLE t, e, u;
