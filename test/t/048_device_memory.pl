# Memory of a device between processes: builds of all sessions have one share, which a superuser widens, and
# the service gives back what stands empty.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $host = ($ENV{PGWARP_TEST_DEVICES} // 'host') eq 'host';
my $node = new_node('memory', service => 1, conf => 'pgwarp.device_memory = ' . ($host ? '4MB' : '1GB'));
make_table($node, 't', 32, 12000);
value($node, 'CREATE ROLE plain LOGIN; GRANT SELECT ON t TO plain');

# The rows take 1.5 MB on a device.
sub clusters
{
	my ($settings) = @_;
	my ($status, $result, $complaints) =
	  $node->psql('postgres', "SET pgwarp.build_executor = auto; $settings; SELECT sum(size) FROM kmeans('t', 'v', 20, 2)");
	return ($result, $complaints);
}
sub set_share
{
	my ($share) = @_;
	value($node, "ALTER SYSTEM SET pgwarp.build_memory = '$share'");
	value($node, 'SELECT pg_reload_conf()');
	wait_until($node, "current_setting('pgwarp.build_memory') = '$share'");
	return;
}

like(error_of($node, "SET SESSION AUTHORIZATION plain; SET pgwarp.build_memory = '4GB'"),
	qr/permission denied to set parameter "pgwarp.build_memory"/, 'only a superuser widens the share');
my $gpu = "SET pgwarp.build_executor = 'gpu'";
my ($result, $complaints) = clusters($gpu);
is("$result$complaints", 12000, 'a share is there by default');
set_share('1MB');
($result, $complaints) = clusters($gpu);
like($complaints, qr/ERROR:  out of device memory: \d+ bytes wanted.*\nHINT:  Sessions share pgwarp.build_memory/,
	'an error where it must be a device');
($result, $complaints) = clusters("$gpu; SET pgwarp.build_memory = '1GB'");
is("$result$complaints", 12000, 'a superuser has more');
if ($host)
{
	# With a fault that never comes, the host stands for a device also where none is asked for.
	value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'late'");
	value($node, 'SELECT pg_reload_conf()');
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'late'");
	($result, $complaints) = clusters('SET pgwarp.debug_fault_after = 1000000');
	is($result, 12000, 'too little, and the CPU does it');
	like($complaints, qr/WARNING:  the device failed, and the CPU did the rest: out of device memory.*\nHINT:  Sessions share/,
		'with a warning');
	value($node, "ALTER SYSTEM RESET pgwarp.debug_fault");
	value($node, 'SELECT pg_reload_conf()');
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'none'");
}
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 32, m = 32)');

# What sessions keep open takes no share from others, also where they are ended.
set_share($host ? '2MB' : '600MB');
my @keepers = map { session($node) } 1 .. 3;
for my $keeper (@keepers)
{
	$keeper->query_safe("$gpu");
	is($keeper->query_safe("SELECT sum(size) FROM kmeans('t', 'v', 20, 2)"), 12000, "one that may be kept, round $_") for 1, 2;
}
my @pids = map { $_->query_safe('SELECT pg_backend_pid()') } @keepers;
start($keepers[2], "SELECT sum(size) FROM kmeans('t', 'v', 200, 100000)");
wait_until($node, "query LIKE '%100000%' FROM pg_stat_activity WHERE pid = $pids[2]");
value($node, "SELECT pg_terminate_backend($_, 10000)") for @pids;
($result, $complaints) = clusters($gpu);
is("$result$complaints", 12000, 'the share is whole again');

# The service: what a dropped index had is there for others after some seconds.
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 32, 'an index is loaded');
my ($used, $reserved) = split /\|/, value($node, 'SELECT used, reserved FROM pgwarp_devices()');
cmp_ok($used, '>=', 12000 * 44, 'its lists take memory');
cmp_ok($reserved, '>=', $used, 'of the device');
value($node, 'DROP INDEX t_v');
wait_until($node, "used < $used / 2 AND reserved <= used + memory / 16 + CASE WHEN device IS NULL THEN 0 ELSE 128000000 END
	FROM pgwarp_devices()");
ok(1, 'which it gives back when the index is dropped');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 32, m = 32)');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 32, 'and takes again');
is(value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SELECT id FROM t ORDER BY v <-> vec(7, 32) LIMIT 1;
	SELECT path FROM ivfpq_last_scan()"), "7\nservice", 'to serve');
indexes_are_sound($node);
$node->stop;
done_testing();
