# knn_join, knn_search and kmeans on a device that is fed by workers: the rows that a query would
# show, no more and no less, whoever reads them, whatever else goes on, and whatever the device does.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('device_functions', service => 1,
	conf => "maintenance_work_mem = 64MB\nmin_parallel_table_scan_size = 64kB\nmax_parallel_workers = 8\n"
	  . "max_worker_processes = 16");
my $host = ($ENV{PGWARP_TEST_DEVICES} // 'host') =~ /^host/;
my $rows = 9000;
make_table($node, 't', 24, $rows);
# Versions that are dead, moved within their pages, or null; keys that are null.
value($node, <<'SQL');
ALTER TABLE t ADD COLUMN maybe int;
UPDATE t SET maybe = id;
UPDATE t SET v = NULL WHERE id % 1000 = 0;
DELETE FROM t WHERE id % 1000 = 1;
UPDATE t SET maybe = NULL WHERE id % 3 = 0;
UPDATE t SET v = vec(id::int + 100000, 24) WHERE id % 17 = 0;
CREATE INDEX t_l2 ON t USING ivfpq (v) WITH (lists = 30, m = 6);
CREATE INDEX t_ip ON t USING ivfpq (v vector_ip_ops) WITH (lists = 30, m = 6);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 30, m = 6);
CREATE TABLE q (id int, v vector(24));
INSERT INTO q SELECT i, vec(i, 24, 5) FROM generate_series(1, 300) AS i;
SQL
my $there = value($node, 'SELECT count(v) FROM t');

sub messages_and_result
{
	my ($statements) = @_;
	my ($result, $words);
	$node->psql('postgres', "SET client_min_messages = debug1;\n$statements", stdout => \$result,
		stderr => \$words, on_error_stop => 1);
	return wantarray ? ($words, $result) : $words;
}

