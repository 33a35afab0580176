# LATERAL joins with the nearest rows that a device finds: the rows that scans would find, of the same snapshot, whatever
# became of them in the table, and whatever the device does.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('device_joins', service => 1,
	conf => "min_parallel_table_scan_size = 64kB\nmax_parallel_workers = 8\nmax_worker_processes = 16\nmax_parallel_workers_per_gather = 0");
my ($rows, $queries) = (6000, 4000);
value($node, "CREATE TABLE t (id int, v vector(12), note int DEFAULT 0, kind int) WITH (fillfactor = 60)");
value($node, <<"SQL");
INSERT INTO t SELECT i, vec(i, 12, $seed), 0, i % 5 FROM generate_series(1, $rows) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 30, m = 6);
CREATE TABLE q AS SELECT i AS id, vec(i, 12, $seed + 1) AS v, i % 3 AS kind FROM generate_series(1, $queries) AS i;
INSERT INTO q VALUES (-1, NULL, 0), (-2, NULL, 1);
-- versions that lie in HOT chains, of which some were pruned; dead ones, nulls
UPDATE t SET note = note + 1 WHERE id % 3 = 0;
VACUUM t;
UPDATE t SET note = note + 1 WHERE id % 3 = 0 OR id % 7 = 0;
DELETE FROM t WHERE id % 50 = 1;
UPDATE t SET v = NULL WHERE id % 50 = 2;
UPDATE t SET v = vec(id + 100000, 12, $seed) WHERE id % 50 = 3;
ANALYZE t; ANALYZE q;
SQL
value($node, 'SELECT flush_statistics()');
cmp_ok(value($node, "SELECT pg_stat_get_tuples_hot_updated('t'::regclass)"), '>', 0, 'there are HOT chains');

my $gpu = "SET pgwarp.build_executor = gpu; SET enable_seqscan = off; SET ivfpq.executor = cpu";
my $plain = 'SELECT q.id AS q, s.id, s.note, s.d FROM q CROSS JOIN LATERAL (SELECT id, note, t.v <-> q.v AS d FROM t ORDER BY t.v <-> q.v LIMIT 5) AS s';

