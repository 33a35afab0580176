# Lists that grow: the service gets what was appended and no list again, and answers what the table
# has, whoever appends, vacuums or is evicted meanwhile.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('growth', service => 1);
make_table($node, 't', 8, 20000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 12, m = 8)');
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 12, 'all lists are resident');
sub counted { return value($node, 'SELECT reloads, appends, received_bytes FROM pg_stat_pgwarp'); }
my $entry_bytes = 8 + 4 + 8;
is(counted(), '0|0|' . 20000 * $entry_bytes, 'what a prewarm sends');

# One row at a time, each followed by searches of two sessions.
my $reader = session($node);
my $exact = session($node);
$reader->query("SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 500");
$exact->query('SET enable_indexscan = off');
# By distances: of two rows as near as each other either may come first.
my $search = 'SELECT array_agg(d)
	FROM (SELECT v <-> vec(%1$d, 8) AS d FROM t ORDER BY v <-> vec(%1$d, 8) LIMIT 5) AS s';
sub wrong_answers
{
	my $wrong = 0;
	for my $n (@_)
	{
		my $query = sprintf($search, $n);
		$wrong += $reader->query($query) ne $exact->query($query);
	}
	return $wrong;
}
my $wrong = 0;
for my $n (1 .. 320)
{
	value($node, "INSERT INTO t VALUES (100000 + $n, vec(100000 + $n, 8))") if $n <= 20;
	$exact->query("INSERT INTO t VALUES (100000 + $n, vec(100000 + $n, 8))") if $n > 20;
	$wrong += wrong_answers(100000 + $n, int(rand(20000))) if $n % 4 == 0;
	$reader->query(sprintf($search, 100000 + $n));
}
is($wrong, 0, 'answers are those of the table');
is($reader->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'by the service');
my ($reloads, $appends, $received) = split /\|/, counted();
is($reloads, 0, 'no list was sent again');
cmp_ok($appends, '>', 0, 'lists were appended to');
cmp_ok($appends, '<', 320, 'not for every row');
cmp_ok($received - 20000 * $entry_bytes, '<=', 320 * $entry_bytes, 'no more than the new rows was sent');
cmp_ok($received - 20000 * $entry_bytes, '>', 100 * $entry_bytes, 'and most of them');
my ($lists_grown) = $reader->query('SELECT lists_grown FROM ivfpq_last_scan()');
cmp_ok($lists_grown, '<=', 12, 'the last scan');

# What few rows were appended is sent too, in a while.
sleep 1;
$reader->query(sprintf($search, 5));
wait_until($node, 'received_bytes = ' . 20320 * $entry_bytes . ' FROM pg_stat_pgwarp');
$reader->query(sprintf($search, 5));
is($reader->query('SELECT lists_grown FROM ivfpq_last_scan()'), 0, 'nothing is left to read from pages');

# By pages, beyond a load buffer, to lists that were empty before, and after VACUUM.
$exact->query('INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(200001, 260000) AS i');
is(wrong_answers(map { 200001 + int(rand(60000)) } 1 .. 10), 0, 'many pages');
is((split /\|/, counted())[0], 0, 'no list was sent again');
$exact->query('DELETE FROM t WHERE id % 3 = 0');
value($node, 'VACUUM (INDEX_CLEANUP ON) t');
is(wrong_answers(map { int(rand(20000)) } 1 .. 10), 0, 'after VACUUM');
$exact->query('INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(300001, 300100) AS i');
is(wrong_answers(map { 300001 + int(rand(100)) } 1 .. 10), 0, 'and inserts after that');
cmp_ok((split /\|/, counted())[0], '>', 0, 'lists that lost entries were sent again');

# A list that has just been appended to and loses an entry is sent whole at once.
make_table($node, 'u', 8, 2000);
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 1, m = 8)');
is(value($node, "SELECT pgwarp_prewarm('u_v')"), 1, 'the only list is resident');
my $nearest = 'SELECT id FROM u ORDER BY v <-> vec(7, 8) LIMIT 1';
$exact->query('INSERT INTO u SELECT i, vec(i, 8) FROM generate_series(2001, 2020) AS i');
$reader->query($nearest);
$exact->query('DELETE FROM u WHERE id = 7; VACUUM (INDEX_CLEANUP ON) u');
is($reader->query($nearest), $exact->query($nearest), 'a list changed: the answer of the table');
my $of_u = "FROM pg_stat_pgwarp WHERE indexname = 'u_v'";
for (1 .. 100)
{
	last if value($node, "SELECT reloads $of_u") > 0;
	usleep(50_000);
}
is(value($node, "SELECT reloads, appends $of_u"), '1|1', 'sent in part, and at once whole');
value($node, 'DROP TABLE u');

# Several sessions insert and search at once.
my @sessions = map { session($node) } 1 .. 3;
$_->query('SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100') for @sessions;
my $lost = 0;
for my $round (1 .. 60)
{
	for my $i (0 .. $#sessions)
	{
		my $n = 400000 + $round * 10 + $i;
		$sessions[$i]->query("INSERT INTO t VALUES ($n, vec($n, 8))");
		$lost += $sessions[($i + 1) % 3]->query("SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1") ne $n;
	}
}
is($lost, 0, 'every session sees what another inserted');
is(wrong_answers(map { 400010 + int(rand(600)) } 1 .. 10), 0, 'and what the table has');
$_->quit for @sessions, $reader, $exact;
indexes_are_sound($node);
$node->stop;
done_testing();
