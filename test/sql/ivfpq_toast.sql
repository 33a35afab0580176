-- Vectors too long for their rows are read from where their pieces lay last. Pieces move: what a
-- scan ranks by is compared with the table itself, in the session that has the old places in mind.
\set ECHO none
\set abs_srcdir `echo "$PG_ABS_SRCDIR"`
\set include :abs_srcdir '/include/ivfpq.sql'
\i :include
\pset format unaligned
\pset tuples_only on
\set ECHO all

SET client_min_messages = warning;
SET ivfpq.probes = 32768;
SET ivfpq.candidates = 100000;

CREATE TABLE long (id int PRIMARY KEY, v vector(600), longer vector(3000))
    WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
INSERT INTO long SELECT i, vec(i, 600), vec(i, 3000) FROM generate_series(1, 1200) AS i;
CREATE INDEX long_v ON long USING ivfpq (v) WITH (lists = 8, m = 20);
CREATE INDEX long_longer ON long USING ivfpq (longer) WITH (lists = 8, m = 20, bits = 4);
CREATE FUNCTION compare_both() RETURNS SETOF record LANGUAGE sql AS $$
    SELECT compare_scan('long', format('v <-> %L', vec(7, 600)))
    UNION ALL SELECT compare_scan('long', format('longer <-> %L', vec(7, 3000)))
$$;
-- Longer than a page, and shorter.
SELECT pg_relation_size(reltoastrelid) / 1200 / 1024 AS kilobytes_a_row FROM pg_class
WHERE relname = 'long';
SELECT compare_both();
SELECT compare_both();
\qecho the distance in ORDER BY is computed with the vector that the scan has read: 250 rows are returned
CREATE FUNCTION look_ups(queries int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    of_toast oid := (SELECT indexrelid FROM pg_index, pg_class WHERE relname = 'long' AND indrelid = reltoastrelid);
    before bigint := pg_stat_get_xact_numscans(of_toast);
BEGIN
    FOR i IN 1..queries LOOP
        PERFORM id FROM long ORDER BY v <-> vec(-i, 600) LIMIT 5;
    END LOOP;
    RETURN pg_stat_get_xact_numscans(of_toast) - before;
END $$;
SET enable_seqscan = off;
SELECT look_ups(50) > 0;
SELECT look_ups(50) < 50;
RESET enable_seqscan;
DROP FUNCTION look_ups;
\qecho other values where pieces of old ones were
DELETE FROM long WHERE id % 3 = 1;
VACUUM long;
SELECT compare_both();
INSERT INTO long SELECT i, vec(i, 600), vec(i, 3000) FROM generate_series(1201, 1500) AS i;
SELECT compare_both();
UPDATE long SET v = vec(id + 5000, 600) WHERE id % 5 = 0;
SELECT compare_both();
SELECT compare_both();
\qecho the same values in another file
VACUUM FULL long;
SELECT compare_both();
SELECT compare_both();
\qecho a shorter file than before
DELETE FROM long WHERE id > 20;
VACUUM long;
SELECT compare_both();
TRUNCATE long;
INSERT INTO long SELECT i, vec(i + 9000, 600), vec(i + 9000, 3000) FROM generate_series(1, 40) AS i;
SELECT compare_both();
SELECT compare_both();
SELECT * FROM ivfpq_check('long_v', true);
SELECT * FROM ivfpq_check('long_longer', true);
DROP TABLE long;
DROP FUNCTION compare_both;
