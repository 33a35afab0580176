# Whatever happens to the service, queries get right answers, in time, from the pages if need be.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $node = new_node('faults', service => 1, conf => "max_connections = 60\nrestart_after_crash = on\npgwarp.watchdog_timeout = 0");
make_table($node, 't', 8, 4000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 16)');

my $settings = 'SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SET pgwarp.service_timeout = 10000;';
sub nearest
{
	my ($n, $more) = @_;
	$more //= '';
	return value($node, "$settings $more SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1;
		SELECT path FROM ivfpq_last_scan()");
}
sub serves { return wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()'); }
sub loaded { serves(); return value($node, "SELECT pgwarp_prewarm('t_v')"); }
sub worker { return value($node, 'SELECT pid FROM pgwarp_service()'); }
sub fault { return set_fault($node, @_); }

is(loaded(), 16, 'all lists are resident');
is(nearest(7), "7\nservice", 'from the service');

# Devices that fail.
for my $name ('failed', 'out_of_memory', 'unknown')
{
	fault($name);
	is(nearest(7), "7\ncpu", "$name: from the pages");
	is(value($node, "$settings SET ivfpq.executor = 'service'; SELECT id FROM t ORDER BY v <-> vec(8, 8) LIMIT 1"), 8,
		"$name: also for who insists");
	fault('none');
	serves();
	loaded();
	is(nearest(7), "7\nservice", "$name: over");
}
cmp_ok(value($node, 'SELECT errors FROM pg_stat_pgwarp'), '>', 0, 'errors are counted');
cmp_ok(value($node, 'SELECT fallbacks FROM pg_stat_pgwarp'), '>', 0, 'so are those who read pages instead');
fault('out_of_memory');
value($node, 'REINDEX INDEX t_v');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 0, 'no room for any list');
is(value($node, "$settings SELECT id FROM t ORDER BY v <-> vec(8, 8) LIMIT 1"), 8, 'a right answer');
fault('none');
loaded();

# A device that is lost: the worker ends, and another begins.
my $before = worker();
fault('lost');
is(nearest(7) =~ s/\n.*//sr, '7', 'lost: a right answer');
wait_until($node, "coalesce(pid, 0) <> $before FROM pgwarp_service()");
fault('none');
loaded();
is(nearest(7), "7\nservice", 'lost: a new worker serves');
like(slurp_file($node->logfile), qr/pgwarp service ends: a loss on purpose/, 'the log says why');

# A failure that is neither the device's nor memory's counts as well: after some in a row the worker
# ends, and the log does not fill.
$before = worker();
my $log_before = -s $node->logfile;
fault('unknown');
my $session = session($node);
$session->query($settings);
for my $n (1 .. 40)
{
	is($session->query("SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1"), $n, 'unknown: a right answer') if $n % 10 == 0;
	$session->query("SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1");
}
$session->quit;
wait_until($node, "coalesce(pid, 0) <> $before FROM pgwarp_service()");
fault('none');
my $log = slurp_file($node->logfile, $log_before);
like($log, qr/pgwarp service ends: unknown exception/, 'unknown: the worker gives up');
my $lines = () = $log =~ /could not finish a batch/g;
cmp_ok($lines, '<=', 2, 'unknown: the log says so once in a while');
is(value($node, 'SELECT last_failure FROM pgwarp_service()'), 'unknown exception', 'unknown: so does pgwarp_service()');
loaded();

# A worker that hangs: the first search waits for the timeout, the next ones do not wait.
fault('hung');
my $seconds = elapsed(sub { is(nearest(7, 'SET pgwarp.service_timeout = 500;'), "7\ncpu", 'hung: from the pages'); });
cmp_ok($seconds, '<', 5, 'hung: after the timeout');
$seconds = elapsed(sub { is(nearest(8), "8\ncpu", 'hung: the next one'); });
cmp_ok($seconds, '<', 9, 'hung: which does not wait');
is(value($node, "$settings SELECT id FROM t ORDER BY v <-> vec(8, 8) LIMIT 1; SELECT reason FROM ivfpq_last_scan()"),
	"8\nthe service was silent for too long", 'hung: as the scan says');
# A worker that hangs ends nevertheless when the server does, and in good order.
$seconds = elapsed(sub { $node->stop('fast'); });
cmp_ok($seconds, '<', 20, 'hung: the server ends');
$node->start;
unlike(slurp_file($node->logfile), qr/not properly shut down|was terminated by signal/, 'hung: in good order');
fault('none');
loaded();
fault('hung');
is(nearest(7, 'SET pgwarp.service_timeout = 500;'), "7\ncpu", 'hung: again');
# Killed, it takes the server with it, as any process would.
$before = worker();
kill_backend($node, $before);
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'none'");
value($node, 'SELECT pg_reload_conf()');
serves();
is(nearest(7) =~ s/\n.*//sr, '7', 'killed: a right answer after the restart');
loaded();
is(nearest(7), "7\nservice", 'killed: served again');

# SIGTERM while searches wait for it.
fault('slow');
my @sessions = map { session($node) } 1 .. 6;
$_->query($settings) for @sessions;
start($sessions[$_], 'SELECT id FROM t ORDER BY v <-> vec(' . (100 + $_) . ', 8) LIMIT 1') for 0 .. $#sessions;
usleep(300_000);
$before = worker();
kill('TERM', $before);
fault('none');
for (0 .. $#sessions)
{
	my ($result, $complaints) = finish($sessions[$_]);
	is("$result$complaints", 100 + $_, 'ended in mid-batch: a right answer');
}
wait_until($node, "pid <> $before FROM pgwarp_service()");
loaded();
is(nearest(7), "7\nservice", 'ended: a new worker serves');

# Cancelled while running and while queued; then the session goes on.
fault('slow');
start($sessions[0], 'SELECT id FROM t ORDER BY v <-> vec(1, 8) LIMIT 1');
usleep(300_000);
start($sessions[1], 'SELECT id FROM t ORDER BY v <-> vec(2, 8) LIMIT 1');
usleep(100_000);
$seconds = elapsed(sub {
	value($node, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE (query LIKE '%vec(1, 8)%'
		OR query LIKE '%vec(2, 8)%') AND pid <> pg_backend_pid()");
	for (0, 1)
	{
		my ($result, $complaints) = finish($sessions[$_]);
		like($complaints, qr/canceling statement due to user request/, 'cancelled');
	}
});
cmp_ok($seconds, '<', 1, 'at once');
# Its slot is not free yet: the pages answer.
is($sessions[0]->query('SELECT id FROM t ORDER BY v <-> vec(3, 8) LIMIT 1'), 3, 'the next query of the session');
$sessions[3]->query('SET statement_timeout = 100');
start($sessions[3], 'SELECT id FROM t ORDER BY v <-> vec(3, 8) LIMIT 1');
my ($result, $complaints) = finish($sessions[3]);
like($complaints, qr/canceling statement due to statement timeout/, 'timed out');
$sessions[3]->query('SET statement_timeout = 0');
fault('none');
is($sessions[$_]->query('SELECT id FROM t ORDER BY v <-> vec(33, 8) LIMIT 1'), 33, 'and again') for 0, 1, 3;
usleep(1_500_000);
is($sessions[0]->query('SELECT id FROM t ORDER BY v <-> vec(34, 8) LIMIT 1') .
	$sessions[0]->query('SELECT path FROM ivfpq_last_scan()'), '34service', 'by the service');

# A backend that is ended while its search runs: its slot goes to the next.
fault('slow');
start($sessions[2], 'SELECT id FROM t ORDER BY v <-> vec(4, 8) LIMIT 1');
usleep(300_000);
value($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%vec(4, 8)%'
	AND pid <> pg_backend_pid()");
fault('none');
for my $n (1 .. 20) { is(nearest($n) =~ s/\n.*//sr, $n, 'whoever has the slot now') if $n % 5 == 0; }

# As many clients as there may be.
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/many.sql", "\\set n random(1, 4000)
SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100;
SELECT 1 / (id = :n)::int FROM t ORDER BY v <-> vec(:n, 8) LIMIT 1;\n");
$_->quit for @sessions[0, 1, 3, 4, 5];
$node->command_ok([ 'pgbench', '--no-vacuum', '--client=50', '--jobs=2', '--transactions=20',
	"--file=$folder/many.sql", '--port=' . $node->port, '--host=' . $node->host, 'postgres' ], 'fifty clients');
cmp_ok(value($node, 'SELECT max(mean_batch) FROM pg_stat_pgwarp'), '>', 1.05, 'are served in batches');

# Shutdown under load, by each kind, and a postmaster that dies.
for my $mode ('fast', 'immediate')
{
	my $load = IPC::Run::start([ 'pgbench', '--no-vacuum', '--client=10', '--jobs=2', '--time=30',
		"--file=$folder/many.sql", '--port=' . $node->port, '--host=' . $node->host, 'postgres' ],
		'>', \my $out, '2>', \my $errors);
	usleep(1_000_000);
	my $worker = worker();
	$seconds = elapsed(sub { $node->stop($mode); });
	cmp_ok($seconds, '<', 20, "$mode shutdown under load");
	ok(!-d "/proc/$worker", 'the worker is gone');
	$load->kill_kill;
	unlike($errors // '', qr/division by zero/, 'no wrong answer meanwhile');
	$node->start;
	loaded();
	is(nearest(7), "7\nservice", 'and back');
}
my $worker = worker();
my $postmaster = $node->{_pid};
kill('KILL', $postmaster);
my $gone = 0;
for (1 .. 100)
{
	$gone = !-d "/proc/$worker" and last;
	usleep(100_000);
}
ok($gone, 'the worker does not outlive the postmaster');
$node->{_pid} = undef;
unlink $node->data_dir . '/postmaster.pid';
usleep(1_000_000);
$node->start;
loaded();
is(nearest(7), "7\nservice", 'the server starts again');
indexes_are_sound($node);
$node->stop;
done_testing();
