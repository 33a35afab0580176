# Batches of the service end one by one: a search that takes long keeps waiting neither searches of
# other shapes in the same index nor those of other indexes and databases.
use strict;
use warnings;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use IvfpqTest;

my $node = new_node('batches', service => 1);
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
for my $table ('t', 'u')
{
	make_table($node, $table, 8, 5000);
	value($node, "CREATE INDEX ${table}_v ON $table USING ivfpq (v) WITH (lists = 8)");
	is(value($node, "SELECT pgwarp_prewarm('${table}_v')"), 8, "$table is resident");
}
value($node, 'CREATE DATABASE other TEMPLATE postgres');
my $settings = "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET pgwarp.service_timeout = '20s'";
my ($same, $second) = map { session($node) } 1 .. 2;
$_->query($settings) for $same, $second;
my $there = "SET search_path = public, ivfpq_test; $settings;";
my $search = 'SELECT array_agg(id) FROM (SELECT id FROM %s ORDER BY v <-> vec(%d, 8) LIMIT %d) AS s';
my $exact = value($node, 'SET enable_indexscan = off; ' . sprintf($search, 't', 5, 3));
$node->safe_psql('other', $there . sprintf($search, 't', 5, 3));

$node->append_conf('postgresql.conf', "pgwarp.debug_fault = 'slow_large'");
$node->reload;
wait_until($node, "current_setting('pgwarp.debug_fault') = 'slow_large'");
sleep 1;

# The slow search is under way in another process meanwhile.
sub beside_a_slow_search
{
	my ($action) = @_;
	my $output = '';
	my $slow = IPC::Run::start(['psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', $settings,
		'-c', 'SET ivfpq.candidates = 1500', '-c', 'SET search_path = public, ivfpq_test',
		'-c', sprintf('SELECT count(*) FROM (SELECT id FROM %s ORDER BY v <-> vec(%d, 8) LIMIT %d) AS s', 't', 5, 1200)],
		'>', \$output);
	wait_until($node, "wait_event = 'PgwarpServiceAnswer' OR wait_event = 'Extension' FROM pg_stat_activity
		WHERE query LIKE '%LIMIT 1200%' AND pid <> pg_backend_pid()");
	my $begin = time;
	my @answers = $action->();
	my $seconds = time - $begin;
	my $still = $slow->pumpable;
	$slow->finish;
	chomp $output;
	is($output, 1200, 'the slow search has its answer');
	return ($seconds, $still, @answers);
}

my ($seconds, $still, @answers) = beside_a_slow_search(sub {
	return map { $_->[0]->query(sprintf($search, $_->[1], 5, 3)) } [$same, 't'], [$second, 'u'];
});
is($answers[0], $exact, 'another shape in the same index');
is($same->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'by the service');
is($second->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'another index, by the service');
ok($still, "both before the slow search was through ($seconds s)");

($seconds, $still, @answers) = beside_a_slow_search(sub {
	return $node->safe_psql('other', $there . sprintf($search, 't', 5, 3) . '; SELECT path FROM ivfpq_last_scan()');
});
is($answers[0], "$exact\nservice", 'another database');
ok($still, "before the slow search was through ($seconds s)");

# Lists are taken in while a batch runs.
($seconds, $still, @answers) = beside_a_slow_search(sub { return value($node, "SELECT pgwarp_prewarm('u_v')"); });
is($answers[0], 8, 'prewarm');
ok($still, "before the slow search was through ($seconds s)");
$_->quit for $same, $second;

# Sessions of one batch wake each other: also where some have given up, and some do not run.
my ($sessions, $canceled, $stopped) = (40, 5, 3);
my @expected = map { value($node, 'SET enable_seqscan = off; SET ivfpq.executor = cpu; ' . sprintf($search, 't', $_, 3)) } 1 .. $sessions;
my $worker = value($node, 'SELECT pid FROM pgwarp_devices()');
kill 'STOP', $worker;
my @searches = map {
	my ($output, $errors) = ('', '');
	{ output => \$output, errors => \$errors, run => IPC::Run::start(['psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', "SET application_name = 'search $_'",
		'-c', $settings, '-c', 'SET search_path = public, ivfpq_test', '-c', sprintf($search, 't', $_, 3)], '>', \$output, '2>', \$errors) }
} 1 .. $sessions;
my $waiting = "FROM pg_stat_activity WHERE wait_event IN ('PgwarpServiceAnswer', 'Extension') AND application_name LIKE 'search %'";
wait_until($node, "count(*) = $sessions $waiting");
is(value($node, "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM (SELECT pid $waiting ORDER BY substr(application_name, 8)::int LIMIT $canceled) AS s"),
	$canceled, 'some are canceled');
wait_until($node, "count(*) = $sessions - $canceled $waiting");
my @frozen = split /\n/, value($node, "SELECT pid $waiting ORDER BY substr(application_name, 8)::int LIMIT $stopped");
kill 'STOP', @frozen;
kill 'CONT', $worker;
$_->{run}->finish for @searches[$canceled + $stopped .. $sessions - 1];
ok($_->{run}->pumpable, 'one that does not run has no answer') for @searches[$canceled .. $canceled + $stopped - 1];
kill 'CONT', @frozen;
$_->{run}->finish for @searches[0 .. $canceled + $stopped - 1];
chomp ${ $_->{output} } for @searches;
is(${ $searches[$_]{output} }, $_ < $canceled ? '' : $expected[$_], 'answer ' . ($_ + 1)) for 0 .. $sessions - 1;
like(${ $searches[$_]{errors} }, $_ < $canceled ? qr/canceling statement due to user request/ : qr/^$/, 'errors ' . ($_ + 1)) for 0 .. $sessions - 1;

indexes_are_sound($node);
$node->stop;
done_testing();
