# Copies of the parts of an index fill in bounded time, also with lists that no search looks into, and a search sends one
# model. Parts of different size: a search that decides by itself how many lists it takes finds on three devices no less than
# on one.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use IvfpqTest;

plan skip_all => 'needs devices with little memory' if ($ENV{PGWARP_TEST_DEVICES} // 'host') ne 'host';
my $node = new_node('shard_fill', service => 1, conf => <<"END");
pgwarp.devices = 'host,host,host,host'
pgwarp.device_memory = 1MB
pgwarp.service_timeout = 10s
max_worker_processes = 16
enable_seqscan = off
END
sub all_serve { wait_until($node, 'bool_and(serves) FROM pgwarp_devices()'); }
# Of each device: its part, and how many lists it has beyond those that it should have.
sub parts { return value($node, "SELECT coalesce(string_agg(part || ':' || resident_lists - own_lists, ' ' ORDER BY place), '') FROM pg_stat_pgwarp_devices"); }
all_serve();
value($node, "CREATE TABLE s (id bigint, v vector(16), a bigint, b bigint, c bigint, d bigint);
	INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series(1, 19000) AS i;
	CREATE INDEX s_v ON s USING ivfpq (v, a, b, c, d) WITH (lists = 64, m = 16)");
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'all lists are resident');
is(parts(), '0:0 1:0 0:0 1:0', 'two parts, two devices each');

# A change concerns one part; the other still has a complete answer. Together they are one, of the service.
my $session = session($node);
$session->query('SET enable_seqscan = off; SET ivfpq.probes = 12; SET ivfpq.candidates = 60');
for my $setting ('SET ivfpq.probes = 12', 'RESET ivfpq.probes')
{
	my %seen;
	$session->query($setting);
	for my $n (30001 .. 30020)
	{
		$session->query("INSERT INTO s SELECT $n, vec($n, 16), 1, 1, 1, 1");
		$seen{ $session->query("SELECT id = $n FROM s ORDER BY v <-> vec($n, 16) LIMIT 1; SELECT path, lists_read FROM ivfpq_last_scan()") }++;
		$session->query("DELETE FROM s WHERE id = $n");
	}
	is(join(' ', %seen), "t\nservice|0 20", "$setting: rows that were just inserted are found, by the service");
}

# A worker that ends loses its copy. Searches of one list bring all of it back, and meanwhile ask the other copy.
$session->query('SET ivfpq.probes = 1; SET ivfpq.candidates = 10');
my $query = 'SELECT id FROM s ORDER BY v <-> vec(7, 16) LIMIT 1';
my $lists_read = 0;
sub search
{
	$session->query($query);
	$lists_read += $session->query('SELECT lists_read FROM ivfpq_last_scan()');
	return;
}
sub end_workers
{
	my $places = join ', ', @_;
	my $pids = value($node, "SELECT string_agg(pid::text, ' ') FROM pgwarp_devices() WHERE place IN ($places)");
	kill('TERM', $_) for split / /, $pids;
	(my $in = $pids) =~ s/ /, /g;
	wait_until($node, "count(*) = 0 FROM pgwarp_devices() WHERE pid IN ($in)");
	all_serve();
	return;
}
for my $place (2, 3)
{
	end_workers($place);
	isnt(parts(), '0:0 1:0 0:0 1:0', "device $place ends: its copy is gone");
	$lists_read = 0;
	my $searches = 0;
	while ($searches < 60 && parts() ne '0:0 1:0 0:0 1:0')
	{
		search();
		$searches++;
		usleep(30_000);
	}
	is(parts(), '0:0 1:0 0:0 1:0', "device $place: all lists of its copy are back after $searches searches of one list");
	is($lists_read, 0, "device $place: no search had to read a list for it");
}
# Both copies of a part: the list that is searched comes at once, the others soon.
end_workers(0, 2);
soon('0:0 1:0 0:0 1:0', 'a whole part ends: all of its copies fill', \&parts, \&search);
# By prewarming, at once.
end_workers(1, 2);
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'prewarm: all lists');
is(parts(), '0:0 1:0 0:0 1:0', 'prewarm: in every copy');

# Nothing has to give way for copies that others have.
make_table($node, 't', 16, 6000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 20, m = 16, placement = replicate)');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 20, 'another index beside it');
my $evictions = value($node, "SELECT evictions FROM pg_stat_pgwarp WHERE indexname = 't_v'");
end_workers(3);
for (1 .. 20)
{
	search();
	usleep(30_000);
}
is(value($node, "SELECT evictions - $evictions FROM pg_stat_pgwarp WHERE indexname = 't_v'"), 0, 'filling evicts none of its lists');
value($node, 'DROP TABLE t');

# From nothing: one search sends the model to one device.
$session->quit;
$node->restart;
all_serve();
$session = session($node);
is($session->query("SET enable_seqscan = off; SET ivfpq.probes = 1; $query"), 7, 'the first search of a server');
wait_until($node, 'count(*) >= 1 FROM pg_stat_pgwarp_devices');
usleep(200_000);
is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp_devices'), 1, 'it sends one model');
soon('0:0 1:0 0:0 1:0', 'others bring the rest', \&parts, sub { $session->query($query) });
$session->quit;
indexes_are_sound($node);

# Effort: one device beside three.
value($node, "DROP TABLE s; CREATE TABLE s (id bigint, v vector(16), a bigint, b bigint, c bigint, d bigint);
	INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series(1, 14500) AS i;
	CREATE INDEX s_v ON s USING ivfpq (v, a, b, c, d) WITH (lists = 64, m = 16)");
sub answers
{
	my ($name, $devices, $memory) = @_;
	$node->append_conf('postgresql.conf', "pgwarp.devices = '$devices'\npgwarp.device_memory = $memory");
	$node->restart;
	all_serve();
	is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, "$name: all lists are resident");
	value($node, "SET ivfpq.executor = service; CREATE TABLE $name AS SELECT q, k, (SELECT sum(d) FROM
		(SELECT v <-> vec(q + 50000, 16) AS d FROM s ORDER BY d LIMIT k) AS x) AS distances FROM generate_series(1, 500) AS q, unnest('{10,300}'::int[]) AS k");
	return;
}
answers('one_device', 'host', '300MB');
answers('three_devices', 'host,host,host', '1MB');
is(value($node, "SELECT string_agg(part::text, ' ' ORDER BY place) FROM pg_stat_pgwarp_devices"), '0 1 0', 'three devices: a part on two of them');
# The sum of distances says which answer is nearer.
my ($worse, $better) = split /\|/, value($node, "SELECT string_agg(worse::text, ' ' ORDER BY k), string_agg(better::text, ' ' ORDER BY k) FROM
	(SELECT k, count(*) FILTER (WHERE b.distances > a.distances * 1.000001) AS worse, count(*) FILTER (WHERE b.distances < a.distances * 0.999999) AS better
	FROM one_device AS a JOIN three_devices AS b USING (q, k) GROUP BY k) AS s");
note("of 500 answers with 10 rows, and with 300: worse $worse, better $better");
my @worse = split / /, $worse;
my @better = split / /, $better;
cmp_ok($worse[0], '<=', 10, '10 rows: hardly any answer is worse');
cmp_ok($worse[1], '<=', $better[1], '300 rows: no more are worse than better');
indexes_are_sound($node);
$node->stop;
done_testing();
