# No query waits for the service longer than pgwarp.service_timeout, wherever it waits; and who waits
# longer because it asked to, ends when its client goes.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $node = new_node('waits', service => 1, conf => "max_connections = 60\npgwarp.watchdog_timeout = 0");
make_table($node, 'small', 8, 2000);
value($node, 'CREATE INDEX small_v ON small USING ivfpq (v) WITH (lists = 1)');
# A model of several megabytes: it travels in as many load buffers.
make_table($node, 'large', 1000, 1200);
value($node, 'CREATE INDEX large_v ON large USING ivfpq (v) WITH (lists = 900, m = 250)');
wait_until($node, 'serves FROM pgwarp_service()');
is(value($node, "SELECT pgwarp_prewarm('small_v')"), 1, 'one index is resident');

sub fault { return set_fault($node, @_); }
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/load.sql", "SELECT pgwarp_prewarm('small_v');\n");
append_to_file("$folder/small.sql", "SET enable_seqscan = off; SET pgwarp.service_timeout = '60s';
SELECT id FROM small ORDER BY v <-> vec(1, 8) LIMIT 1;\n");
sub pgbench
{
	my ($file, @options) = @_;
	return IPC::Run::start([ 'pgbench', '--no-vacuum', "--file=$folder/$file", @options, '--port=' . $node->port,
		'--host=' . $node->host, 'postgres' ], '>', \my $out, '2>', \my $errors);
}
sub searches
{
	my $load = pgbench('small.sql', '--client=2', '--time=60');
	wait_until($node, "count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'SELECT id FROM small%'
		AND wait_event_type = 'Extension'");
	usleep(500_000);
	return $load;
}
sub loaders_wait
{
	my ($number) = @_;
	wait_until($node, "count(*) >= $number FROM pg_stat_activity WHERE query LIKE 'SELECT pgwarp_prewarm%'
		AND wait_event_type = 'Extension'");
	return;
}

# A worker that takes a second for a list, and answers searches between; all load buffers are taken.
fault('slow_put');
my $loads = pgbench('load.sql', '--client=24', '--transactions=1');
loaders_wait(12);
my $asker = session($node);
$asker->query('SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SET pgwarp.service_timeout = 2500;
	SET ivfpq.enable_batched_join = off');
my $answer;
my $seconds = elapsed(sub { $answer = $asker->query('SELECT id FROM large ORDER BY v <-> vec(7, 1000) LIMIT 1'); });
is($answer, 7, 'slow: a right answer');
cmp_ok($seconds, '<', 4.8, 'slow: the answer and the way of a model take no longer than the timeout together');
# A statement that gave up once does not ask again.
$seconds = elapsed(sub {
	$answer = $asker->query('SET pgwarp.service_timeout = 400; SELECT count(*), sum((o.id = n.id)::int)
		FROM (SELECT * FROM small WHERE id <= 20) AS o, LATERAL (SELECT id FROM small ORDER BY v <-> o.v LIMIT 1) AS n');
});
is($answer, '20|20', 'slow: many searches of a statement');
cmp_ok($seconds, '<', 6, 'slow: wait in vain once');
is($asker->query('SELECT reason FROM ivfpq_last_scan()'), 'the service did not answer this statement in time',
	'slow: as the scan says');
$loads->kill_kill;
fault('none');

# But a long one does, once the worker has come back.
my $long = session($node);
$long->query("SET enable_seqscan = off; SET pgwarp.service_timeout = 600");
my $worker = value($node, 'SELECT pid FROM pgwarp_service()');
my $fallbacks = "(SELECT fallbacks FROM pg_stat_pgwarp WHERE indexname = 'small_v')";
my $fell_back = value($node, "SELECT $fallbacks");
kill('STOP', $worker);
start($long, "DO \$\$
DECLARE
	way text;
	waited bool := false;
	late timestamptz := clock_timestamp() + '120 s';
BEGIN
	LOOP
		PERFORM id FROM small ORDER BY v <-> vec(1, 8) LIMIT 1;
		SELECT path INTO way FROM ivfpq_last_scan();
		waited := waited OR way = 'cpu';
		EXIT WHEN waited AND way = 'service';
		IF clock_timestamp() > late THEN RAISE 'the service is not asked again'; END IF;
		PERFORM pg_sleep(0.05);
	END LOOP;
END
\$\$");
wait_until($node, "$fallbacks > $fell_back");
kill('CONT', $worker);
is((finish($long))[1], '', 'a long statement asks the service again');
$long->quit;

# A worker that never comes back.
fault('hung');
my $load = searches();
my @loaders = map { session($node) } 1 .. 4;
start($_, "SELECT pgwarp_prewarm('small_v')") for @loaders;
loaders_wait(4);
$seconds = elapsed(sub {
	is($asker->query("SET pgwarp.service_timeout = 1500; SELECT id FROM large ORDER BY v <-> vec(8, 1000) LIMIT 1"), 8,
		'hung: a right answer');
});
cmp_ok($seconds, '<', 10, 'hung: after the timeout');
is(value($node, 'SELECT serves, pid > 0, reason FROM pgwarp_service()'), 'f|t|the service was silent for too long',
	'hung: pgwarp_service() says so');
$seconds = elapsed(sub {
	start($asker, "SET ivfpq.executor = 'service'; SELECT id FROM large ORDER BY v <-> vec(9, 1000) LIMIT 1");
	like((finish($asker))[1], qr/service is not available: the service was silent for too long/, 'hung: an error for who insists');
});
cmp_ok($seconds, '<', 10, 'hung: after the timeout as well');

# Who loads a whole index waits, but not for a client that is gone, cancelled or ended.
my $victim = $loaders[0];
my @pids = split /\n/, value($node, "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pgwarp_prewarm%'
	ORDER BY backend_start");
value($node, "SELECT pg_cancel_backend($pids[0])");
my ($result, $complaints) = finish($victim);
like($complaints, qr/canceling statement due to user request/, 'prewarm: cancelled');
value($node, "SELECT pg_terminate_backend($pids[1])");
wait_until($node, 'count(*) = 2 FROM pg_stat_activity WHERE query LIKE $$SELECT pgwarp_prewarm%$$ AND state = $$active$$');
$loaders[2]->{run}->kill_kill;
wait_until($node, 'count(*) = 1 FROM pg_stat_activity WHERE query LIKE $$SELECT pgwarp_prewarm%$$ AND state = $$active$$');
pass('prewarm: ended, and gone with its client');

$load->kill_kill;
$_->{run}->kill_kill for @loaders[1, 3], $asker;
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'none'");
$node->restart;
indexes_are_sound($node);
$node->stop;
done_testing();
