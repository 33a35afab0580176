# Heavy work on several devices: builds, joins, clusterings and graphs are what one device makes of the
# same rows, however many share the work, and also where one of them fails.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

# Two devices of one: GPUs as run names them, else the host.
my $device = $ENV{PGWARP_TEST_DEVICES} // 'host';
$device = '0' if $device eq 'auto';
my $host = $device eq 'host';
my $node = new_node('several_devices', service => 1,
	conf => "maintenance_work_mem = 64MB\nmin_parallel_table_scan_size = 64kB\nmax_parallel_workers = 8\n"
	  . "max_worker_processes = 20\npgwarp.devices = '$device'");
my $rows = 9000;
make_table($node, 't', 24, $rows);
value($node, <<'SQL');
CREATE EXTENSION pageinspect;
UPDATE t SET v = NULL WHERE id % 1000 = 0;
DELETE FROM t WHERE id % 1000 = 1;
CREATE TABLE halves AS SELECT id, v::halfvec(24) AS v FROM t;
CREATE TABLE small AS SELECT * FROM t WHERE v IS NOT NULL AND id <= 3000;
CREATE TABLE q AS SELECT i AS id, vec(i, 24, 5) AS v FROM generate_series(1, 300) AS i;
ANALYZE;
SQL
my $there = value($node, 'SELECT count(v) FROM t');

sub use_devices
{
	my ($devices) = @_;
	$node->append_conf('postgresql.conf', "pgwarp.devices = '$devices'");
	$node->restart;
	return;
}