# Of one query in twenty: how many have other distances than an exact search, in order; rows that are not the table's. Then
# how many rows all queries have.
sub differences
{
	my ($settings, $statement, %options) = @_;
	my $table = $options{table} // 't';
	my $operator = $options{operator} // '<->';
	my $condition = $options{condition} // 'true';
	my $k = $options{k} // 5;
	return value($node, <<"SQL");
BEGIN;
CREATE TEMP TABLE found ON COMMIT DROP AS SELECT NULL::int AS q, NULL::int AS id, NULL::int AS note, NULL::float8 AS d, NULL::bigint AS n LIMIT 0;
SAVEPOINT before;
$settings;
INSERT INTO found SELECT f.*, row_number() OVER () FROM ($statement) AS f;
ANALYZE found;
SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = on;
CREATE TEMP TABLE exact ON COMMIT DROP AS SELECT q.id AS q, array_agg(s.d ORDER BY s.d) AS d FROM q, LATERAL
	(SELECT t.v $operator q.v AS d FROM $table AS t WHERE t.v IS NOT NULL AND $condition ORDER BY 1 LIMIT $k) AS s WHERE q.id % 20 = 0 GROUP BY 1;
SELECT (SELECT count(*) FROM exact FULL JOIN (SELECT q, array_agg(d ORDER BY n) AS d FROM found WHERE q % 20 = 0 GROUP BY 1) AS f USING (q)
		WHERE exact.d IS DISTINCT FROM f.d),
	(SELECT count(*) FROM found WHERE q % 20 = 0) - (SELECT count(*) FROM found AS f JOIN $table AS t ON t.id = f.id AND t.note = f.note
		JOIN q ON q.id = f.q WHERE f.q % 20 = 0 AND t.v $operator q.v = f.d),
	(SELECT count(*) FROM found WHERE q > 0), (SELECT count(DISTINCT (q, id)) FROM found WHERE q > 0);
COMMIT;
SQL
}
sub explained
{
	my ($settings, $statement) = @_;
	my $text = value($node, "$settings; EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) $statement");
	return join(' ', map { $text =~ /$_: (\S+)/ ? $1 : '-' } 'Executor', 'Batches', 'Queries', 'Single Scans');
}
my $all = 5 * $queries;
like(explained($gpu, $plain), qr/^device \d $queries 2$/, 'the plan has a device search for all queries');
is(differences($gpu, $plain), "0|0|$all|$all", 'the exact rows, in order');
# Versions in HOT chains are visited by the roots of these: no query is short of rows, and searched for by itself. Queries
# that are null are.
my $counted = "SELECT flush_statistics(); SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 't_v'";
my $scans = (split /\n/, value($node, $counted))[-1];
value($node, "$gpu; SELECT count(*) FROM ($plain) AS s; SELECT flush_statistics()");
is((split /\n/, value($node, $counted))[-1] - $scans, $queries + 2, 'no query is searched for again');
is(explained("$gpu; SET pgwarp.build_executor = cpu", $plain) =~ /^cpu/ ? 1 : 0, 1, 'not where sessions want no device');
is(explained("$gpu; SET ivfpq.probes = 3", $plain) =~ /^device/ ? 1 : 0, 0, 'nor with probes of their own');
# From 18 on, plain index scans name their executor, too.
like(explained("$gpu; SET ivfpq.enable_batched_join = off", $plain), qr/^(-|cpu) - - -$/, 'nor without batches');
like(explained("$gpu", "$plain WHERE q.id <= 40"), qr/^(?!device)/, 'nor for few queries');
# Little memory: several searches of the device, and of each several batches.
like(explained("$gpu; SET work_mem = '64kB'", $plain), qr/^device [2-9]\d* $queries 2$/, 'little memory: several batches');
is(differences("$gpu; SET LOCAL work_mem = '64kB'", $plain), "0|0|$all|$all", 'little memory: the exact rows');
# One row, many, more than there are; a LEFT JOIN.
is(differences($gpu, $plain =~ s/LIMIT 5/LIMIT 1/r, k => 1), "0|0|$queries|$queries", 'one row each');
is(differences($gpu, $plain =~ s/LIMIT 5/LIMIT 40/r, k => 40), "0|0|${\(40 * $queries)}|${\(40 * $queries)}", 'forty rows each');
is(differences($gpu, $plain =~ s/CROSS JOIN/LEFT JOIN/r . ' ON true'), "0|0|$all|$all", 'a LEFT JOIN');
is(value($node, "$gpu; SELECT count(*), count(s.id) FROM (${\($plain =~ s/CROSS JOIN/LEFT JOIN/r)} ON true) AS s WHERE q < 0"), '10|10', 'queries that are null have rows');

