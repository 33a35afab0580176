# Copies of an index on several devices: searches go to all of them and get the same answers, changes are
# seen in every answer, and copies come and go with the placement.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use IvfpqTest;

my $seed = seed_of();
my $device = $ENV{PGWARP_TEST_DEVICES} // 'host';
$device = '0' if $device eq 'auto';
my $node = new_node('replicas', service => 1, streaming => 1, conf => <<"END");
pgwarp.devices = '$device,$device'
pgwarp.device_memory = 300MB
pgwarp.service_timeout = 10s
hot_standby_feedback = on
max_connections = 60
enable_seqscan = off
END
sub both_serve { wait_until($_[0], 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()'); }
both_serve($node);
my $used = value($node, 'SELECT sum(used) FROM pgwarp_devices()');
make_table($node, 't', 16, 4000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40, m = 16, placement = single)');

# Lists of the index on each device.
sub lists_of
{
	my ($index, $on) = @_;
	return value($on // $node, "SELECT coalesce(string_agg(place || ':' || resident_lists, ' ' ORDER BY place), '')
		FROM pg_stat_pgwarp_devices WHERE indexname = '$index'");
}

# The thousand answers of one device, and those of two.
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 40, 'on one device');
my $answers = "SET enable_seqscan = off; SET ivfpq.executor = service;
	CREATE TABLE %s AS SELECT q, (SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY v <-> vec(q + %s, 16) LIMIT 10) AS s) AS ids
	FROM generate_series(%s) AS q";
value($node, sprintf($answers, 'one_device', 5000, '1, 1000'));
like(lists_of('t_v'), qr/^\d:40$/, 'single: one device has it');
my ($first) = lists_of('t_v') =~ /^(\d)/;
is(error_of($node, 'ALTER INDEX t_v SET (placement = replicate)'), '', 'no word of a REINDEX');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 40, 'on both');
is(lists_of('t_v'), '0:40 1:40', 'replicate: both devices have it');
my @sessions = map { session($node) } 1 .. 2;
for my $i (0, 1)
{
	$sessions[$i]->query($_) for split /;/, sprintf($answers, "copies_$i", 5000, (1 + $i) . ', 1000, 2');
}
is(value($node, 'SELECT count(*), count(*) FILTER (WHERE a.ids = b.ids AND cardinality(a.ids) = 10) FROM one_device AS a
	JOIN (TABLE copies_0 UNION ALL TABLE copies_1) AS b USING (q)'), '1000|1000', 'equal answers');
my $searches = value($node, 'SELECT string_agg((batches > 300)::text, \' \') FROM pg_stat_pgwarp_devices');
is($searches, 'true true', 'from both devices');
is(value($node, 'SELECT i.lists, i.resident_lists, i.bytes = 2 * d.bytes, i.bytes > 2 * 4000 * 12, cpu_searches
	FROM pg_stat_pgwarp AS i JOIN pg_stat_pgwarp_devices AS d USING (indexname) WHERE place = 1'), '40|40|t|t|0',
	'pg_stat_pgwarp: lists once, bytes of both');

# What changes is seen by every session, from either copy. The two sessions prefer different ones.
$_->query("SET enable_seqscan = off; SET ivfpq.probes = 40; SET ivfpq.candidates = 500") for @sessions;
my $exact = session($node);
$exact->query('SET enable_seqscan = on; SET enable_indexscan = off');
my $next = 10000;
# By distances: of two rows as near as each other either may come first.
sub nearest_to { return "SELECT array_agg(d) FROM (SELECT v <-> vec($_[0], 16) AS d FROM t ORDER BY d LIMIT 5) AS s"; }
sub wrong_answers
{
	my $wrong = 0;
	for my $n (@_)
	{
		my $query = nearest_to($n);
		my $right = $exact->query($query);
		$wrong += grep { $_->query($query) ne $right } @sessions;
	}
	return $wrong;
}
# Both sessions are served soon, and get what the table has.
sub served
{
	my ($name) = @_;
	my ($wrong, $served) = (0, '');
	for (1 .. 100)
	{
		$wrong += wrong_answers(int(rand(4000)));
		$served = join ' ', map { scalar $_->query('SELECT path FROM ivfpq_last_scan()') } @sessions;
		last if $served eq 'service service';
		usleep(50_000);
	}
	is("$wrong $served", '0 service service', $name);
}
for my $round (1 .. 6)
{
	$exact->query("INSERT INTO t SELECT i, vec(i, 16) FROM generate_series($next, $next + 99) AS i");
	is(wrong_answers(map { $next + int(rand(100)) } 1 .. 5), 0, "inserts $round");
	$exact->query("DELETE FROM t WHERE id % 70 = $round");
	value($node, 'VACUUM (INDEX_CLEANUP ON) t') if $round % 2;
	$exact->query("UPDATE t SET v = vec(id::int + 1, 16) WHERE id % 50 = $round");
	is(wrong_answers(map { int(rand(4000)) } 1 .. 5), 0, "deletes and updates $round");
	$next += 100;
}
served('after all of them');
$exact->query('REINDEX INDEX t_v');
is(wrong_answers(1 .. 5), 0, 'REINDEX');
soon('0:40 1:40', 'both copies fill again by searches alone', sub { lists_of('t_v') }, sub { wrong_answers(int(rand(4000))) });
served('and serve');

# A worker that ends loses its copy; the other one serves, and the copy comes back.
my $worker = value($node, 'SELECT pid FROM pgwarp_devices() WHERE place = 0');
kill('TERM', $worker);
wait_until($node, "coalesce(pid, 0) <> $worker FROM pgwarp_devices() WHERE place = 0");
is($_->query('SELECT id FROM t ORDER BY v <-> vec(3001, 16) LIMIT 1; SELECT path FROM ivfpq_last_scan()') =~ s/^\d+\n//r, 'service',
	'ended: the other copy answers') for @sessions;
soon('0:40 1:40', 'ended: the copy fills again by searches alone', sub { lists_of('t_v') }, sub { wrong_answers(int(rand(4000))) });

# A standby has copies of its own.
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
both_serve($standby);
is(value($standby, "SELECT pgwarp_prewarm('t_v')"), 40, 'standby: both copies');
is(lists_of('t_v', $standby), '0:40 1:40', 'standby: on both devices');
my @there = map { session($standby) } 1 .. 2;
$_->query("SET enable_seqscan = off; SET ivfpq.probes = 40; SET ivfpq.candidates = 500") for @there;
for my $round (1 .. 3)
{
	$exact->query("DELETE FROM t WHERE id % 110 = $round; INSERT INTO t SELECT i, vec(i, 16) FROM generate_series($next, $next + 99) AS i");
	value($node, 'VACUUM (INDEX_CLEANUP ON) t');
	$node->wait_for_catchup($standby);
	my $wrong = 0;
	for my $n (map { ($next + int(rand(100)), int(rand(4000))) } 1 .. 4)
	{
		my $query = nearest_to($n);
		my $right = $exact->query($query);
		$wrong += grep { $_->query($query) ne $right } @there;
	}
	is($wrong, 0, "standby: changes $round");
	$next += 100;
}
$_->quit for @there;
$standby->stop;

# Fewer copies. A worker that is slow to forget one is not told with every search: what else it has to forget finds
# room in its queue.
make_table($node, 'w', 16, 1000);
value($node, 'CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 10, placement = replicate)');
value($node, "SELECT pgwarp_prewarm('w_v')");
is(value($node, 'SELECT indexes FROM pgwarp_devices() WHERE place = 1'), 2, 'two indexes are on the second device');
my $slow = value($node, 'SELECT pid FROM pgwarp_devices() WHERE place = 1');
kill('STOP', $slow);
value($node, 'ALTER INDEX t_v SET (placement = single)');
value($node, "DO \$\$BEGIN FOR i IN 1 .. 1100 LOOP PERFORM id FROM t ORDER BY v <-> vec(i, 16) LIMIT 1; END LOOP; END\$\$");
value($node, 'DROP INDEX w_v');
kill('CONT', $slow);
wait_until($node, 'indexes = 0 FROM pgwarp_devices() WHERE place = 1');
soon('\d:40', 'single: the other copy goes', sub { lists_of('t_v') }, sub { wrong_answers(1) });
value($node, 'ALTER INDEX t_v RESET (placement)');
is(value($node, "ALTER SYSTEM SET pgwarp.placement = 'replicate'; "), '', 'for all indexes');
value($node, 'SELECT pg_reload_conf()');
soon('0:40 1:40', 'pgwarp.placement: copies come with searches', sub { lists_of('t_v') }, sub { wrong_answers(int(rand(4000))) });
value($node, 'ALTER SYSTEM RESET pgwarp.placement');
value($node, 'SELECT pg_reload_conf()');

like(error_of($node, 'ALTER INDEX t_v SET (placement = all)'), qr/invalid value for enum option "placement": all\nDETAIL:  Valid values are "auto", "single", "replicate" and "shard"/,
	'an option that is none');
like(error_of($node, "ALTER SYSTEM SET pgwarp.placement = 'all'"), qr/invalid value for parameter "pgwarp.placement": "all"/,
	'a setting that is none');

# Small and much searched: 'auto' makes another copy, and none where it is not searched.
make_table($node, 'u', 16, 2000);
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 10)');
value($node, "SELECT pgwarp_prewarm('u_v')");
$_->query('SELECT id FROM u ORDER BY v <-> vec(1, 16) LIMIT 1') for (@sessions) x 20;
like(lists_of('u_v'), qr/^\d:10$/, 'auto: one device has it');
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/u.sql", "\\set n random(1, 2000)\nSELECT id FROM u ORDER BY v <-> vec(:n, 16) LIMIT 1;\n");
value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'slow'");
my $from = -s $node->logfile;
value($node, 'SELECT pg_reload_conf()');
for (1 .. 100)
{
	last if slurp_file($node->logfile, $from) =~ /debug_fault is now slow.*debug_fault is now slow/s;
	usleep(50_000);
}
$node->command_ok([ 'pgbench', '--no-vacuum', '--client=24', '--transactions=4', "--file=$folder/u.sql",
	'--port=' . $node->port, '--host=' . $node->host, 'postgres' ], 'many sessions search');
value($node, "ALTER SYSTEM RESET pgwarp.debug_fault");
value($node, 'SELECT pg_reload_conf()');
soon('0:10 1:10', 'auto: both devices have it', sub { lists_of('u_v') }, sub { $_->query('SELECT id FROM u ORDER BY v <-> vec(1, 16) LIMIT 1') for @sessions });

# Gone everywhere.
indexes_are_sound($node);
$_->quit for @sessions, $exact;
value($node, 'DROP INDEX t_v; DROP TABLE u');
wait_until($node, "(SELECT sum(used) FROM pgwarp_devices()) = $used");
is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp_devices'), 0, 'DROP: no copy is left');
is(value($node, 'SELECT sum(busy) FROM pgwarp_devices()'), 0, 'nor a search');
$node->stop;
done_testing();
