# Graphs on a device: the same as the CPU's (where the host stands for a device to the bit), in memory
# and part by part; a device that fails in the middle, or is not there, costs nothing but time; a
# cancelled graph leaves nothing behind.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('graph_device', service => 1,
	conf => "maintenance_work_mem = 256MB\nmax_parallel_maintenance_workers = 1");
my $host = ($ENV{PGWARP_TEST_DEVICES} // 'host') =~ /^host/;
make_table($node, 't', 24, 6000);
value($node, 'CREATE TABLE first_half AS SELECT * FROM t WHERE id <= 3000;
	CREATE TABLE second_half AS SELECT * FROM t WHERE id > 3000');
my $temporary = sub { return scalar(my @found = glob($node->data_dir . '/base/pgsql_tmp/*')) };

# Every row has its ten, none twice, in their order, with the distances of the vectors.
sub is_sound
{
	my ($graph, $name, $metric, $rows) = @_;
	$metric //= 'l2';
	my $operator = { l2 => '<->', cosine => '<=>', inner_product => '<#>', l1 => '<+>' }->{$metric};
	is(value($node, "SELECT count(*), count(DISTINCT src), count(DISTINCT src * 100000 + dst), count(DISTINCT src * 100 + rank),
			count(*) FILTER (WHERE src = dst), count(*) FILTER (WHERE rank NOT BETWEEN 1 AND 10) FROM $graph"),
		join('|', $rows * 10, $rows, $rows * 10, $rows * 10, 0, 0), "$name: whole");
	is(value($node, "SELECT count(*) FROM (SELECT distance < lag(distance) OVER (PARTITION BY src ORDER BY rank)
			AS worse FROM $graph) AS s WHERE worse"), 0, 'in order');
	is(value($node, "SELECT count(*) FROM $graph AS g JOIN t AS a ON a.id = src JOIN t AS b ON b.id = dst
			WHERE abs((a.v $operator b.v) - distance) > 1e-5 * (1 + abs(distance))"), 0, 'with true distances');
	cmp_ok(value($node, "SELECT knn_graph_recall('$graph', 't', 'id', 'v', 200, '$metric')"), '>=', 0.97, 'and good');
}

sub same_edges
{
	my ($a, $b) = @_;
	return value($node, "SELECT count(*) FROM (TABLE $a EXCEPT TABLE $b) AS s");
}

for my $metric ('l2', 'inner_product', 'cosine', 'l1')
{
	# Neighbors by products are the longest rows, which a descent does not find.
	for my $method ($metric eq 'inner_product' ? ('exact') : ('exact', 'nn_descent'))
	{
		my $graph = "AS SELECT * FROM knn_graph('t', 'id', 'v', 10, '$method', '$metric')";
		like(messages($node, "SET pgwarp.build_executor = 'cpu'; CREATE TABLE g_cpu $graph"), qr/graph on cpu/,
			"$method, $metric: on the CPU");
		like(messages($node, "SET pgwarp.build_executor = 'gpu'; CREATE TABLE g_gpu $graph"), qr/graph on (?!cpu)/,
			'on a device');
		is_sound('g_gpu', "$method, $metric", $metric, 6000);
		is(same_edges('g_gpu', 'g_cpu'), 0, 'the same as on the CPU') if $host;
		value($node, 'DROP TABLE g_cpu, g_gpu');
	}
}

# Merged, and grown.
for my $executor ('cpu', 'gpu')
{
	value($node, "SET pgwarp.build_executor = '$executor';
		CREATE TABLE a_$executor AS SELECT * FROM knn_graph('first_half', 'id', 'v', 10, 'nn_descent');
		CREATE TABLE b_$executor AS SELECT * FROM knn_graph('second_half', 'id', 'v', 10, 'nn_descent');
		CREATE TABLE m_$executor AS SELECT * FROM knn_graph_merge('a_$executor', 'first_half', 'b_$executor',
			'second_half', 'id', 'v')");
	is(value($node, "SET pgwarp.build_executor = '$executor';
		SELECT added FROM knn_graph_append('a_$executor', 't', 'id', 'v')"), 3000, "$executor: append");
	is_sound("m_$executor", "$executor: merged", 'l2', 6000);
	is_sound("a_$executor", "$executor: grown", 'l2', 6000);
}
if ($host)
{
	is(same_edges('m_gpu', 'm_cpu'), 0, 'merged as on the CPU');
	is(same_edges('a_gpu', 'a_cpu'), 0, 'grown as on the CPU');
}

# Distances that differ by rounding, as those of another machine do, are no reason to write lists again.
value($node, 'UPDATE a_cpu SET distance = (distance::float8 * 1.0000002)::real');
is(value($node, "SELECT added, changed, removed FROM knn_graph_append('a_cpu', 't', 'id', 'v')"), '0|0|0',
	'nothing has changed');
value($node, 'UPDATE a_cpu SET distance = (distance::float8 * 1.0001)::real WHERE src <= 100');
is(value($node, "SELECT added, removed FROM knn_graph_append('a_cpu', 't', 'id', 'v')"), '0|0', 'no row has');
is_sound('a_cpu', 'mended', 'l2', 6000);
is(value($node, "SELECT added, changed, removed FROM knn_graph_append('a_cpu', 't', 'id', 'v')"), '0|0|0',
	'now nothing');

# Beyond maintenance_work_mem.
value($node, "SET pgwarp.build_executor = 'gpu'; SET maintenance_work_mem = '1MB';
	CREATE TABLE g_parts AS SELECT * FROM knn_graph('t', 'id', 'v', 10, 'nn_descent')");
is_sound('g_parts', 'by parts', 'l2', 6000);
is($temporary->(), 0, 'no temporary file is left');

# A device that fails: at once, and after some parts are done.
if ($host)
{
	my $graph = "AS SELECT * FROM knn_graph('t', 'id', 'v', 10, 'nn_descent')";
	like(messages($node, "SET pgwarp.build_executor = 'cpu'; CREATE TABLE g_cpu $graph"), qr/descending \d/, 'in memory');
	unlike(messages($node, "SET pgwarp.build_executor = 'cpu'; SET maintenance_work_mem = '1MB';
		CREATE TABLE g_cpu_parts $graph"), qr/descending \d/, 'part by part');
	for my $fault ('failed', 'lost', 'out_of_memory', 'late')
	{
		$node->append_conf('postgresql.conf', "pgwarp.debug_fault = $fault");
		$node->reload;
		wait_until($node, "current_setting('pgwarp.debug_fault') = '$fault'");
		my $warning = qr/WARNING:  (?:the|a) device failed, and (?:the CPU did the rest|others did its work): /;
		my $none = $fault eq 'lost' ? qr/graph on the CPU: a loss on purpose/ : $warning;
		isnt(error_of($node, "SET pgwarp.build_executor = 'gpu'; CREATE TABLE g_none $graph"), '',
			"$fault: an error with gpu");
		is($temporary->(), 0, 'that leaves nothing behind');
		like(messages($node, "CREATE TABLE g_whole $graph"), $none, 'with auto the CPU goes on');
		is(same_edges('g_whole', 'g_cpu'), 0, 'to the same graph');
		for my $good ($fault eq 'failed' ? (1, 7) : $fault eq 'lost' ? 7 : 1)
		{
			like(messages($node, "SET maintenance_work_mem = '1MB'; SET pgwarp.debug_fault_after = $good;
				CREATE TABLE g_after $graph"), $warning, "after $good calls too");
			is(same_edges('g_after', 'g_cpu_parts'), 0, 'to the same graph');
			value($node, 'DROP TABLE g_after');
		}
		like(messages($node, "CREATE TABLE g_merged AS SELECT * FROM knn_graph_merge('a_cpu', 't', 'b_cpu', 'second_half',
			'id', 'v')"), qr/is in both tables/, 'a mistake is one all the same');
		value($node, "CREATE TABLE half_graph AS SELECT * FROM a_cpu WHERE src <= 3000 AND dst <= 3000");
		like(messages($node, "SELECT knn_graph_append('half_graph', 't', 'id', 'v')"), $none, 'append goes on');
		is_sound('half_graph', "$fault: grown", 'l2', 6000);
		value($node, 'DROP TABLE g_whole, half_graph');
	}
	$node->append_conf('postgresql.conf', 'pgwarp.debug_fault = none');
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'none'");
}

# Cut short.
for my $timeout (1, 60, 400)
{
	for my $method ('exact', 'nn_descent')
	{
		my $complaints = error_of($node, "SET pgwarp.build_executor = 'gpu'; SET statement_timeout = $timeout;
			CREATE TABLE g_cut AS SELECT * FROM knn_graph('t', 'id', 'v', 10, '$method')");
		my $there = value($node, "SELECT count(*) FROM pg_class WHERE relname = 'g_cut'");
		is("$there " . ($complaints ne '' ? 'cancelled' : 'built'),
			$complaints ne '' ? '0 cancelled' : '1 built', "$method: after $timeout ms");
		like($complaints, qr/^$|canceling statement due to statement timeout/, 'as any statement');
		value($node, 'DROP TABLE IF EXISTS g_cut');
	}
}
is(value($node, 'SELECT count(*) FROM pg_stat_progress_knn_graph'), 0, 'no progress is left');

# Beyond the device's memory: part by part, though the server's own would do.
$node->append_conf('postgresql.conf', 'pgwarp.build_memory = ' . ($host ? 1 : 12));
$node->restart;
my $words = messages($node, "SET pgwarp.build_executor = 'gpu';
	CREATE TABLE g_small AS SELECT * FROM knn_graph('t', 'id', 'v', 10, 'nn_descent')");
like($words, qr/graph on (?!cpu)/, 'on a device with little memory');
is_sound('g_small', 'by parts', 'l2', 6000);
value($node, "SET pgwarp.build_executor = 'gpu';
	CREATE TABLE g_small_exact AS SELECT * FROM knn_graph('t', 'id', 'v', 10, 'exact')");
is_sound('g_small_exact', 'exact by parts', 'l2', 6000);
is($temporary->(), 0, 'no temporary file is left');

# No device at all.
$node->append_conf('postgresql.conf', "pgwarp.devices = 'none'");
$node->restart;
like(error_of($node, "SET pgwarp.build_executor = 'gpu'; SELECT count(*) FROM knn_graph('t', 'id', 'v', 10)"),
	qr/pgwarp.build_executor is gpu, but there is no device: pgwarp.devices is none/, 'no device');
like(messages($node, "SELECT count(*) FROM knn_graph('t', 'id', 'v', 10)"), qr/graph on cpu/, 'with auto it is the CPU');
$node->stop;
done_testing();