# What this transaction did, and what a snapshot does not see.
my $reader = session($node);
$reader->query_safe("$gpu; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
my $sum = "SELECT md5(string_agg(s::text, ',' ORDER BY q, d, id)) FROM ($plain) AS s";
my $first = $reader->query_safe($sum);
value($node, 'UPDATE t SET note = note + 1 WHERE id % 4 = 0; DELETE FROM t WHERE id % 9 = 5; UPDATE t SET v = vec(id + 5, 12) WHERE id % 11 = 0');
is($reader->query_safe($sum), $first, 'an old snapshot has the old rows');
value($node, 'VACUUM (INDEX_CLEANUP ON) t');
is($reader->query_safe($sum), $first, 'after VACUUM, too');
$reader->query_safe('COMMIT');
isnt($reader->query_safe($sum), $first, 'a new one has the new rows');
$reader->quit;
is(differences($gpu, $plain), "0|0|$all|$all", 'and they are exact');
is(differences("$gpu; DELETE FROM t WHERE id % 2 = 0; UPDATE t SET note = note + 1 WHERE id % 5 = 1", $plain), "0|0|$all|$all", 'own changes');

# Partial indexes, expressions and conditions have fewer rows than the table: no device.
value($node, 'CREATE TABLE p AS SELECT * FROM t; CREATE INDEX p_v ON p USING ivfpq (v) WITH (lists = 10, m = 6) WHERE kind = 1; ANALYZE p');
(my $partial = $plain) =~ s/FROM t ORDER BY/FROM p AS t WHERE t.kind = 1 ORDER BY/;
is(explained($gpu, $partial) =~ /^device/ ? 1 : 0, 0, 'a partial index: no device');
is(differences("$gpu; SET LOCAL ivfpq.target_recall = 1", $partial, table => 'p', condition => 't.kind = 1'), "0|0|$all|$all", 'a partial index: its rows');
(my $condition = $plain) =~ s/FROM t ORDER BY/FROM t WHERE t.kind <> q.kind ORDER BY/;
is(explained($gpu, $condition) =~ /^device/ ? 1 : 0, 0, 'a condition: no device');

# Partitions, one of them empty, one with its columns in another order: all are read, and what is found is merged.
value($node, <<"SQL");
CREATE TABLE parts (id int, v vector(12), note int, kind int) PARTITION BY LIST (kind);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0);
CREATE TABLE parts_some (kind int, gone int, note int, v vector(12), id int);
ALTER TABLE parts_some DROP COLUMN gone;
ALTER TABLE parts ATTACH PARTITION parts_some FOR VALUES IN (1, 2, 3);
CREATE TABLE parts_4 PARTITION OF parts FOR VALUES IN (4);
CREATE TABLE parts_none PARTITION OF parts DEFAULT;
INSERT INTO parts (id, v, note, kind) SELECT id, v, note, kind FROM t;
CREATE INDEX parts_v ON parts USING ivfpq (v) WITH (lists = 10, m = 6);
UPDATE parts SET note = note + 1 WHERE id % 3 = 0;
DELETE FROM parts WHERE id % 50 = 7;
ANALYZE parts;
SQL
(my $partitioned = $plain) =~ s/FROM t ORDER BY/FROM parts AS t ORDER BY/;
like(explained($gpu, $partitioned), qr/^device \d $queries 2$/, 'partitions: the plan has a device search for all queries');
is(differences($gpu, $partitioned, table => 'parts'), "0|0|$all|$all", 'partitions: the exact rows, in order');
is(differences($gpu, $partitioned =~ s/LIMIT 5/LIMIT 40/r, table => 'parts', k => 40), "0|0|${\(40 * $queries)}|${\(40 * $queries)}", 'partitions: forty rows each');
is(differences("$gpu; SET LOCAL work_mem = '64kB'", $partitioned, table => 'parts'), "0|0|$all|$all", 'partitions: little memory');
(my $some = $partitioned) =~ s/ORDER BY/WHERE t.kind IN (1, 2, 3, 4) ORDER BY/;
is(explained($gpu, $some) =~ /^device/ ? 1 : 0, 0, 'partitions with a condition: no device');
is(differences("$gpu; SET LOCAL ivfpq.target_recall = 1", $some, table => 'parts', condition => 't.kind IN (1, 2, 3, 4)'), "0|0|$all|$all", 'partitions with a condition: its rows');
(my $union = $plain) =~ s/FROM t ORDER BY/FROM (SELECT * FROM parts_0 UNION ALL SELECT id, v, note, kind FROM parts_some) AS t ORDER BY/;
like(explained($gpu, $union), qr/^device \d $queries 2$/, 'UNION ALL: a device');
is(differences($gpu, $union, table => 'parts', condition => 't.kind < 4'), "0|0|$all|$all", 'UNION ALL: the rows of these tables');
# Tables that are compared with queries of their own: no device merges what is nearest to one of them.
my $two = 'SELECT q.id AS query, s.d FROM q CROSS JOIN LATERAL (SELECT * FROM (SELECT id, v <-> q.v AS d FROM parts_0
	UNION ALL SELECT id, v <-> (q.v + q.v) AS d FROM parts_some) AS u ORDER BY d LIMIT 5) AS s';
