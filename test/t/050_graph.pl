# Graphs beside other sessions: progress to watch, cancelled at once in every phase, tables that
# another session drops, memory within its bound, nothing left behind.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('graph', conf => "maintenance_work_mem = 256MB\nmax_parallel_maintenance_workers = 1");
make_table($node, 't', 128, 10000);
value($node, "INSERT INTO t SELECT x.id + 10000 * n, x.v + y.v FROM generate_series(1, 4) AS n, t AS x, t AS y
	WHERE x.id <= 10000 AND y.id = 1 + (x.id * 7 + n * 1234) % 10000");
my $watcher = session($node);
my $worker = session($node);
my $pid = $worker->query_safe('SELECT pg_backend_pid()');
my $temporary = sub { return scalar(my @found = glob($node->data_dir . '/base/pgsql_tmp/*')) };

# In every phase, in memory and by parts, of which small ones are made by all pairs.
for my $case (
	[ 'comparing all pairs', 'exact', '256MB' ],
	[ 'growing trees', 'nn_descent', '256MB' ], [ 'descending', 'nn_descent', '256MB' ],
	[ 'comparing all pairs', 'exact', '1MB' ], [ 'comparing all pairs', 'nn_descent', '1MB' ],
	[ 'descending', 'nn_descent', '32MB' ])
{
	my ($phase, $method, $memory) = @$case;
	for my $try (1 .. 5)
	{
		$worker->query_safe("SET maintenance_work_mem = '$memory'");
		start($worker, "SELECT count(*) FROM knn_graph('t', 'id', 'v', 20, '$method')");
		# Until it is there, or the statement has come to its end.
		my ($row, $began) = ('', 0);
		for (1 .. 20000)
		{
			$row = $watcher->query_safe("SELECT relid::regclass, datname, done <= total OR total = 0,
				parts_done <= parts_total FROM pg_stat_progress_knn_graph
				WHERE pid = $pid AND phase = '$phase' AND ('$memory' = '256MB' OR parts_done > 0)");
			last if $row ne '';
			my $active = $watcher->query_safe(
				"SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND state = 'active'");
			last if $began && !$active;
			$began ||= $active;
			usleep(1000);
		}
		my $complaints;
		my $time = elapsed(sub {
			value($node, "SELECT pg_cancel_backend($pid)");
			(undef, $complaints) = finish($worker);
		});
		# The phase may have been over before the test saw it.
		next if $complaints eq '' && $try < 5;
		is($row, 't|postgres|t|t', "seen: $phase, $method, $memory");
		like($complaints, qr/canceling statement due to user request/, 'cancelled');
		cmp_ok($time, '<', 5, 'at once');
		last;
	}
	is($temporary->(), 0, 'no temporary file is left');
	is(value($node, 'SELECT count(*) FROM pg_stat_progress_knn_graph'), 0, 'and no progress');
}
$worker->query_safe("RESET maintenance_work_mem");

# A graph that is being grown is whole or as it was.
value($node, "CREATE TABLE g AS SELECT * FROM knn_graph('t', 'id', 'v', 10, 'nn_descent')");
value($node, 'INSERT INTO t SELECT i, vec(i, 128) FROM generate_series(50001, 51000) AS i');
my $sum = value($node, 'SELECT count(*), sum(src), sum(dst) FROM g');
like(error_of($node, "SET statement_timeout = 300; SELECT knn_graph_append('g', 't', 'id', 'v')"),
	qr/canceling statement due to statement timeout/, 'append is cancelled');
is(value($node, 'SELECT count(*), sum(src), sum(dst) FROM g'), $sum, 'and has changed nothing');

# Two appends at a time: the second waits and finds nothing to do.
my $other = session($node);
$_->query_safe('BEGIN') for $worker, $other;
is($worker->query_safe("SELECT added FROM knn_graph_append('g', 't', 'id', 'v')"), '1000', 'append');
start($other, "SELECT added, removed FROM knn_graph_append('g', 't', 'id', 'v')");
wait_until($node, "count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'g'::regclass");
$worker->query_safe('COMMIT');
is((finish($other))[0], '0|0', 'the second append sees what the first did');
$other->query_safe('COMMIT');
is(value($node, 'SELECT count(*), count(DISTINCT src) FROM g'), '510000|51000', 'each row has its list');
is(value($node, 'SELECT count(*) FROM (SELECT FROM g GROUP BY src, rank HAVING count(*) > 1) AS s'), 0,
	'once');

# With edges in a file, and rows: the same answers, and nothing is left of what is cancelled.
my $parts = 'SELECT count(*), count(DISTINCT component), sum(node * component) FROM knn_components(\'g\')';
my $path = 'SELECT count(*), sum(node), sum(distance) FROM knn_path(\'g\', 17, 40001)';
is(value($node, "SET maintenance_work_mem = '4MB'; $_"), value($node, "SET maintenance_work_mem = '256MB'; $_"),
	"in 4 MB and 256 MB: $_")
  for $parts, $path;
my $before = value($node, 'SELECT count(*), sum(src), sum(dst) FROM g');
value($node, 'DELETE FROM t WHERE id % 1000 = 500');
for my $call ($parts, $path, "SELECT knn_graph_append('g', 't', 'id', 'v')",
	"SELECT count(*) FROM knn_graph_merge('g', 't', 'g', 't', 'id', 'v')")
{
	like(error_of($node, "SET maintenance_work_mem = '4MB'; SET statement_timeout = 120; $call"),
		qr/canceling statement due to statement timeout/, "cancelled: $call");
	is($temporary->(), 0, 'no temporary file is left');
}
is(value($node, 'SELECT count(*), sum(src), sum(dst) FROM g'), $before, 'and the graph is as it was');

# Who wants to drop the table waits for the graph.
value($node, 'DELETE FROM t WHERE id > 30000');
start($worker, "SELECT count(*) FROM knn_graph('t', 'id', 'v', 10, 'exact')");
wait_until($node, "count(*) = 1 FROM pg_stat_progress_knn_graph WHERE phase = 'comparing all pairs'");
start($other, 'DROP TABLE t');
wait_until($node, "count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass");
my ($count, $complaints) = finish($worker);
is($count, '299700', 'the graph is whole');
is((finish($other))[1], '', 'then the table is dropped');
like(error_of($node, "SELECT count(*) FROM knn_graph('t', 'id', 'v', 10)"),
	qr/relation "t" does not exist/, 'and the next graph says so');

# Memory: vectors of 28 MB, in parts, with room for some thousand of them.
SKIP:
{
	skip 'no /proc', 3 unless -r "/proc/$pid/status";
	value($node, 'CREATE TABLE m (id int, v vector(512))');
	value($node, 'ALTER TABLE m ALTER v SET STORAGE plain');
	value($node, "INSERT INTO m SELECT i, (SELECT array_agg(sin(i % 3000 * d) + cos(i * d) / 2)
		FROM generate_series(1, 512) AS d)::vector FROM generate_series(1, 14000) AS i");
	my $peak = sub {
		my $fresh = session($node);
		my $backend = $fresh->query_safe('SELECT pg_backend_pid()');
		$fresh->query_safe("SET maintenance_work_mem = '$_[0]'; SET work_mem = '1MB'");
		$fresh->query_safe("CREATE TABLE $_[1] AS SELECT * FROM knn_graph('m', 'id', 'v', 10, 'nn_descent')");
		my ($kb) = slurp_file("/proc/$backend/status") =~ /VmHWM:\s*(\d+)/;
		# Shared buffers that were touched count as its own.
		my ($shared) = slurp_file("/proc/$backend/status") =~ /RssShmem:\s*(\d+)/;
		$fresh->quit;
		return ($kb - $shared) / 1024;
	};
	my $small = $peak->('16MB', 'small');
	my $large = $peak->('256MB', 'large');
	note("peak memory: $small MB with 16 MB, $large MB with 256 MB");
	cmp_ok($small, '<', 16 + 60, 'memory keeps to its bound, and a little');
	cmp_ok($large, '>', $small + 15, 'more is used where it may');
	my ($parts, $whole) = split /\|/, value($node, "SELECT knn_graph_recall('small', 'm', 'id', 'v', 300),
		knn_graph_recall('large', 'm', 'id', 'v', 300)");
	note("recall: $parts by parts, $whole in memory");
	cmp_ok($parts, '>=', $whole - 0.01, 'and parts are as good as the whole');
	is($temporary->(), 0, 'no temporary file is left');
}

$_->quit for $worker, $other, $watcher;
$node->stop;
done_testing();
