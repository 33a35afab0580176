# Several devices, and the memory of the service: who takes an index in, what pg_stat_pgwarp says of one
# that had to give way, and what becomes of lists that were sent by half.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $device = $ENV{PGWARP_TEST_DEVICES} // 'host';
# One GPU counts twice where it is named twice.
$device = '0' if $device eq 'auto';
my $host = $device eq 'host';
# Of a megabyte of the host, three quarters are for lists.
my $node = new_node('devices', service => 1, conf => "pgwarp.devices = '$device,$device'\nlog_min_messages = debug1\n"
	. 'pgwarp.device_memory = ' . ($host ? '1MB' : '200MB'));
wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
ok(1, 'two devices');

make_table($node, 't', 32, 4000);
my $index = 'USING ivfpq (v) WITH (lists = 16, m = 32)';
value($node, "CREATE INDEX t_1 ON t $index");
make_table($node, 'u', 32, 4000);
value($node, "CREATE INDEX u_1 ON u $index");

sub nearest
{
	my ($table, $n) = @_;
	return value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SET pgwarp.service_timeout = 10000;
		SELECT id FROM $table ORDER BY v <-> vec($n, 32) LIMIT 1; SELECT path FROM ivfpq_last_scan()");
}
# The device that has an index, and its worker.
sub place_of { return value($node, "SELECT place FROM pg_stat_pgwarp_devices WHERE indexname = '$_[0]'"); }
sub worker { return value($node, "SELECT pid FROM pgwarp_devices() WHERE place = $_[0]"); }
sub logged
{
	my ($words, $from) = @_;
	for (1 .. 100)
	{
		return 1 if slurp_file($node->logfile, $from) =~ $words;
		usleep(100_000);
	}
	return 0;
}

# The first scan of an index brings its model and none of its lists.
is(nearest('t', 7), "7\ncpu", 'the model of one index');
is(nearest('u', 8), "8\ncpu", 'the model of another');
is(value($node, "SELECT pgwarp_prewarm('t_1'), pgwarp_prewarm('u_1')"), '16|16', 'lists of both');
is(value($node, 'SELECT count(*) FILTER (WHERE used >= 4000 * 44) FROM pgwarp_devices()'), 2,
	'each device has taken in one of them');
is(nearest('t', 7), "7\nservice", 'one serves');
is(nearest('u', 8), "8\nservice", 'and so does the other');
is(value($node, 'SELECT string_agg(indexname, \' \' ORDER BY indexname), count(DISTINCT place), sum(resident_lists), min(batches) > 0
	FROM pg_stat_pgwarp_devices'), 't_1 u_1|2|32|t', 'pg_stat_pgwarp_devices tells where they are');
is(value($node, 'SELECT count(DISTINCT pid), sum(indexes), sum(busy), bool_and(reason IS NULL AND last_failure IS NULL)
	FROM pgwarp_devices()'), '2|2|0|t', 'each with a worker of its own');

# Indexes that give way, in part or as a whole, have as many bytes as they say.
if ($host)
{
	value($node, "CREATE INDEX t_$_ ON t $index") for 2 .. 9;
	value($node, "SELECT pgwarp_prewarm('t_$_')") for 2 .. 9;
	my $kept = value($node, 'SELECT sum(bytes) FROM pg_stat_pgwarp');
	cmp_ok($kept, '<=', 2 * 786432, 'bytes that are kept');
	cmp_ok($kept, '>', 1_000_000, 'with most of the room in use');
	is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp WHERE resident_lists + evictions < lists'), 0,
		'lists that are not resident were given up');
	value($node, "DROP INDEX t_$_") for 2 .. 9;
	is(value($node, "SELECT pgwarp_prewarm('t_1'), pgwarp_prewarm('u_1')"), '16|16', 'both again');
}

# Where the host has no memory for a search, the device is not to blame.
my $before = worker(place_of('t_1'));
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'no_host_memory'");
my $from = -s $node->logfile;
value($node, 'SELECT pg_reload_conf()');
ok(logged(qr/pgwarp.debug_fault is now no_host_memory/, $from), 'no memory from now on');
my $session = session($node);
$session->query('SET enable_seqscan = off');
my $right = grep { $session->query("SELECT id FROM t ORDER BY v <-> vec($_, 32) LIMIT 1") == $_ } 1 .. 40;
is($right, 40, 'right answers');
$session->quit;
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'none'");
$from = -s $node->logfile;
value($node, 'SELECT pg_reload_conf()');
ok(logged(qr/pgwarp.debug_fault is now none/, $from), 'until now');
is(worker(place_of('t_1')), $before, 'the worker is the same');
is(nearest('t', 7), "7\nservice", 'and serves');

# One list of four load buffers. While the worker is stopped, three sessions take four of the sixteen buffers
# each, one takes one for another index, and a fifth is left with three.
value($node, 'CREATE TABLE long (LIKE t); INSERT INTO long SELECT id, v FROM t, generate_series(1, 20)');
value($node, 'CREATE INDEX long_v ON long USING ivfpq (v) WITH (lists = 1, m = 32, placement = single)');
value($node, "SELECT pgwarp_prewarm('long_v')");
my $place = place_of('long_v');
my ($beside) = grep { place_of($_) eq $place } 't_1', 'u_1';
$before = worker($place);
my @sessions = map { session($node) } 1 .. 5;
my $pid = $sessions[4]->query('SELECT pg_backend_pid()');
kill('STOP', $before);
for my $i (0 .. 4)
{
	start($sessions[$i], 'SELECT pgwarp_prewarm(\'' . ($i == 3 ? $beside : 'long_v') . '\')');
	usleep(300_000);
}
value($node, "SELECT pg_terminate_backend($pid)");
wait_until($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)");
$from = -s $node->logfile;
kill('CONT', $before);
finish($_) for @sessions[0 .. 3];
ok(logged(qr/pgwarp service drops what was sent by half: [3-9]\d{6} bytes/, $from),
	'half a list goes with the session that sent it');
is(worker($place), $before, 'the worker is still the same');
$_->quit for @sessions[0 .. 3];

# All devices are silent: a search asks one after the other.
value($node, "ALTER INDEX t_1 SET (placement = replicate); SELECT pgwarp_prewarm('t_1')");
my @workers = split /\n/, value($node, 'SELECT pid FROM pgwarp_devices() ORDER BY place');
kill('STOP', @workers);
my $asker = session($node);
$asker->query('SET enable_seqscan = off; SET pgwarp.service_timeout = 3000');
is($asker->query("SELECT id FROM t ORDER BY v <-> vec(7, 32) LIMIT 1"), 7, 'silent: the pages are read');
is(value($node, 'SELECT count(*), bool_or(serves) FROM pgwarp_devices()'), scalar(@workers) . '|f', 'all are silent');
start($asker, "SET ivfpq.executor = 'service'; SELECT id FROM t ORDER BY v <-> vec(7, 32) LIMIT 1");
like((finish($asker))[1], qr/ERROR:  the pgwarp service is not available: the service was silent for too long/,
	'silent: an error for who insists');
kill('CONT', @workers);
is($asker->query('SELECT id FROM t ORDER BY v <-> vec(8, 32) LIMIT 1') . $asker->query('SELECT path FROM ivfpq_last_scan()'),
	'8service', 'silent no longer: and an answer');
$asker->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
