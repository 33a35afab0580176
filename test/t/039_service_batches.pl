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
indexes_are_sound($node);
$node->stop;
done_testing();
