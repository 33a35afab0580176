# Shared memory of the service is for searches under way, not for connections; more searches than there
# is room for get right answers, and room that a search has taken comes back, however it ends.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $size = "SELECT coalesce(sum(allocated_size), 0) FROM pg_shmem_allocations WHERE name = 'pgwarp'";
my $node = new_node('memory', service => 1, conf => 'max_connections = 1000');
my $bytes = value($node, $size);
cmp_ok($bytes, '<', 60_000_000, "a thousand connections: $bytes bytes");
$node->append_conf('postgresql.conf', "max_connections = 2000");
$node->restart;
cmp_ok(value($node, $size) - $bytes, '<', 500_000, 'a thousand more take hardly any');
my $devices = value($node, 'SHOW pgwarp.devices');
$node->append_conf('postgresql.conf', "max_connections = 50\npgwarp.devices = 'none'");
$node->restart;
is(value($node, $size), 0, 'none where there is no service');
SKIP:
{
	my $libraries = value($node, "SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'");
	skip 'pgwarp was built with CUDA', 1 if -e "$libraries/pgwarp_cuda.so";
	$node->append_conf('postgresql.conf', "pgwarp.devices = 'auto'");
	$node->restart;
	cmp_ok(value($node, $size), '<', 1_000_000, 'little where no device can be');
}

# Room for two searches.
$node->append_conf('postgresql.conf', "pgwarp.devices = '$devices'\npgwarp.max_searches = 2");
$node->restart;
make_table($node, 't', 8, 3000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 8)');
wait_until($node, 'serves FROM pgwarp_service()');
value($node, "SELECT pgwarp_prewarm('t_v')");
my $settings = "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SET pgwarp.service_timeout = '20s'";
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/many.sql", "\\set n random(1, 3000)
$settings;
SELECT 1 / (id = :n)::int FROM t ORDER BY v <-> vec(:n, 8) LIMIT 1;\n");
my $said = '';
my $went_well = IPC::Run::run([ 'pgbench', '--no-vacuum', '--client=20', '--jobs=2', '--transactions=40',
	"--file=$folder/many.sql", '--port=' . $node->port, '--host=' . $node->host, 'postgres' ], '>&', \$said);
ok($went_well, 'twenty clients have right answers') or diag($said);
is(value($node, 'SELECT service_searches + cpu_searches, service_searches > 50 FROM pg_stat_pgwarp'), '800|t',
	'many of them by the service');

