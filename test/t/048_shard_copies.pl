# An index that is larger than a device, on four of them, with 'auto': two parts, each on two devices. Searches have the
# answers of the CPU, ask different devices, and read no pages while one device of each part serves, whatever changes; memory
# that others need is given back.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use IvfpqTest;

my $seed = seed_of();
plan skip_all => 'needs devices with little memory' if ($ENV{PGWARP_TEST_DEVICES} // 'host') ne 'host';
my $node = new_node('shard_copies', service => 1, conf => <<"END");
pgwarp.devices = 'host,host,host,host'
pgwarp.device_memory = 1MB
pgwarp.service_timeout = 10s
pgwarp.watchdog_timeout = 0
max_connections = 40
max_worker_processes = 16
enable_seqscan = off
END
sub all_serve { wait_until($node, 'bool_and(serves) FROM pgwarp_devices()'); }
all_serve();
my $used = value($node, 'SELECT sum(used) FROM pgwarp_devices()');

# Places of each part.
sub parts_of
{
	return value($node, "SELECT coalesce(string_agg(places, ' ' ORDER BY part), '') FROM (SELECT part, part || ':' || string_agg(place::text, ',' ORDER BY place)
		AS places FROM pg_stat_pgwarp_devices WHERE indexname = '$_[0]' AND part IS NOT NULL GROUP BY part) AS s");
}
# Whether each device has its part, and nothing else.
sub settled
{
	return value($node, "SELECT count(*) || ' devices, ' || bool_and(resident_lists = own_lists) FROM pg_stat_pgwarp_devices WHERE indexname = '$_[0]'");
}

# 1.2 MB of lists, and 768 kB of room on each.
value($node, "CREATE TABLE s (id bigint, v vector(16), a bigint, b bigint, c bigint, d bigint);
	INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series(1, 19000) AS i;
	CREATE INDEX s_v ON s USING ivfpq (v, a, b, c, d) WITH (lists = 64, m = 16)");
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'all lists are resident');
is(parts_of('s_v'), '0:0,2 1:1,3', 'two parts, two devices each');
is(settled('s_v'), '4 devices, true', 'each has its part');
is(value($node, "SELECT sum(own_lists) FROM pg_stat_pgwarp_devices WHERE indexname = 's_v'"), 128, 'every list is there twice');
is(value($node, "SELECT i.lists, i.resident_lists, i.bytes = sum(d.bytes) FROM pg_stat_pgwarp AS i JOIN pg_stat_pgwarp_devices AS d
	USING (indexname) WHERE indexname = 's_v' GROUP BY 1, 2, i.bytes"), '64|64|t', 'pg_stat_pgwarp counts each once, and the bytes of all');

# The answers of the CPU, from all devices.
my @sessions = map { session($node) } 1 .. 4;
$_->query('SET enable_seqscan = off; SET ivfpq.probes = 12; SET ivfpq.candidates = 60') for @sessions;
sub nearest_ids { return "SELECT array_agg(id) FROM (SELECT id FROM s WHERE $_[1] ORDER BY v <-> vec($_[0] + 50000, 16) LIMIT 10) AS x"; }
for my $condition ('true', 'a = 3', 'a < 2 AND b > 5000', 'd = ANY (ARRAY[1, 2, 3, 4, 5, 6])')
{
	value($node, "DROP TABLE IF EXISTS s_cpu; SET ivfpq.probes = 12; SET ivfpq.candidates = 60; SET ivfpq.executor = cpu;
		CREATE TABLE s_cpu AS SELECT q, (" . nearest_ids('q', $condition) . ") AS ids FROM generate_series(1, 400) AS q");
	my $before = value($node, "SELECT cpu_searches FROM pg_stat_pgwarp WHERE indexname = 's_v'");
	is(join(' ', map { scalar $_->query("SET ivfpq.executor = service; SELECT count(*) FROM s_cpu WHERE ids = (" . nearest_ids('q', $condition) . ')') } @sessions),
		'400 400 400 400', "WHERE $condition: the answers of the CPU");
	is(value($node, "SELECT cpu_searches - $before FROM pg_stat_pgwarp WHERE indexname = 's_v'"), 0, "WHERE $condition: from the devices");
}
is(value($node, "SELECT count(*) FROM pg_stat_pgwarp_devices WHERE indexname = 's_v' AND batches >= 200"), 4, 'each device was asked');
is(parts_of('s_v') . ' ' . settled('s_v'), '0:0,2 1:1,3 4 devices, true', 'and nothing was moved for it');

# A scan goes on where it left off, on the devices that it has asked.
$sessions[0]->query('SET enable_sort = off; RESET ivfpq.probes; RESET ivfpq.candidates');
for my $limit (50, 2000)
{
	is($sessions[0]->query("SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM s WHERE a = 3 ORDER BY v <-> vec(17, 16) LIMIT $limit) AS x"),
		"$limit|$limit", "LIMIT $limit: each row once");
	is($sessions[0]->query('SELECT path, lists_read FROM ivfpq_last_scan()'), 'service|0', "LIMIT $limit: from the devices");
}
$sessions[0]->query('BEGIN; DECLARE c CURSOR FOR SELECT id FROM s WHERE b <= 18000 ORDER BY v <-> vec(18, 16)');
my @ids = map { split /\n/, $sessions[0]->query('FETCH 1000 FROM c') } 1 .. 19;
my %different = map { $_ => 1 } @ids;
is(@ids . ' ' . keys(%different), '18000 18000', 'a cursor: every row once');
$sessions[0]->query('COMMIT');
make_recall_function($node, 16);
cmp_ok(value($node, "SELECT recall_of('s', '$_', '[60000, 60200)', 10)"), '>', 0.93, "WHERE $_: the recall asked for") for 'true', 'a = 3';

# What changes is seen by every session, whichever copy answers.
$_->query('SET ivfpq.executor = auto; SET ivfpq.probes = 64; SET ivfpq.candidates = 600') for @sessions;
my $exact = session($node);
$exact->query('SET enable_seqscan = on; SET enable_indexscan = off');
sub wrong_answers
{
	my $wrong = 0;
	for my $n (@_)
	{
		# By distances: of two rows as near as each other either may come first.
		my $query = "SELECT array_agg(e) FROM (SELECT v <-> vec($n, 16) AS e FROM s WHERE " . ($n % 3 ? 'true' : 'a < 3') . ' ORDER BY e LIMIT 5) AS x';
		my $right = $exact->query($query);
		$wrong += grep { $_->query($query) ne $right } @sessions;
	}
	return $wrong;
}
sub some { return map { int(rand(19000)) } 1 .. $_[0]; }
sub paths { return join ' ', map { scalar $_->query('SELECT path, lists_read FROM ivfpq_last_scan()') } @sessions; }
my $from_devices = join ' ', ('service|0') x @sessions;
# All sessions are served by devices soon, and get what the table has.
sub served
{
	my ($name) = @_;
	my ($wrong, $paths) = (0, '');
	for (1 .. 200)
	{
		$wrong += wrong_answers(some(1));
		$paths = paths();
		last if $paths eq $from_devices;
		usleep(25_000);
	}
	is("$wrong $paths", "0 $from_devices", $name);
	return;
}
my $next = 30000;
for my $round (1 .. 5)
{
	$exact->query("INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series($next, $next + 99) AS i");
	is(wrong_answers(map { $next + int(rand(100)) } 1 .. 5), 0, "inserts $round");
	$exact->query("DELETE FROM s WHERE id % 70 = $round");
	value($node, 'VACUUM (INDEX_CLEANUP ON) s') if $round % 2;
	$exact->query("UPDATE s SET v = vec(id::int + 1, 16) WHERE id % 250 = $round");
	is(wrong_answers(some(5)), 0, "deletes and updates $round");
	$next += 100;
}
served('after all of them');
my $search = sub { wrong_answers(some(1)) };
soon('4 devices, true', 'lists are where they were', sub { settled('s_v') }, $search);
value($node, 'REINDEX INDEX s_v');
is(wrong_answers(1 .. 5), 0, 'REINDEX');
soon('4 devices, true', 'REINDEX: lists come back to all copies by searches alone', sub { settled('s_v') }, $search);
is(parts_of('s_v'), '0:0,2 1:1,3', 'REINDEX: in two parts again');
served('REINDEX: and serve');

# A worker ends: the other device that has its part answers, at once, and no page is read. It gets its copy back.
sub pid_of { return value($node, "SELECT coalesce(pid, 0) FROM pgwarp_devices() WHERE place = $_[0]"); }
sub end_worker
{
	my ($place) = @_;
	my $worker = pid_of($place);
	kill('TERM', $worker);
	wait_until($node, "coalesce(pid, 0) <> $worker FROM pgwarp_devices() WHERE place = $place");
	return;
}
for my $place (0, 3)
{
	my $before = value($node, "SELECT fallbacks FROM pg_stat_pgwarp WHERE indexname = 's_v'");
	end_worker($place);
	my ($wrong, $read) = (0, 0);
	for (1 .. 5)
	{
		$wrong += wrong_answers(some(1));
		$read += grep { !/^service\|0$/ } split / /, paths();
	}
	is($wrong, 0, "device $place ends: right answers");
	cmp_ok($read, '<=', 8, "device $place ends: from the others");
	is(value($node, "SELECT fallbacks - $before FROM pg_stat_pgwarp WHERE indexname = 's_v'"), 0, "device $place ends: no search by the CPU instead");
	soon('4 devices, true', "device $place: its copy comes back by searches alone", sub { settled('s_v') }, $search);
	is(parts_of('s_v'), '0:0,2 1:1,3', "device $place: has the part that it had");
	served("device $place: and serves");
}

# A worker that hangs: a search waits for it for half of the time, and asks the other then. After ten seconds the parts are
# still what they were.
my $patient = session($node);
$patient->query("SET enable_seqscan = off; SET pgwarp.service_timeout = '2s'; SET ivfpq.probes = 64; SET ivfpq.candidates = 600");
sub nearest { return $patient->query("SELECT id FROM s ORDER BY v <-> vec($_[0], 16) LIMIT 1"); }
my ($there) = value($node, 'SELECT id FROM s WHERE id > 5000 AND id % 250 = 100 ORDER BY id LIMIT 1');
# Of two devices that are equally busy, each session prefers one.
my $batches = sub { return value($node, "SELECT string_agg(batches::text, ' ' ORDER BY place) FROM pg_stat_pgwarp_devices WHERE indexname = 's_v' AND part = 1") };
my @before = split / /, $batches->();
nearest($there);
my @after = split / /, $batches->();
my ($preferred, $other) = $after[0] > $before[0] ? (1, 3) : (3, 1);
my $silent = pid_of($preferred);
kill('STOP', $silent);
my $begin = time;
my $right = 0;
for (1 .. 6)
{
	$right += nearest($there) eq $there;
}
is($right, 6, 'silent: right answers');
cmp_ok(time - $begin, '<', 4, 'silent: all of them in the time for one');
is($patient->query('SELECT path, lists_read FROM ivfpq_last_scan()'), 'service|0', 'silent: from the other device');
my ($late, $elsewhere) = (0, 0);
for (1 .. 60)
{
	$begin = time;
	$right += nearest($there) eq $there;
	$late += time - $begin > 0.5;
	$elsewhere += $patient->query('SELECT path, lists_read FROM ivfpq_last_scan()') ne 'service|0';
	usleep(200_000);
}
is("$right $late $elsewhere", '66 0 0', 'silent for more than ten seconds: answers of the others, in time, without pages');
is(parts_of('s_v'), "0:0,2 1:$other", 'the parts are what they were');
kill('CONT', $silent);
soon('0:0,2 1:1,3', 'silent no longer: it has its part', sub { parts_of('s_v') }, $search);
soon('4 devices, true', 'and its lists', sub { settled('s_v') }, $search);
served('silent no longer');

# Both devices that have a part: its lists are read from pages, and come back.
end_worker($_) for 0, 2;
is(wrong_answers(some(3)), 0, 'a whole part ends: right answers');
soon('4 devices, true', 'a whole part ends: it comes back', sub { settled('s_v') }, $search);
served('a whole part ends: and serves');

# Others need the memory: fewer copies, or none. What they leave is used again.
make_table($node, 't', 16, 10000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 40, m = 16, placement = replicate)');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 40, 'another index takes 450 kB of each device');
soon('0:0 1:1 2:2 3:3', 'no room for copies', sub { parts_of('s_v') }, $search);
soon('4 devices, true', 'each device has a part of its own', sub { settled('s_v') }, sub { $search->(); value($node, "SELECT pgwarp_prewarm('t_v')"); });
served('without copies');
value($node, 'DROP TABLE t');
soon('0:0,2 1:1,3', 'room for copies again', sub { parts_of('s_v') }, $search);
soon('4 devices, true', 'and they are there', sub { settled('s_v') }, $search);
served('with copies again');

# One part for each device where that is what is asked for, and one copy of each list.
value($node, 'ALTER INDEX s_v SET (placement = shard)');
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'shard: all lists');
is(parts_of('s_v') . ' ' . settled('s_v'), '0:0 1:1 2:2 3:3 4 devices, true', 'shard: a part each');
served('shard');
value($node, 'ALTER INDEX s_v RESET (placement)');
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'auto: all lists');
is(parts_of('s_v') . ' ' . settled('s_v'), '0:0,2 1:1,3 4 devices, true', 'auto: copies');
served('auto');

# Gone everywhere.
indexes_are_sound($node);
$_->quit for @sessions, $exact, $patient;
value($node, 'DROP TABLE s');
wait_until($node, "(SELECT sum(used) FROM pgwarp_devices()) = $used");
is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp_devices'), 0, 'DROP: nothing is left');

# Three devices: the part with two owners is twice as large, so that each has as much to do.
$node->append_conf('postgresql.conf', "pgwarp.devices = 'host,host,host'");
$node->restart;
all_serve();
value($node, "CREATE TABLE s (id bigint, v vector(16), a bigint, b bigint, c bigint, d bigint);
	INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series(1, 14500) AS i;
	CREATE INDEX s_v ON s USING ivfpq (v, a, b, c, d) WITH (lists = 64, m = 16)");
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, 'three devices: all lists');
is(parts_of('s_v') . ' ' . settled('s_v'), '0:0,2 1:1 3 devices, true', 'three devices: a part on two of them');
is(value($node, "SELECT string_agg((own_lists BETWEEN CASE part WHEN 0 THEN 36 ELSE 14 END AND CASE part WHEN 0 THEN 50 ELSE 28 END)::text, ' ')
	FROM pg_stat_pgwarp_devices WHERE indexname = 's_v'"), 'true true true', 'which is twice as large as the other');
@sessions = map { session($node) } 1 .. 2;
$_->query('SET enable_seqscan = off; SET ivfpq.probes = 64; SET ivfpq.candidates = 600') for @sessions;
$from_devices = join ' ', ('service|0') x @sessions;
$exact = session($node);
$exact->query('SET enable_seqscan = on; SET enable_indexscan = off');
served('three devices');
end_worker(2);
my $wrong = wrong_answers(some(4));
is("$wrong " . paths(), "0 $from_devices", 'three devices: one of the two ends');
soon('3 devices, true', 'three devices: its copy comes back', sub { settled('s_v') }, $search);
end_worker(1);
is(wrong_answers(some(3)), 0, 'three devices: the only one of a part ends');
soon('3 devices, true', 'three devices: it comes back', sub { settled('s_v') }, $search);
served('three devices: and serve');
indexes_are_sound($node);
unlike(slurp_file($node->logfile), qr/was terminated by signal|terminating any other active/, 'and nothing crashed');
$_->quit for @sessions, $exact;
$node->stop;
done_testing();