# Rows of either table that the other lacks.
sub differences
{
	my ($a, $b) = @_;
	return value($node, "SELECT (SELECT count(*) FROM (TABLE $a EXCEPT ALL TABLE $b) AS s) +
		(SELECT count(*) FROM (TABLE $b EXCEPT ALL TABLE $a) AS s)");
}

my $on = "SET pgwarp.build_executor = 'gpu'";
my %indexes = (
	plain => 't USING ivfpq (v) WITH (lists = 60, m = 6)',
	cosine => 't USING ivfpq (v vector_cosine_ops) WITH (lists = 60, m = 6)',
	halves => 'halves USING ivfpq (v) WITH (lists = 60, m = 6)',
	rotated => 't USING ivfpq (v) WITH (lists = 30, quantizer = opq, bits = 4)');
my %graphs = (
	exact => "knn_graph('small', 'id', 'v', 10, 'exact')",
	l1 => "knn_graph('small', 'id', 'v', 10, 'exact', 'l1')",
	descent => "knn_graph('small', 'id', 'v', 10, 'nn_descent')");

# Makes everything, in tables and indexes whose names end so; returns what was said.
sub make_all
{
	my ($end, $settings, $workers) = @_;
	my $with = "$settings; SET max_parallel_maintenance_workers = $workers; SET max_parallel_workers_per_gather = $workers;
		ALTER TABLE t SET (parallel_workers = $workers); ALTER TABLE halves SET (parallel_workers = $workers)";
	my %words;
	$words{$_} = messages($node, "$with; CREATE INDEX ${_}_$end ON $indexes{$_}") for sort keys %indexes;
	$words{join} = messages($node, "$with; CREATE TABLE join_$end AS SELECT * FROM knn_join('q', 'id', 'v', 'plain_$end', 'id', 10)");
	$words{kmeans} = messages($node, "$with; CREATE TABLE kmeans_$end AS SELECT cluster, size, centroid::text FROM kmeans('t', 'v', 40, 5)");
	$words{$_} = messages($node, "$with; CREATE TABLE ${_}_$end AS SELECT * FROM $graphs{$_}") for sort keys %graphs;
	return \%words;
}

sub drop_all
{
	my ($end) = @_;
	value($node, join(';', (map { "DROP INDEX ${_}_$end" } keys %indexes),
		map { "DROP TABLE ${_}_$end" } 'join', 'kmeans', keys %graphs));
	return;
}

sub are_equal
{
	my ($a, $b, $name) = @_;
	for my $index (sort keys %indexes)
	{
		# A GPU's products may round otherwise, by which rows are searched together.
		if ($host)
		{
			is(value($node, "SELECT digest('${index}_$a')"), value($node, "SELECT digest('${index}_$b')"), "$name: $index");
		}
		else
		{
			is(value($node, "SELECT rows FROM ivfpq_info('${index}_$b')"), $there, "$name: $index");
		}
	}
	is(differences("${_}_$a", "${_}_$b"), 0, "$name: $_") for 'join', sort keys %graphs;
	if ($host)
	{
		is(differences("kmeans_$a", "kmeans_$b"), 0, "$name: kmeans");
	}
	else
	{
		is(value($node, "SELECT count(*) FROM kmeans_$a AS a JOIN kmeans_$b AS b USING (cluster)
			WHERE abs(a.size - b.size) > 30"), 0, "$name: kmeans");
	}
	return;
}

my $one = make_all('one', $on, 2);
like($one->{plain}, qr/$there rows in [\d.]+ s on (?!\d+ x)/, 'one device');
for my $case ([ 2, 0 ], [ 3, 3 ])
{
	my ($count, $workers) = @$case;
	use_devices(join(',', ($device) x $count));
	my $words = make_all('more', $on, $workers);
	like($words->{$_}, qr/$there rows in [\d.]+ s on $count x /, "$_ on $count devices, $workers workers") for keys %indexes;
	like($words->{join}, qr/300 queries were compared with $there rows on $count x /, 'joined by all');
	like($words->{kmeans}, qr/kmeans of $there vectors on $count x /, 'clustered by all');
	like($words->{$_}, qr/graph on $count x /, "$_ on all") for keys %graphs;
	are_equal('one', 'more', "$count devices, $workers workers");
	indexes_are_sound($node);
	drop_all('more');
}

# Kept devices serve what comes next, also for other work.
my $keeper = session($node);
$keeper->query_safe("$on");
for my $round (1, 2)
{
	is($keeper->query_safe("SELECT count(*) FROM knn_join('q', 'id', 'v', 'plain_one', 'id', 10)"), 3000, "kept, round $round");
	is($keeper->query_safe("SELECT sum(size) FROM kmeans('t', 'v', 30, 2)"), $there, 'for clusters');
	is($keeper->query_safe("SELECT count(*) FROM (SELECT * FROM $graphs{exact} EXCEPT TABLE exact_one) AS s"), 0, 'for graphs');
}
$keeper->quit;

# Cut short.
for my $timeout (1, 20, 60)
{
	for my $work ("SELECT count(*) FROM kmeans('t', 'v', 200, 50)", "SELECT count(*) FROM $graphs{exact}",
		"SELECT count(*) FROM knn_join('q', 'id', 'v', 'plain_one', 'id', 10)", "CREATE INDEX t_cut ON $indexes{plain}")
	{
		like(error_of($node, "$on; SET statement_timeout = $timeout; $work"), qr/^$|canceling statement due to statement timeout/,
			"after $timeout ms: $work");
		value($node, 'DROP INDEX IF EXISTS t_cut');
	}
}
wait_until($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'parallel worker')");

# One of two fails, early or late: the others, or the CPU, do its work.
if ($host)
{
	use_devices('host,host');
	for my $failing (0, 1)
	{
		for my $fault ('failed', 'lost', 'out_of_memory')
		{
			$node->append_conf('postgresql.conf', "pgwarp.debug_fault = $fault\npgwarp.debug_fault_device = $failing");
			$node->reload;
			wait_until($node, "current_setting('pgwarp.debug_fault') = '$fault' AND current_setting('pgwarp.debug_fault_device') = '$failing'");
			# Early in the work of one of them, and late in that of the other.
			for my $good ($fault ne 'failed' ? 0 : $failing == 0 ? 1 : 23)
			{
				my $words = make_all('more', "SET pgwarp.debug_fault_after = $good", 2);
				are_equal('one', 'more', "$fault on $failing after $good calls");
				if ($fault eq 'lost')
				{
					# It was not there from the first.
					unlike($words->{exact}, qr/WARNING/, 'the other one does it all');
					like($words->{exact}, qr/graph on host/, 'alone');
				}
				elsif ($good <= 1)
				{
					like($words->{$_}, qr/WARNING:  a device failed, and others did its work: /, "$_: with a warning")
					  for 'plain', 'join', 'kmeans', $good == 0 ? 'exact' : ();
				}
				drop_all('more');
			}
			# The other's work, also where it must not be the CPU's.
			value($node, "$on; CREATE TABLE exact_more AS SELECT * FROM $graphs{exact};
				CREATE TABLE join_more AS SELECT * FROM knn_join('q', 'id', 'v', 'plain_one', 'id', 10)");
			is(differences("${_}_one", "${_}_more"), 0, "$fault on $failing: $_ on the other") for 'exact', 'join';
			value($node, 'DROP TABLE exact_more, join_more');
			for my $good ($fault ne 'failed' ? 0 : $failing == 0 ? (0, 9, 40) : (0, 1, 2))
			{
				my $words = messages($node, "$on; SET pgwarp.debug_fault_after = $good; SET max_parallel_maintenance_workers = 2;
					CREATE INDEX plain_more ON $indexes{plain}; CREATE INDEX rotated_more ON $indexes{rotated}");
				is(value($node, "SELECT digest('${_}_one') = digest('${_}_more')"), 't', "$fault on $failing after $good calls: index $_ on the other")
				  for 'plain', 'rotated';
				like($words, qr/WARNING:  a device failed, and others did its work: /, 'with a warning') if $fault ne 'lost';
				value($node, 'DROP INDEX plain_more, rotated_more');
			}
		}
	}
	# All of them: an error.
	$node->append_conf('postgresql.conf', "pgwarp.debug_fault = failed\npgwarp.debug_fault_device = -1");
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'failed' AND current_setting('pgwarp.debug_fault_device') = '-1'");
	for my $good (0, 9, 20)
	{
		like(error_of($node, "$on; SET pgwarp.debug_fault_after = $good; CREATE INDEX plain_more ON $indexes{plain}"), qr/failure on purpose/,
			"no device left after $good calls: no index by the CPU");
	}
	$node->append_conf('postgresql.conf', "pgwarp.debug_fault = none\npgwarp.debug_fault_device = -1");
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'none'");
}
indexes_are_sound($node);
$node->stop;
done_testing();