sub fault { return set_fault($node, @_); }
my @sessions = map { session($node) } 1 .. 4;
$_->query($settings) for @sessions;
sub nearest
{
	my ($session, $n) = @_;
	start($session, "SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1");
	return;
}
sub searching
{
	my ($n) = @_;
	wait_until($node, "count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%vec($n, 8)%' AND pid <> pg_backend_pid()
		AND wait_event_type = 'Extension'");
	return;
}
# Both blocks are the service's for a second: who comes then has the pages.
sub both_blocks
{
	my ($name) = @_;
	nearest($sessions[$_], 10 + $_) for 0, 1;
	searching(10 + $_) for 0, 1;
	is($sessions[2]->query('SELECT id FROM t ORDER BY v <-> vec(12, 8) LIMIT 1') .
		$sessions[2]->query('SELECT path FROM ivfpq_last_scan()'), '12cpu', "$name: a third search, from the pages");
	for (0, 1)
	{
		my ($result, $complaints) = finish($sessions[$_]);
		is("$result$complaints" . $sessions[$_]->query('SELECT path FROM ivfpq_last_scan()'), 10 + $_ . 'service',
			"$name: the first two, by the service");
	}
	return;
}
fault('slow');
both_blocks('at first');

# Cancelled and ended while they run; the worker gives the blocks back.
nearest($sessions[0], 20);
searching(20);
nearest($sessions[3], 21);
searching(21);
value($node, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%vec(20, 8)%' AND pid <> pg_backend_pid()");
value($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%vec(21, 8)%' AND pid <> pg_backend_pid()");
like((finish($sessions[0]))[1], qr/canceling statement due to user request/, 'cancelled');
usleep(2_500_000);
both_blocks('after a cancel and an end');

# And when the worker ends in the middle of it.
nearest($sessions[$_], 30 + $_) for 0, 1;
searching(30 + $_) for 0, 1;
my $worker = value($node, 'SELECT pid FROM pgwarp_service()');
kill('TERM', $worker);
is((finish($sessions[$_]))[0], 30 + $_, 'the worker ends: a right answer') for 0, 1;
wait_until($node, "serves AND pid <> $worker FROM pgwarp_service()");
value($node, "SELECT pgwarp_prewarm('t_v')");
both_blocks('with another worker');
$_->quit for @sessions[0 .. 2];

# Two indexes with models of megabytes that a new worker does not know, and forty sessions that search both: the worker takes
# each model in once.
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'none'");
$node->append_conf('postgresql.conf', "max_connections = 60\npgwarp.max_searches = 64");
make_table($node, 'wide', 1000, 1200);
value($node, 'CREATE INDEX wide_v ON wide USING ivfpq (v) WITH (lists = 600, m = 250)');
value($node, 'CREATE TABLE broad AS SELECT * FROM wide; CREATE INDEX broad_v ON broad USING ivfpq (v) WITH (lists = 600, m = 250)');
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
sub megabytes_of_worker
{
	my ($kilobytes) = slurp_file('/proc/' . value($node, 'SELECT pid FROM pgwarp_service()') . '/status') =~ /VmHWM:\s+(\d+) kB/;
	return int($kilobytes / 1024);
}
my $before = megabytes_of_worker();
my $both = "$settings; SELECT 1 / (id = 7)::int FROM wide ORDER BY v <-> vec(7, 1000) LIMIT 1;
SELECT 1 / (id = 8)::int FROM broad ORDER BY v <-> vec(8, 1000) LIMIT 1;\n";
append_to_file("$folder/both.sql", $both);
ok(IPC::Run::run([ 'pgbench', '--no-vacuum', '--client=40', '--jobs=2', '--transactions=3', "--file=$folder/both.sql",
	'--port=' . $node->port, '--host=' . $node->host, 'postgres' ], '>&', \$said), 'forty clients have right answers') or diag($said);
my $more = megabytes_of_worker() - $before;
cmp_ok($more, '<', 60, "the worker takes $more MB more than before, for two models of three");
is(value($node, "SELECT count(*) FROM pg_stat_pgwarp WHERE tablename IN ('wide', 'broad') AND lists = 600"), 2, 'and knows both');

# A model that is larger than the device is refused once, and evicts nothing.
$node->append_conf('postgresql.conf', 'pgwarp.device_memory = 3MB');
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 8, 'small: an index is resident');
my $patient = session($node);
$patient->query($settings);
my $log_from = -s $node->logfile;
soon('7 the device has no room for the model of the index', 'small: a search says why it read the pages', sub
{
	return $patient->query('SELECT id FROM wide ORDER BY v <-> vec(7, 1000) LIMIT 1') . ' ' .
		$patient->query('SELECT reason FROM ivfpq_last_scan()');
});
is($patient->query("SELECT id FROM wide ORDER BY v <-> vec($_, 1000) LIMIT 1"), $_, 'small: a right answer') for 1 .. 5;
$patient->query("SET ivfpq.executor = 'service'");
is($patient->query('SELECT id FROM wide ORDER BY v <-> vec(9, 1000) LIMIT 1'), 9, 'small: for who insists, too');
is(value($node, "SELECT indexname, refused_bytes, resident_lists, evictions FROM pg_stat_pgwarp
	WHERE indexname IN ('t_v', 'wide_v') ORDER BY 1"), "t_v||8|0\nwide_v|3424000|0|0", 'small: as pg_stat_pgwarp says');
is(value($node, 'SELECT indexname, resident_lists, refused_bytes FROM pg_stat_pgwarp_devices ORDER BY 1'),
	"t_v|8|\nwide_v|0|3424000", 'small: and pg_stat_pgwarp_devices');
like(error_of($node, "SELECT pgwarp_prewarm('wide_v')"),
	qr/did not take in index "wide_v": the device has no room for the model of the index/, 'small: and pgwarp_prewarm()');
my @refusals = slurp_file($node->logfile, $log_from) =~ /(no room for the model of index \d+ of database \d+|could not take in)/g;
is(scalar(@refusals), 1, 'small: the log says so once');
$patient->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
