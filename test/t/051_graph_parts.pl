# Graphs of tables that no device has room for, on several devices: parts and merges of parts run on all of
# them at once, and the graph is the one that a single device of the same memory makes, part by part, also
# where devices fail; its recall is no worse than that of a graph made whole.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $device = $ENV{PGWARP_TEST_DEVICES} // 'host';
$device = '0' if $device eq 'auto';
my $host = $device eq 'host';
# Devices of one share its memory. A part has to have more than 8,192 rows: fewer are compared with each other.
my $each = $host ? 5 : 40;
my $node = new_node('graph_parts', service => 1,
	conf => "maintenance_work_mem = 256MB\nmax_parallel_maintenance_workers = 0\npgwarp.devices = '$device'\n"
	  . "pgwarp.build_memory = $each");
my $rows = $host ? 25200 : 120000;
make_table($node, 't', 16, $rows);
value($node, "CREATE TABLE first_half AS SELECT * FROM t WHERE id <= $rows / 2;
	CREATE TABLE second_half AS SELECT * FROM t WHERE id > $rows / 2");
my $temporary = sub { return scalar(my @found = glob($node->data_dir . '/base/pgsql_tmp/*')) };
my $on = "SET pgwarp.build_executor = 'gpu'";

sub use_devices
{
	my ($count) = @_;
	$node->append_conf('postgresql.conf', "pgwarp.devices = '" . join(',', ($device) x $count)
		  . "'\npgwarp.build_memory = " . $count * $each);
	$node->restart;
	return;
}

# The edges of a graph, as one number for each column of its rows.
sub edges_of
{
	my ($graph) = @_;
	return value($node, "SELECT count(*), sum(hash_record_extended(g, 0)), sum(hash_record_extended(g, 1)) FROM $graph AS g");
}

# Edges to the true neighbors, of all edges. Rows as far as the last of these count, too.
sub recall
{
	my ($graph) = @_;
	return value($node, "SELECT round(count(*) FILTER (WHERE g.distance <= last.distance * 1.000001) / ($rows * 10.0), 5)
		FROM $graph AS g JOIN truth AS last ON last.src = g.src AND last.rank = 10");
}

my %graphs = (
	whole => "SELECT * FROM knn_graph('t', 'id', 'v', 10, 'nn_descent', seed => 7)",
	merged => "SELECT * FROM knn_graph_merge('first_graph', 'first_half', 'second_graph', 'second_half', 'id', 'v')");

# The truth, and graphs made whole: by the CPU, or by a device with enough memory where a CPU would take minutes.
my $whole_by = $host ? "SET pgwarp.build_executor = 'cpu'" : "SET pgwarp.build_executor = 'gpu'; SET pgwarp.build_memory = '4GB'";
value($node, "$whole_by;
	CREATE TABLE truth AS SELECT * FROM knn_graph('t', 'id', 'v', 10, 'exact');
	CREATE TABLE in_memory AS $graphs{whole};
	CREATE TABLE first_graph AS SELECT * FROM knn_graph('first_half', 'id', 'v', 10, 'nn_descent');
	CREATE TABLE second_graph AS SELECT * FROM knn_graph('second_half', 'id', 'v', 10, 'nn_descent');
	CREATE INDEX ON truth (src) WHERE rank = 10; ANALYZE truth");
my $in_memory = recall('in_memory');
for my $graph (sort keys %graphs)
{
	like(messages($node, "$on; CREATE TABLE ${graph}_one AS $graphs{$graph}"), qr/graph in (?:[3-9]|1\d) parts, 1 at a time/, "$graph by parts");
	cmp_ok(recall("${graph}_one"), '>=', $in_memory - 0.002, 'no worse than in memory');
}

# Grown from the graph of one half.
sub grow
{
	my ($graph) = @_;
	my $words = messages($node, "$on; CREATE TABLE $graph AS TABLE first_graph; SELECT knn_graph_append('$graph', 't', 'id', 'v')");
	return $words;
}
like(grow('grown_one'), qr/graph in (?:[3-9]|1\d) parts, 1 at a time/, 'grown by parts');

# Several at once. On hosts the graph is that of one device; of GPUs, which round otherwise, it is as good.
my $count = 3;
use_devices($count);
sub as_one_device
{
	my ($graph) = @_;
	return is(edges_of("${graph}_more"), edges_of("${graph}_one"), "$graph: the graph of one device") if $host;
	return cmp_ok(recall("${graph}_more"), '>=', recall("${graph}_one") - 0.001, "$graph: no worse than on one");
}
for my $graph (sort keys %graphs)
{
	my $words = messages($node, "$on; CREATE TABLE ${graph}_more AS $graphs{$graph}");
	like($words, qr/graph on $count x /, "$graph on $count devices");
	like($words, qr/graph in (?:[3-9]|1\d) parts, [2-$count] at a time/, 'at the same time');
	# A merge has its sets in a file.
	is($words =~ /in memory/ ? 'memory' : 'file', $graph eq 'whole' ? 'memory' : 'file', 'where there is room');
	as_one_device($graph);
	value($node, "DROP TABLE ${graph}_more");
}
like(messages($node, "$on; SET maintenance_work_mem = '25MB'; CREATE TABLE whole_more AS $graphs{whole}"), qr/graph in (?:[3-9]|1\d) parts, [2-$count] at a time\n/,
	'with less memory in files');
as_one_device('whole');
value($node, 'DROP TABLE whole_more');
like(grow('grown_more'), qr/graph in (?:[3-9]|1\d) parts, $count at a time/, "grown on $count devices");
as_one_device('grown');
cmp_ok(recall('grown_more'), '>=', $in_memory - 0.002, 'and good');

# Where memory for two parts is all there is, several lanes would make parts so small that nothing is gained.
like(messages($node, "$on; SET maintenance_work_mem = '10MB'; SELECT count(*) FROM knn_graph('t', 'id', 'v', 10, 'nn_descent')"),
	qr/graph in \d+ parts, 1 at a time/, 'memory decides how many');
# What a device has room for is made whole, by one.
unlike(messages($node, "$on; CREATE TABLE tenth AS SELECT * FROM t WHERE id <= $rows / 10;
	SELECT count(*) FROM knn_graph('tenth', 'id', 'v', 10, 'nn_descent')"), qr/at a time/, 'a small table is made whole');

# Cut short: by the session, and by an error that no device knows of while all of them work.
is($temporary->(), 0, 'no files before');
for my $timeout (200, 800)
{
	like(error_of($node, "$on; SET statement_timeout = $timeout; SELECT count(*) FROM ($graphs{whole}) AS s"),
		qr/^$|canceling statement due to statement timeout/, "after $timeout ms");
}
for my $limit ('3MB', '9MB')
{
	like(error_of($node, "$on; SET temp_file_limit = '$limit'; SELECT count(*) FROM ($graphs{merged}) AS s"),
		qr/temporary file size exceeds "?temp_file_limit/, "with temporary files of $limit");
}
is($temporary->(), 0, 'no files behind');

# Devices fail, early or late.
if ($host)
{
	# A device makes the graph of a part, then merges two.
	for my $case ([ 0, 0 ], [ 1, 1 ], [ -1, 1 ])
	{
		my ($failing, $good) = @$case;
		$node->append_conf('postgresql.conf', "pgwarp.debug_fault = failed\npgwarp.debug_fault_device = $failing");
		$node->reload;
		wait_until($node, "current_setting('pgwarp.debug_fault') = 'failed' AND current_setting('pgwarp.debug_fault_device') = '$failing'");
		my $words = messages($node, "SET pgwarp.debug_fault_after = $good; SET pgwarp.build_executor = auto; CREATE TABLE whole_more AS $graphs{whole}");
		like($words, $failing < 0 ? qr/WARNING:  .*failure on purpose/s : qr/WARNING:  a device failed, and others did its work: /,
			"device $failing after $good calls: a warning");
		as_one_device('whole');
		value($node, 'DROP TABLE whole_more');
	}
	like(error_of($node, "$on; $graphs{whole}"), qr/failure on purpose/, 'an error where the CPU must not');
}
$node->stop;
done_testing();