cmp_ok(value($node, "BEGIN; $gpu; CREATE TEMP TABLE found AS $two;
	SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on; CREATE TEMP TABLE exact AS $two;
	SELECT count(*) FROM (SELECT query, d::real FROM found INTERSECT ALL SELECT query, d::real FROM exact) AS same; ROLLBACK"),
	'>=', 0.97 * $all, 'UNION ALL of tables with queries of their own: the nearest of each');
# knn_search has a row's table and place.
$node->psql('postgres', "SET client_min_messages = debug1; SET pgwarp.build_executor = gpu; SELECT count(*) FROM knn_search('parts_v', (SELECT array_agg(v) FROM q WHERE id BETWEEN 1 AND 100), 5)",
	stderr => \my $told);
is(() = $told =~ /100 queries were compared with/g, 4, 'knn_search of partitions: a device reads all four');
is(value($node, <<"SQL"), '0|500', 'knn_search of partitions: the rows of all of them, by tableoid and ctid');
SET max_parallel_workers_per_gather = 2; SET pgwarp.build_executor = gpu; SET ivfpq.executor = cpu;
CREATE TEMP TABLE named AS SELECT s.query, s.rank, s.distance, t.id, t.v
	FROM knn_search('parts_v', (SELECT array_agg(v ORDER BY id) FROM q WHERE id BETWEEN 1 AND 100), 5) AS s
	LEFT JOIN parts AS t ON t.tableoid = s.tableoid AND t.ctid = s.ctid;
SELECT count(*) FILTER (WHERE n.id IS NULL OR (n.v <-> q.v)::real <> n.distance OR e.d::real <> n.distance), count(*)
FROM named AS n JOIN q ON q.id = n.query, LATERAL (SELECT t.v <-> q.v AS d FROM (SELECT v FROM parts OFFSET 0) AS t
	WHERE t.v IS NOT NULL ORDER BY 1 OFFSET n.rank - 1 LIMIT 1) AS e;
SQL

# Rights are those of the plan: a view's owner may read what its user may not, with policies for the user alone.
value($node, <<"SQL");
CREATE ROLE viewer; GRANT SELECT ON q TO viewer; CREATE VIEW joined AS $plain; GRANT SELECT ON joined TO viewer;
ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY none ON t FOR SELECT TO viewer USING (false);
SQL
is(value($node, "$gpu; SET ROLE viewer; SELECT count(*) FROM joined WHERE q > 0"), $all, 'a view: all rows that its owner sees');
like(error_of($node, "$gpu; SET ROLE viewer; SELECT count(*) FROM ($plain) AS s"), qr/permission denied for table t/, 'the table itself: no rights');
value($node, 'GRANT SELECT ON t TO viewer');
is(value($node, "$gpu; SET ROLE viewer; SELECT count(*) FROM ($plain) AS s"), 0, 'policies hold');
value($node, 'DROP POLICY none ON t; CREATE POLICY odd ON t FOR SELECT TO viewer USING (kind = 1)');
is(value($node, "$gpu; SET ROLE viewer; SET ivfpq.target_recall = 1; SELECT count(*), bool_and(t.kind = 1) FROM ($plain) AS s JOIN t USING (id) WHERE q > 0"), "$all|t",
	'rows of a policy only');
value($node, 'DROP POLICY odd ON t; ALTER TABLE t DISABLE ROW LEVEL SECURITY');

# Vectors that a device cannot order, and one that is cancelled.
value($node, 'CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 30, m = 6)');
(my $cosine = $plain) =~ s/<->/<=>/g;
is(differences($gpu, $cosine, operator => '<=>'), "0|0|$all|$all", 'cosine');
value($node, "INSERT INTO t VALUES (99999, array_fill(0, ARRAY[12])::vector, 0, 0)");
my ($result, $words);
$node->psql('postgres', "SET client_min_messages = debug1; $gpu; SELECT count(*), count(DISTINCT (q, id)) FROM ($cosine) AS s WHERE q > 0", stdout => \$result, stderr => \$words);
like($words, qr/to no avail/, 'a vector without a direction: the device leaves it');
is($result, "$all|$all", 'to the lists');
value($node, 'DELETE FROM t WHERE id = 99999');
# A device that fails, here or there: the lists have the rows.
if (($ENV{PGWARP_TEST_DEVICES} // 'host') eq 'host')
{
	for my $fault ('failed', 'lost', 'out_of_memory')
	{
		$node->append_conf('postgresql.conf', "pgwarp.debug_fault = $fault");
		$node->reload;
		wait_until($node, "current_setting('pgwarp.debug_fault') = '$fault'");
		for my $good (0, 2)
		{
			$node->psql('postgres', "$gpu; SET pgwarp.build_executor = auto; SET pgwarp.debug_fault_after = $good;
				SELECT count(*), count(DISTINCT (q, id)) FROM ($plain) AS s WHERE q > 0", stdout => \$result, stderr => \$words);
			is($result, "$all|$all", "$fault after $good calls: all rows");
			# One that cannot be opened is none.
			like($words, qr/WARNING/, "$fault after $good calls: a warning") if $fault ne 'lost' || $good > 0;
		}
	}
	$node->append_conf('postgresql.conf', 'pgwarp.debug_fault = none');
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'none'");
}
is(value($node, "$gpu; BEGIN; DECLARE c CURSOR FOR $plain; FETCH 7 FROM c; MOVE 100 IN c; FETCH 1 FROM c; COMMIT") =~ tr/\n//, 7, 'a cursor');
is(value($node, "$gpu; BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM ($plain) AS s WHERE q > 0; COMMIT"), $all, 'serializable');
indexes_are_sound($node);
$node->stop;
done_testing();
