# A device that hangs: the worker is ended and started again, by itself, and queries get their answers.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $node = new_node('watchdog', service => 1, conf => "pgwarp.watchdog_timeout = '2s'");
make_table($node, 't', 8, 2000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 8)');
my $settings = 'SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100;';
sub nearest
{
	my ($n, $more) = @_;
	$more //= '';
	return value($node, "$settings $more SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1;
		SELECT path FROM ivfpq_last_scan()");
}
wait_until($node, 'serves FROM pgwarp_service()');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 8, 'resident');
is(nearest(7), "7\nservice", 'from the service');
is(value($node, 'SELECT serves, pid > 0, reason, since <= clock_timestamp(), last_failure, last_failure_at
	FROM pgwarp_service()'), 't|t||t||', 'it serves');
my $worker = value($node, 'SELECT pid FROM pgwarp_service()');
# Those who are going to wait have slots that are free: a backend that comes later may get the slot of
# one that gave its search up, and reads the pages at once.
my ($bystander, $insists, $loads) = map { session($node) } 1 .. 3;

value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'hung'");
value($node, 'SELECT pg_reload_conf()');
for (1 .. 100)
{
	last if slurp_file($node->logfile) =~ /pgwarp.debug_fault is now hung/;
	usleep(50_000);
}
is(nearest(8, 'SET pgwarp.service_timeout = 500;'), "8\ncpu", 'hung: from the pages');
is(value($node, 'SELECT serves, reason FROM pgwarp_service()'), 'f|the service was silent for too long',
	'hung: suspected');
# Who insists, and who loads, does not wait for ever either.
$insists->query("$settings SET ivfpq.executor = 'service'; SET pgwarp.service_timeout = '10min'");
start($insists, "SELECT id, clock_timestamp() - statement_timestamp() > interval '100 ms'
	FROM (SELECT id FROM t ORDER BY v <-> vec(9, 8) LIMIT 1) AS s");
start($loads, "SELECT pgwarp_prewarm('t_v')");
my $seconds = elapsed(sub { wait_until($node, "coalesce(pid, 0) <> $worker FROM pgwarp_service()"); });
cmp_ok($seconds, '<', 8, 'the worker is ended');
my ($result, $complaints) = finish($insists);
is("$result$complaints", '9|t', 'who insists waits, and has an answer');
($result, $complaints) = finish($loads);
like("$result$complaints", qr/did not take in index "t_v": its device gave no sign of life for 2\d\d\d ms/,
	'who loads is told');
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'none'");
value($node, 'SELECT pg_reload_conf()');
wait_until($node, 'serves FROM pgwarp_service()');
is(value($node, "SELECT last_failure ~ '^its device gave no sign of life for 2\\d\\d\\d ms\$',
	last_failure_at BETWEEN clock_timestamp() - interval '1 minute' AND since FROM pgwarp_service()"), 't|t',
	'why it ended last, and when');
isnt(value($node, 'SELECT pid FROM pgwarp_service()'), $worker, 'another one serves');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 8, 'resident again');
is(nearest(7), "7\nservice", 'from the service again');
is($bystander->query('SELECT 1'), 1, 'no other session has noticed');
my $log = slurp_file($node->logfile);
like($log, qr/pgwarp service was ended: its device gave no sign of life/, 'the log says why');
unlike($log, qr/was terminated by signal|terminating any other active/, 'it was no crash');

# A slow one is left alone.
$worker = value($node, 'SELECT pid FROM pgwarp_service()');
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'slow'");
value($node, 'SELECT pg_reload_conf()');
for (1 .. 100)
{
	last if slurp_file($node->logfile) =~ /pgwarp.debug_fault is now slow/;
	usleep(50_000);
}
my $slow = session($node);
$slow->query("$settings SET pgwarp.service_timeout = '10s'");
is($slow->query("SELECT id FROM t ORDER BY v <-> vec($_, 8) LIMIT 1"), $_, 'slow: a right answer') for 1 .. 4;
is($slow->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'slow: from the service');
is(value($node, 'SELECT pid FROM pgwarp_service()'), $worker, 'slow: by the same worker');

# A worker that is ended while it takes a list in gives the buffer of the list back: its sender does not
# wait for that buffer the next time.
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'slow_put'");
value($node, "ALTER SYSTEM SET pgwarp.watchdog_timeout = '200ms'");
value($node, 'SELECT pg_reload_conf()');
for (1 .. 100)
{
	last if slurp_file($node->logfile) =~ /pgwarp.debug_fault is now slow_put/;
	usleep(50_000);
}
start($loads, "SELECT pgwarp_prewarm('t_v')");
($result, $complaints) = finish($loads);
like("$result$complaints", qr/did not take in index "t_v"/, 'ended in a load: who loads is told');
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'none'");
value($node, "ALTER SYSTEM SET pgwarp.watchdog_timeout = '2s'");
value($node, 'SELECT pg_reload_conf()');
wait_until($node, "serves AND pid <> $worker FROM pgwarp_service()");
$loads->query("SET statement_timeout = '10s'");
start($loads, "SELECT pgwarp_prewarm('t_v')");
($result, $complaints) = finish($loads);
is("$result$complaints", 8, 'ended in a load: the same session loads again');
is(nearest(7), "7\nservice", 'ended in a load: from the service again');
$_->quit for $bystander, $insists, $loads, $slow;
indexes_are_sound($node);
$node->stop;
done_testing();
