# Two devices, one of which fails: whatever happens to it, the other goes on serving, also what both have, and its part
# of an index that is spread over both; no
# query fails or takes longer than pgwarp.service_timeout and a bit, and the device comes back by itself.
use strict;
use warnings;
use IPC::Run;
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use IvfpqTest;

my $device = $ENV{PGWARP_TEST_DEVICES} // 'host';
$device = '0' if $device eq 'auto';
my $timeout_ms = 1000;
my $clients = $ENV{FAULT_CLIENTS} // 8;
my $node = new_node('faults', service => 1, conf => <<"END");
pgwarp.devices = '$device,$device'
pgwarp.device_memory = 300MB
pgwarp.service_timeout = $timeout_ms
pgwarp.watchdog_timeout = 8000
ivfpq.target_recall = 1
ivfpq.candidates = 100
enable_seqscan = off
max_connections = 100
END
wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
for my $table ('t', 'u')
{
	make_table($node, $table, 8, 3000);
	value($node, "CREATE INDEX ${table}_v ON $table USING ivfpq (v) WITH (lists = 16, placement = single)");
	is(value($node, "SELECT pgwarp_prewarm('${table}_v')"), 16, "$table is resident");
}
make_table($node, 'r', 8, 3000);
value($node, 'CREATE INDEX r_v ON r USING ivfpq (v) WITH (lists = 16, placement = replicate)');
is(value($node, "SELECT pgwarp_prewarm('r_v')"), 16, 'r is resident');
is(value($node, "SELECT count(*) FROM pg_stat_pgwarp_devices WHERE indexname = 'r_v' AND resident_lists = 16"), 2, 'on both devices');
make_table($node, 's', 8, 3000);
value($node, 'CREATE INDEX s_v ON s USING ivfpq (v) WITH (lists = 16, placement = shard)');
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 16, 's is resident');
sub parts_of_s { return value($node, "SELECT string_agg((resident_lists = own_lists)::text, ' ')
	FROM pg_stat_pgwarp_devices WHERE indexname = 's_v'"); }
is(parts_of_s(), 'true true', 'a part of it on each device');
sub place_of { return value($node, "SELECT place FROM pg_stat_pgwarp_devices WHERE indexname = '$_[0]_v'"); }
my ($ill, $well) = (place_of('t'), place_of('u'));
is($ill + $well, 1, 'on a device each');

sub nearest
{
	my ($table, $n) = @_;
	return value($node, "SELECT id FROM $table ORDER BY v <-> vec($n, 8) LIMIT 1; SELECT path FROM ivfpq_last_scan()");
}
sub pid_of { return value($node, "SELECT coalesce(pid, 0) FROM pgwarp_devices() WHERE place = $_[0]"); }
sub fault { return set_fault($node, $_[0], device => $ill, workers => 2); }
# Within five seconds it serves again, from where it was.
sub comes_back
{
	my ($name) = @_;
	my $begin = time;
	my $path = '';
	while (time - $begin < 5)
	{
		$path = nearest('t', 7);
		last if $path eq "7\nservice";
		usleep(100_000);
	}
	is($path, "7\nservice", "$name: back within five seconds");
	is(place_of('t'), $ill, "$name: where it was");
	while (time - $begin < 5 && parts_of_s() ne 'true true') { usleep(100_000); }
	is(parts_of_s(), 'true true', "$name: so is its part of what is spread");
}

sub searches_per_second
{
	my $count = 'SELECT sum(cpu_searches + service_searches) FROM pg_stat_pgwarp';
	my ($begin, $searches) = (time, value($node, $count));
	usleep(1_000_000);
	return (value($node, $count) - $searches) / (time - $begin);
}

# Clients search all tables all the while. A wrong row is a division by zero, which ends the client.
my $folder = PostgreSQL::Test::Utils::tempdir();
for my $table ('t', 'u', 'r', 's')
{
	append_to_file("$folder/$table.sql", "\\set n random(1, 3000)
SELECT 1 / (id = :n)::int FROM $table ORDER BY v <-> vec(:n, 8) LIMIT 1;\n");
}
my ($out, $errors) = ('', '');
my $load = IPC::Run::start([ 'pgbench', '--no-vacuum', "--client=$clients", '--jobs=2', '--time=180', '--log', "--log-prefix=$folder/log",
	"--file=$folder/t.sql", "--file=$folder/u.sql", "--file=$folder/r.sql", "--file=$folder/s.sql",
	'--port=' . $node->port, '--host=' . $node->host, 'postgres' ],
	'>', \$out, '2>', \$errors);
wait_until($node, 'sum(cpu_searches + service_searches) > 1000 FROM pg_stat_pgwarp');
my $before = searches_per_second();
my $bystander = pid_of($well);
my $ill_before = 0;
for my $name ('failed', 'out_of_memory', 'ended', 'lost', 'hung')
{
	$ill_before = pid_of($ill);
	if ($name eq 'ended') { kill('TERM', $ill_before); }
	else { fault($name); }
	my @wrong = grep { nearest('u', $_) ne "$_\nservice" } 1 .. 5;
	is("@wrong", '', "$name: the other device serves");
	@wrong = grep { nearest('r', $_) ne "$_\nservice" } 1 .. 5;
	is("@wrong", '', "$name: so it does what both have");
	@wrong = grep { nearest('s', $_) !~ /^$_\n/ } 1 .. 5;
	is("@wrong", '', "$name: right answers of what is spread");
	is(nearest('t', 7) =~ s/\n.*//sr, 7, "$name: a right answer of what was on this one");
	if ($name eq 'hung')
	{
		is(nearest('t', 8), "8\ncpu", 'hung: from the pages');
		is(nearest('s', 8), "8\nservice", 'hung: what is spread, from the other device and the pages');
		# On a busy machine the watchdog may have ended the worker by now.
		like(value($node, "SELECT serves, reason FROM pgwarp_devices() WHERE place = $ill"),
			qr/^f\|(the service was silent for too long|its device gave no sign of life)/, 'hung: pgwarp_devices() says so');
		is(value($node, 'SELECT serves FROM pgwarp_service()'), 't', 'hung: the service serves');
	}
	# A device that is lost, or hangs, ends its worker.
	wait_until($node, "coalesce(pid, 0) <> $ill_before FROM pgwarp_devices() WHERE place = $ill")
	  if $name eq 'lost' || $name eq 'hung' || $name eq 'ended';
	fault('none') if $name ne 'ended';
	comes_back($name);
	is(pid_of($well), $bystander, "$name: the other worker has not noticed");
}
like(value($node, "SELECT last_failure FROM pgwarp_devices() WHERE place = $ill"), qr/gave no sign of life/, 'why it ended last');
is(value($node, "SELECT last_failure FROM pgwarp_devices() WHERE place = $well"), '', 'the other never did');
my $after = searches_per_second();
for (my $until = time + 60; $after < 0.5 * $before && time < $until;) { $after = searches_per_second(); }
cmp_ok($after, '>=', 0.5 * $before, sprintf("searches in a second: %.0f before, %.0f after", $before, $after));
$load->signal('INT');
$load->finish;
unlike($errors, qr/ERROR|aborted/, 'no query failed, and none was wrong');
# The log of pgbench has the microseconds of each transaction.
my @seconds = map { (split)[2] / 1e6 } map { split /\n/, slurp_file($_) } glob "$folder/log*";
cmp_ok(scalar(@seconds), '>', 1000, 'searches: ' . @seconds);
# On a busy machine a search may take seconds more, but none waits until the watchdog ends the worker.
cmp_ok(max(@seconds), '<', $timeout_ms / 1000 + 5, 'the longest took ' . max(@seconds) . ' s');
is(value($node, 'SELECT sum(busy) FROM pgwarp_devices()'), 0, 'no search is left');
unlike(slurp_file($node->logfile), qr/was terminated by signal|terminating any other active/, 'and nothing crashed');
indexes_are_sound($node);
$node->stop;
done_testing();
