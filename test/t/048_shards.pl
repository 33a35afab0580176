# An index spread over two devices, with room for 60% of it on each: all of it is served, with the answers of one
# device, whatever changes, and whichever device comes and goes.
use strict;
use warnings;
use List::Util qw(min);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use IvfpqTest;

my $seed = seed_of();
plan skip_all => 'needs devices with little memory' if ($ENV{PGWARP_TEST_DEVICES} // 'host') ne 'host';
my $node = new_node('shards', service => 1, streaming => 1, conf => <<"END");
pgwarp.devices = 'host,host'
pgwarp.device_memory = 1MB
pgwarp.service_timeout = 10s
hot_standby_feedback = on
max_connections = 60
enable_seqscan = off
END
sub both_serve { wait_until($_[0], 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()'); }
both_serve($node);
my $used = value($node, 'SELECT sum(used) FROM pgwarp_devices()');

# Lists of the index on each device.
sub lists_of
{
	my ($index, $on) = @_;
	return value($on // $node, "SELECT coalesce(string_agg(place || ':' || resident_lists, ' ' ORDER BY place), '')
		FROM pg_stat_pgwarp_devices WHERE indexname = '$index'");
}
# Lists that are on the one or the other, and where they should be, none of them twice.
sub settled
{
	my ($index, $on) = @_;
	return value($on // $node, "SELECT sum(resident_lists) || ' of ' || min(lists) || ', ' || bool_and(resident_lists = own_lists)
		FROM pg_stat_pgwarp_devices WHERE indexname = '$index'");
}
# The nearest rows by the setting, for queries 1 to 1000, in a table.
sub answers
{
	my ($name, $table, $setting, $condition) = @_;
	value($node, "SET ivfpq.probes = 12; SET ivfpq.candidates = 60; $setting;
		CREATE TABLE $name AS SELECT q, (SELECT array_agg(id) FROM
			(SELECT id FROM $table WHERE $condition ORDER BY v <-> vec(q + 50000, 16) LIMIT 10) AS s) AS ids
		FROM generate_series(1, 1000) AS q");
}
sub equal
{
	my ($one, $other) = @_;
	return value($node, "SELECT count(*) || ' of ' || count(*) FILTER (WHERE a.ids = b.ids AND cardinality(a.ids) = 10)
		FROM $one AS a JOIN $other AS b USING (q)");
}

# What fits on one device: the answers of one and of two are the same.
make_table($node, 't', 16, 4000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40, m = 16, placement = single)');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 40, 'on one device');
like(lists_of('t_v'), qr/^\d:40$/, 'single: one device has it');
answers('t_one', 't', 'SET ivfpq.executor = service', 'true');
is(error_of($node, 'ALTER INDEX t_v SET (placement = shard)'), '', 'no word of a REINDEX');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 40, 'shard: all lists are resident');
is(settled('t_v'), '40 of 40, true', 'shard: each on its device');
like(lists_of('t_v'), qr/^0:(1[2-9]|2[0-8]) 1:(1[2-9]|2[0-8])$/, 'shard: about half of them each');
my ($cpu) = value($node, "SELECT cpu_searches FROM pg_stat_pgwarp WHERE indexname = 't_v'");
answers('t_two', 't', 'SET ivfpq.executor = service', 'true');
is(equal('t_one', 't_two'), '1000 of 1000', 'the answers of one device');
is(value($node, "SELECT cpu_searches - $cpu, resident_lists, lists FROM pg_stat_pgwarp WHERE indexname = 't_v'"), '0|40|40',
	'pg_stat_pgwarp: none by the CPU, lists of both together');
is(value($node, "SELECT bool_and(batches >= 1000) FROM pg_stat_pgwarp_devices WHERE indexname = 't_v'"), 't', 'both are asked');
is(value($node, "SELECT i.bytes = sum(d.bytes) FROM pg_stat_pgwarp AS i JOIN pg_stat_pgwarp_devices AS d USING (indexname)
	WHERE indexname = 't_v' GROUP BY i.bytes"), 't', 'pg_stat_pgwarp: bytes of both');

# What fits on none: 1.3 MB of lists, and 768 kB of room on each.
value($node, "CREATE TABLE s (id bigint, v vector(16), a bigint, b bigint, c bigint, d bigint);
	INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series(1, 21000) AS i;
	CREATE INDEX s_v ON s USING ivfpq (v, a, b, c, d) WITH (lists = 64, m = 16, placement = shard)");
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'larger than a device: all lists are resident');
is(settled('s_v'), '64 of 64, true', 'larger than a device: each on its own');
is(value($node, "SELECT bool_and(bytes BETWEEN 0.4 * 21000 * 61 AND 0.6 * 21000 * 61) FROM pg_stat_pgwarp_devices WHERE indexname = 's_v'"), 't',
	'larger than a device: about half of the bytes each');
for my $condition ('true', 'a = 3', 'a < 2 AND b > 5000', 'd = ANY (ARRAY[1, 2, 3, 4, 5, 6])')
{
	value($node, 'DROP TABLE IF EXISTS s_cpu, s_two');
	answers('s_cpu', 's', 'SET ivfpq.executor = cpu', $condition);
	my $before = value($node, "SELECT cpu_searches FROM pg_stat_pgwarp WHERE indexname = 's_v'");
	answers('s_two', 's', 'SET ivfpq.executor = service', $condition);
	is(equal('s_cpu', 's_two'), '1000 of 1000', "WHERE $condition: the answers of the CPU");
	is(value($node, "SELECT cpu_searches - $before FROM pg_stat_pgwarp WHERE indexname = 's_v'"), 0, "WHERE $condition: from the devices");
}
is(settled('s_v'), '64 of 64, true', 'and nothing was moved for it');

# Rounds: a whole scan has every row once, in the order of rounds; so has one that goes on where one device left off.
my $session = session($node);
$session->query('SET enable_seqscan = off; SET enable_sort = off');
for my $limit (50, 2000)
{
	is($session->query("SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM s WHERE a = 3 ORDER BY v <-> vec(17, 16) LIMIT $limit) AS x"),
		min($limit, 3000) . '|' . min($limit, 3000), "LIMIT $limit: each row once");
	is($session->query('SELECT path, lists_read FROM ivfpq_last_scan()'), 'service|0', "LIMIT $limit: from the devices");
}
$session->query("BEGIN; DECLARE c CURSOR FOR SELECT id FROM s WHERE b <= 20000 ORDER BY v <-> vec(18, 16)");
my @ids = map { split /\n/, $session->query("FETCH 1000 FROM c") } 1 .. 21;
my %different = map { $_ => 1 } @ids;
is(@ids . ' ' . keys(%different), '20000 20000', 'a cursor: every row once');
$session->query('COMMIT');

# Recall with the effort that a scan chooses by itself.
make_recall_function($node, 16);
for my $condition ('true', 'a = 3', 'd < 4')
{
	cmp_ok(value($node, "SELECT recall_of('s', '$condition', '[60000, 60200)', 10)"), '>', 0.93, "WHERE $condition: the recall asked for");
}

# What changes is seen by every session.
my @sessions = map { session($node) } 1 .. 2;
sub exactly { $_->query('SET enable_seqscan = off; SET ivfpq.probes = 64; SET ivfpq.candidates = 600') for @_; }
exactly(@sessions);
my $exact = session($node);
$exact->query('SET enable_seqscan = on; SET enable_indexscan = off');
my $next = 30000;
# By distances: of two rows as near as each other either may come first.
sub nearest_to { return "SELECT array_agg(e) FROM (SELECT v <-> vec($_[0], 16) AS e FROM s WHERE $_[1] ORDER BY e LIMIT 5) AS x"; }
sub wrong_answers
{
	my ($sessions, @queries) = @_;
	my $wrong = 0;
	for my $n (@queries)
	{
		my $query = nearest_to($n, $n % 3 ? 'true' : 'a < 3');
		my $right = $exact->query($query);
		$wrong += grep { $_->query($query) ne $right } @$sessions;
	}
	return $wrong;
}
sub some { return map { int(rand(20000)) } 1 .. $_[0]; }
# Both sessions are served soon, and get what the table has.
sub served
{
	my ($name) = @_;
	my ($wrong, $served) = (0, '');
	for (1 .. 200)
	{
		$wrong += wrong_answers(\@sessions, some(1));
		$served = join ' ', map { scalar $_->query('SELECT path, lists_read FROM ivfpq_last_scan()') } @sessions;
		last if $served eq 'service|0 service|0';
		usleep(25_000);
	}
	is("$wrong $served", '0 service|0 service|0', $name);
}
served('at first');
sub change
{
	my ($round) = @_;
	$exact->query("INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series($next, $next + 99) AS i");
	is(wrong_answers(\@sessions, map { $next + int(rand(100)) } 1 .. 5), 0, "inserts $round");
	$exact->query("DELETE FROM s WHERE id % 70 = $round");
	value($node, 'VACUUM (INDEX_CLEANUP ON) s') if $round % 2;
	$exact->query("UPDATE s SET v = vec(id::int + 1, 16) WHERE id % 250 = $round");
	is(wrong_answers(\@sessions, some(5)), 0, "deletes and updates $round");
	$next += 100;
}
change($_) for 1 .. 5;
served('after all of them');
soon('64 of 64, true', 'lists stay where they are', sub { settled('s_v') });
$exact->query('REINDEX INDEX s_v');
is(wrong_answers(\@sessions, 1 .. 5), 0, 'REINDEX');
my $search = sub { wrong_answers(\@sessions, some(1)) };
soon('64 of 64, true', 'REINDEX: lists come back by searches alone', sub { settled('s_v') }, $search);
served('REINDEX: and serve');

# A worker that ends loses its lists: sessions read these from pages, the others are served, and it gets its own again.
my $place = int(rand(2));
my $worker = value($node, "SELECT pid FROM pgwarp_devices() WHERE place = $place");
kill('TERM', $worker);
wait_until($node, "coalesce(pid, 0) <> $worker FROM pgwarp_devices() WHERE place = $place");
is(wrong_answers(\@sessions, some(2)), 0, 'ended: right answers');
like($sessions[0]->query('SELECT path, lists_read FROM ivfpq_last_scan()'), qr/^service\|[1-9]/, 'ended: in part from the other device');
soon('64 of 64, true', 'ended: its lists come back by searches alone', sub { settled('s_v') }, $search);
served('ended: and serve');

# A worker that is silent for ten seconds loses its lists to the other one, and gets them back.
my ($silent) = value($node, "SELECT pid FROM pgwarp_devices() WHERE place = $place");
my $other = 1 - $place;
my $patient = session($node);
$patient->query("SET enable_seqscan = off; SET pgwarp.service_timeout = '2s'; SET ivfpq.probes = 40");
sub nearest_of_t { return $patient->query('SELECT id FROM t ORDER BY v <-> vec(' . $_[0] . ', 16) LIMIT 1'); }
sub search_t { my $n = 1 + int(rand(4000)); die "not $n" if nearest_of_t($n) ne $n; }
kill('STOP', $silent);
my $begin = time;
is(nearest_of_t(77), 77, 'silent: a right answer');
cmp_ok(time - $begin, '<', 3.5, 'silent: in time');
is(nearest_of_t(78), 78, 'silent: and another');
like($patient->query('SELECT path, lists_read FROM ivfpq_last_scan()'), qr/^service\|[1-9]/, 'silent: in part from the other device');
soon("$other:40", 'silent: after ten seconds the other has all lists',
	sub { lists_of('t_v') =~ /($other:\d+)/ ? $1 : '' }, \&search_t);
is(nearest_of_t(79), 79, 'silent: a right answer');
is($patient->query('SELECT path, lists_read FROM ivfpq_last_scan()'), 'service|0', 'silent: all from the other device');
kill('CONT', $silent);
soon('40 of 40, true', 'silent no longer: it has its lists again, and the other one its own', sub { settled('t_v') }, \&search_t);
$patient->quit;
served('silent no longer: and serves');

# A standby has shards of its own.
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
both_serve($standby);
is(value($standby, "SELECT pgwarp_prewarm('s_v')"), 64, 'standby: all lists are resident');
is(settled('s_v', $standby), '64 of 64, true', 'standby: each on its device');
my @there = map { session($standby) } 1 .. 2;
exactly(@there);
for my $round (6 .. 7)
{
	change($round);
	value($node, 'VACUUM (INDEX_CLEANUP ON) s');
	$node->wait_for_catchup($standby);
	is(wrong_answers(\@there, some(4)), 0, "standby: changes $round");
}
is($there[0]->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'standby: served');
$_->quit for @there;
$standby->stop;

# A restart: from nothing.
$_->quit for @sessions, $exact, $session;
$node->restart;
both_serve($node);
@sessions = map { session($node) } 1 .. 2;
exactly(@sessions);
$exact = session($node);
$exact->query('SET enable_seqscan = on; SET enable_indexscan = off');
soon('64 of 64, true', 'restart: lists come back by searches alone', sub { settled('s_v') }, $search);

# Other placements, and back.
value($node, 'ALTER INDEX t_v SET (placement = replicate)');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 40, 'replicate: both devices');
is(lists_of('t_v'), '0:40 1:40', 'replicate: have it');
is(value($node, "SELECT count(own_lists) FROM pg_stat_pgwarp_devices WHERE indexname = 't_v'"), 0, 'replicate: no device owns a part');
value($node, 'ALTER INDEX t_v SET (placement = shard)');
sub search_by_all { $_->query('SELECT id FROM t ORDER BY v <-> vec(' . int(rand(4000)) . ', 16) LIMIT 1') for @sessions; }
soon('40 of 40, true', 'from replicate to shard: searches leave one copy of each list', sub { settled('t_v') }, \&search_by_all);
value($node, "DROP TABLE t_two");
answers('t_two', 't', 'SET ivfpq.executor = service', 'true');
is(equal('t_one', 't_two'), '1000 of 1000', 'from replicate to shard: equal answers');
value($node, 'ALTER INDEX t_v SET (placement = single)');
soon('\d:40', 'from shard to single: one device has it', sub { lists_of('t_v') }, \&search_by_all);

# 'auto' spreads what is larger than a device, and nothing else.
value($node, 'ALTER INDEX t_v RESET (placement); ALTER INDEX s_v RESET (placement)');
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'auto: all lists of the large index');
is(settled('s_v'), '64 of 64, true', 'auto: it is spread');
value($node, "SELECT pgwarp_prewarm('t_v')");
like(lists_of('t_v'), qr/^\d:40$/, 'auto: the small one is on one device');
is(value($node, "SELECT count(own_lists) FROM pg_stat_pgwarp_devices WHERE indexname = 't_v'"), 0, 'auto: and not spread');
served('auto: all of it is served');

# Gone everywhere.
indexes_are_sound($node);
$_->quit for @sessions, $exact;
value($node, 'DROP INDEX t_v; DROP TABLE s');
wait_until($node, "(SELECT sum(used) FROM pgwarp_devices()) = $used");
is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp_devices'), 0, 'DROP: nothing is left');
is(value($node, 'SELECT sum(busy) FROM pgwarp_devices()'), 0, 'nor a search');
unlike(slurp_file($node->logfile), qr/was terminated by signal|terminating any other active/, 'and nothing crashed');
$node->stop;
done_testing();