# The nearest rows of a table, by rank and distance: found once, until its rows change and %exact is emptied.
my (%exact, $exact_tables);
sub exact_rows
{
	my ($table, $operator) = @_;
	return $exact{$table, $operator} //= do
	{
		my $name = 'exact_' . ++$exact_tables;
		value($node, "SET enable_indexscan = off; CREATE TABLE $name AS SELECT q.id AS query_key, n.* FROM q, LATERAL
			(SELECT row_number() OVER (ORDER BY d) AS rank, d FROM
				(SELECT (t.v $operator q.v)::real AS d FROM $table AS t WHERE t.v IS NOT NULL
				 ORDER BY t.v $operator q.v LIMIT 10) AS s) AS n");
		$name;
	};
}

# Rows of knn_join that are not what an exact query gives, by rank and distance; then how many there are.
sub differences
{
	my ($index, $operator, $k, $settings, $table) = @_;
	$table //= 't';
	my $exact = exact_rows($table, $operator);
	return value($node, "$settings;
		CREATE TEMP TABLE j AS SELECT * FROM knn_join('q', 'id', 'v', '$index', 'id', $k);
		SELECT (SELECT count(*) FROM (SELECT * FROM $exact WHERE rank <= $k) AS e FULL JOIN j USING (query_key, rank)
				WHERE (abs(d - distance) > 1e-5 * (1 + abs(d))) IS NOT FALSE),
			(SELECT count(*) FROM j),
			(SELECT count(*) FROM j JOIN $table AS t ON t.id = j.key JOIN q ON q.id = j.query_key
				WHERE abs((t.v $operator q.v) - distance) < 1e-5 * (1 + abs(distance))),
			(SELECT count(DISTINCT (query_key, key)) FROM j)");
}

my $on = "SET pgwarp.build_executor = 'gpu'";
for my $workers (0, 1, 4)
{
	my $with = "$on; SET max_parallel_workers_per_gather = $workers; SET max_parallel_maintenance_workers = $workers";
	for ([ 't_l2', '<->' ], [ 't_ip', '<#>' ], [ 't_cosine', '<=>' ])
	{
		my ($index, $operator) = @$_;
		is(differences($index, $operator, 10, $with), '0|3000|3000|3000', "$index, $workers workers: exact rows");
	}
	is(differences('t_l2', '<->', 1, $with), '0|300|300|300', 'k = 1');
	my ($words, $count) = messages_and_result("$with; SELECT count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 3)");
	like($words, qr/300 queries were compared with $there rows on /, 'all rows, once');
	is($count, 900, 'all rows returned');
	# Places.
	is(value($node, "$with; SELECT count(*), count(*) FILTER (WHERE abs((t.v <-> q.v) - distance) < 1e-5 * (1 + distance))
		FROM knn_search('t_l2', (SELECT array_agg(v ORDER BY id) FROM q), 5) AS s
			JOIN t ON t.ctid = s.ctid JOIN q ON q.id = s.query"), '1500|1500', 'knn_search: places');
	# Keys that are null.
	is(value($node, "$with; SELECT bool_and(j.key IS NOT DISTINCT FROM maybe), count(*) FILTER (WHERE j.key IS NULL) > 0
		FROM knn_join('q', 'id', 'v', 't_l2', 'maybe', 5) AS j JOIN knn_join('q', 'id', 'v', 't_l2', 'id', 5) AS i
			USING (query_key, rank) JOIN t ON t.id = i.key"), 't|t', 'null keys are told');
	# More than there are.
	is(value($node, "$with; SELECT count(*), count(DISTINCT key) FROM knn_search('t_l2', ARRAY[vec(1, 24)], 100) AS s,
		LATERAL (SELECT id AS key FROM t WHERE t.ctid = s.ctid) AS r"), '100|100', 'k = 100');
	# Clusters.
	value($node, "$with; CREATE TABLE clusters_$workers AS SELECT * FROM kmeans('t', 'v', 40, 5)");
	is(value($node, "SELECT sum(size), count(*) FROM clusters_$workers"), "$there|40", 'kmeans: all rows');
	is(value($node, "SELECT count(*) FROM clusters_0 JOIN clusters_$workers AS c USING (cluster, size, centroid)"),
		40, 'the same whoever reads');
}
# Halves, which travel as they are where they are not normalised.
value($node, <<'SQL');
CREATE TABLE halves AS SELECT id, v::halfvec(24) AS v FROM t;
CREATE INDEX halves_l2 ON halves USING ivfpq (v) WITH (lists = 30, m = 6);
CREATE INDEX halves_ip ON halves USING ivfpq (v halfvec_ip_ops) WITH (lists = 30, m = 6);
CREATE INDEX halves_cosine ON halves USING ivfpq (v halfvec_cosine_ops) WITH (lists = 30, m = 6);
CREATE TABLE any_halves AS SELECT id, v::halfvec AS v FROM t ORDER BY ctid;
ANALYZE halves; ANALYZE any_halves;
SQL
for my $workers (0, 4)
{
	my $with = "$on; SET max_parallel_workers_per_gather = $workers; SET max_parallel_maintenance_workers = $workers";
	for ([ 'halves_l2', '<->' ], [ 'halves_ip', '<#>' ], [ 'halves_cosine', '<=>' ])
	{
		my ($index, $operator) = @$_;
		is(differences($index, $operator, 10, $with, 'halves'), '0|3000|3000|3000', "$index, $workers workers: exact rows");
	}
	my ($words) = messages_and_result("$with; SELECT count(*) FROM knn_join('q', 'id', 'v', 'halves_l2', 'id', 3)");
	like($words, qr/300 queries were compared with $there rows on /, 'all rows, on a device');
	# Of the same rows in the same order; a column without dimensions has its first vector read ahead.
	for my $table ('halves', 'any_halves')
	{
		is(value($node, "$with; SELECT count(*), sum(size) FROM kmeans('$table', 'v', 40, 5) JOIN clusters_0 USING (cluster, size, centroid)"),
			"40|$there", "kmeans of $table, $workers workers: the same as of floats");
	}
}
value($node, "SET pgwarp.build_executor = 'cpu'; CREATE TABLE clusters_cpu AS SELECT * FROM kmeans('t', 'v', 40, 5)");
same_clusters($node, 't', 'clusters_cpu', 'clusters_0', $host);

my $four = "$on; SET max_parallel_workers_per_gather = 4; SET max_parallel_maintenance_workers = 4";

# Little memory: several batches, and more rows than this process could keep.
is(value($node, "$four; SET maintenance_work_mem = '1MB';
	SELECT count(*), count(DISTINCT (query_key, key)) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 50)"),
	'15000|15000', 'little memory: all rows');
is(value($node, "$four; SET maintenance_work_mem = '1MB'; SELECT sum(size) FROM kmeans('t', 'v', 40, 2)"), $there,
	'little memory: kmeans');

# What this transaction did, and what a snapshot must not see.
is(value($node, "BEGIN; $four; SET LOCAL enable_indexscan = off;
	DELETE FROM t WHERE id % 2 = 0; INSERT INTO t (id, v) VALUES (77777, vec(1, 24, 5));
	SELECT count(*) FILTER (WHERE key % 2 = 0), count(*) FILTER (WHERE key = 77777 AND distance = 0), count(*)
	FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10); ROLLBACK") =~ /^0\|1\|3000$/m ? 1 : 0, 1, 'own changes');
my $reader = session($node);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my $query = "SELECT md5(string_agg(j::text, ',' ORDER BY query_key, rank)) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 5) AS j";
$reader->query_safe($four);
my $first = $reader->query_safe($query);
value($node, 'UPDATE t SET v = vec(1, 24, 5) WHERE id BETWEEN 100 AND 200; DELETE FROM t WHERE id < 50');
is($reader->query_safe($query), $first, 'an old snapshot sees the old rows');
$reader->query_safe('COMMIT');
isnt($reader->query_safe($query), $first, 'a new one the new ones');
%exact = ();
is(differences('t_l2', '<->', 10, $four), '0|3000|3000|3000', 'and they are right');
is(value($node, "BEGIN ISOLATION LEVEL SERIALIZABLE; $four; SELECT count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 5); COMMIT")
	=~ /1500/ ? 1 : 0, 1, 'serializable');
$reader->quit;

# Rights, and policies of row security.
value($node, <<'SQL');
CREATE ROLE reader; CREATE ROLE partial; CREATE ROLE stranger;
GRANT SELECT ON q TO reader, partial, stranger; GRANT SELECT ON t TO reader; GRANT SELECT (id, v) ON t TO partial;
SQL
is(value($node, "SET ROLE partial; $four; SELECT count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 2)"), 600,
	'the columns suffice');
like(error_of($node, "SET ROLE partial; $four; SELECT count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'maybe', 2)"),
	qr/permission denied/, 'other columns do not');
like(error_of($node, "SET ROLE stranger; $four; SELECT count(*) FROM kmeans('t', 'v', 5)"), qr/permission denied/, 'a stranger');
value($node, 'ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY odd ON t FOR SELECT TO reader USING (id % 2 = 1)');
is(value($node, "SET ROLE reader; $four; SELECT count(*) FILTER (WHERE key % 2 = 0), count(*)
	FROM knn_join('q', 'id', 'v', 't_l2', 'id', 5)"), '0|1500', 'policies hold for knn_join');
is(value($node, "SET ROLE reader; $four; SELECT sum(size) FROM kmeans('t', 'v', 5)"),
	value($node, 'SELECT count(v) FROM t WHERE id % 2 = 1'), 'and for kmeans');
value($node, 'DROP POLICY odd ON t; ALTER TABLE t DISABLE ROW LEVEL SECURITY');

# Children belong to the table for kmeans, not to the index for knn_join; temporary tables are their session's.
value($node, 'CREATE TABLE child (extra text) INHERITS (t); INSERT INTO child (id, v)
	SELECT 50000 + i, vec(i, 24, 9) FROM generate_series(1, 2000) AS i; CREATE TABLE no_rows () INHERITS (t)');
is(value($node, "$four; SELECT sum(size) FROM kmeans('t', 'v', 20, 2)"), value($node, 'SELECT count(v) FROM t'),
	'kmeans with children');
is(value($node, "$four; SELECT count(*) FILTER (WHERE key > 50000), count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 5)"),
	'0|1500', 'the index has none');
value($node, 'DROP TABLE child, no_rows');
is(value($node, "$four; CREATE TEMP TABLE own AS SELECT id, v FROM t; ANALYZE own; SELECT sum(size) FROM kmeans('own', 'v', 20, 2)"),
	value($node, 'SELECT count(v) FROM t'), 'temporary tables');
like(error_of($node, "$four; SELECT count(*) FROM kmeans('t', 'v', 20000)"),
	qr/k cannot be greater than the number of vectors/, 'more clusters than rows');

# Dimensions that differ, met by a worker.
value($node, 'CREATE TABLE mixed AS SELECT id, v::vector AS v FROM t; INSERT INTO mixed VALUES (0, vec(1, 3)); ANALYZE mixed');
like(error_of($node, "$four; SELECT count(*) FROM kmeans('mixed', 'v', 5)"), qr/different vector dimensions 24 and 3/,
	'other dimensions');

# Vectors that a device cannot order.
value($node, "INSERT INTO t (id, v) VALUES (88888, array_fill(0, ARRAY[24])::vector)");
%exact = ();
is(differences('t_l2', '<->', 10, $four), '0|3000|3000|3000', 'a zero vector: L2');
my ($words, $count) = messages_and_result("$four; SELECT count(*) FROM knn_join('q', 'id', 'v', 't_cosine', 'id', 10)");
like($words, qr/to no avail/, 'cosine: the device leaves it to the CPU');
is($count, 3000, 'which answers');
value($node, 'DELETE FROM t WHERE id = 88888');
value($node, "INSERT INTO q VALUES (301, array_fill(3e30, ARRAY[24])::vector)");
is(value($node, "$four; SELECT count(*), count(*) FILTER (WHERE distance = 'infinity') FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10)"),
	'3010|10', 'distances beyond all numbers');
# The other way: nearer than all numbers.
value($node, "INSERT INTO t (id, v) VALUES (99999, array_fill(3e30, ARRAY[24])::vector)");
is(value($node, "$four; SELECT count(*), count(*) FILTER (WHERE distance = '-infinity') FROM knn_join('q', 'id', 'v', 't_ip', 'id', 10)"),
	'3010|1', 'products beyond all numbers');
value($node, 'DELETE FROM t WHERE id = 99999');
value($node, 'DELETE FROM q WHERE id = 301');
# The largest key is one, and no null.
value($node, 'INSERT INTO t (id, v) SELECT 9223372036854775807, v FROM q WHERE id = 7');
for my $workers (0, 4)
{
	is(value($node, "$on; SET max_parallel_workers_per_gather = $workers;
		SELECT key FROM knn_join('q', 'id', 'v', 't_l2', 'id', 1) WHERE query_key = 7"), '9223372036854775807',
		"the largest key, $workers workers");
}
value($node, 'DELETE FROM t WHERE id = 9223372036854775807');

# A device that fails.
if ($host)
{
	for my $fault ('failed', 'lost', 'out_of_memory')
	{
		$node->append_conf('postgresql.conf', "pgwarp.debug_fault = $fault");
		$node->reload;
		wait_until($node, "current_setting('pgwarp.debug_fault') = '$fault'");
		for my $good (0, 1, 2, 3)
		{
			my $with = "SET max_parallel_workers_per_gather = 2; SET max_parallel_maintenance_workers = 2;
				SET pgwarp.debug_fault_after = $good";
			my ($words, $result) = messages_and_result("$with; SELECT count(*), count(DISTINCT (query_key, key))
				FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10)");
			is($result, '3000|3000', "$fault after $good calls: all rows");
			like($words, qr/(?:the|a) device failed, and (?:the CPU did the rest|others did its work)|build on the CPU: a loss on purpose/, 'with a warning')
			  if $good < 2;
			isnt(error_of($node, "$on; $with; SELECT count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10)"), '',
				'an error where it must be a device') if $good < 2;
			($words, $result) = messages_and_result("$with; SELECT sum(size) FROM kmeans('t', 'v', 40, 5)");
			is($result, value($node, 'SELECT count(v) FROM t'), 'kmeans: all rows');
		}
	}
	$node->append_conf('postgresql.conf', 'pgwarp.debug_fault = none');
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'none'");
}

# A device that is kept serves the next call, and one after an error.
my $keeper = session($node);
$keeper->query_safe("$four");
for my $round (1 .. 3)
{
	is($keeper->query_safe("SELECT count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10)"), 3000, "kept, round $round");
	is($keeper->query_safe("SELECT count(*) FROM kmeans('t', 'v', 30, 2)"), 30, 'for other work');
	is($keeper->query_safe("SELECT count(*) FROM knn_graph('q', 'id', 'v', 5, 'exact')"), 1500, 'for graphs');
	start($keeper, "SELECT count(*) FROM kmeans('t', 'v', 20000)");
	like((finish($keeper))[1], qr/k cannot be greater/, 'until an error ends it');
}
is($keeper->query_safe('REINDEX INDEX t_l2; SELECT 1'), 1, 'and builds');
$keeper->quit;

# Cut short, and nothing is left behind.
for my $timeout (1, 5, 20, 60)
{
	my $complaints = error_of($node, "$four; SET statement_timeout = $timeout; SELECT count(*) FROM kmeans('t', 'v', 200, 50)");
	like($complaints, qr/^$|canceling statement due to statement timeout/, "kmeans, after $timeout ms");
	$complaints = error_of($node, "$four; SET statement_timeout = $timeout;
		SELECT count(*) FROM knn_join('q', 'id', 'v', 't_l2', 'id', 10)");
	like($complaints, qr/^$|canceling statement due to statement timeout/, 'knn_join likewise');
}
wait_until($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'parallel worker')");
ok(1, 'no worker is left');
# In a subtransaction that fails.
is(value($node, "$four; DO \$\$ BEGIN
		BEGIN PERFORM * FROM kmeans('mixed', 'v', 5); EXCEPTION WHEN data_exception THEN NULL; END;
		CREATE TABLE after_error AS SELECT * FROM kmeans('t', 'v', 7, 1);
	END \$\$; SELECT count(*) FROM after_error"), 7, 'a session goes on after an error');
indexes_are_sound($node);
$node->stop;
done_testing();
