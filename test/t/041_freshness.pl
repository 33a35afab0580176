# The service never knows better than the pages: what was committed is seen at once, what is gone is
# gone, whatever happened to rows, pages, files and servers since the lists were loaded.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('primary', service => 1, streaming => 1,
	conf => "max_prepared_transactions = 5\nhot_standby_feedback = on");
make_table($node, 't', 8, 4000);
value($node, 'ALTER TABLE t ADD PRIMARY KEY (id); CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 16)');
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
is(value($node, "SELECT pgwarp_prewarm('t_v')"), 16, 'all lists are resident');

my $reader = session($node);
$reader->query("SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100");
my $writer = session($node);

# The nearest row, and who found it.
sub nearest
{
	my ($n, $k) = @_;
	$k //= 1;
	return $reader->query("SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT $k) AS s");
}
sub path { return $reader->query('SELECT path FROM ivfpq_last_scan()'); }

is(nearest(7), '{7}', 'a row');
is(path(), 'service', 'from the service');

# If the service has all lists as they are now, a search reads none of their pages.
make_table($node, 'many_lists', 8, 3000);
value($node, 'CREATE INDEX many_v ON many_lists USING ivfpq (v) WITH (lists = 300)');
value($node, "SELECT pgwarp_prewarm('many_v')");
my $every_list = "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET ivfpq.probes = 300";
sub index_pages
{
	my ($in) = @_;
	my $plan = $in->query('EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF)
		SELECT id FROM many_lists ORDER BY v <-> vec(7, 8) LIMIT 1');
	my ($hit) = $plan =~ /shared.* hit=(\d+)/;
	my ($read) = $plan =~ /shared.* read=(\d+)/;
	return ($hit // 0) + ($read // 0);
}
# Pages that a session reads which has seen no list before: 300 or more if it must look at each.
sub pages_of_new_session
{
	my ($server) = @_;
	my $new = session($server);
	$new->query("$every_list; SET ivfpq.candidates = 1");
	my $pages = index_pages($new);
	$new->quit;
	return $pages;
}
# The service gets what it lacks from the searches, list after list.
sub reads_no_list_soon
{
	my ($server, $name) = @_;
	my $pages;
	for (1 .. 600)
	{
		$pages = pages_of_new_session($server);
		last if $pages < 100;
		select(undef, undef, undef, 0.02);
	}
	cmp_ok($pages, '<', 100, "$name: searches read no list again");
}
sub nearest_of_many
{
	my ($n) = @_;
	return $reader->query("SELECT id FROM many_lists ORDER BY v <-> vec($n, 8) LIMIT 1");
}
my $look = session($node);
$look->query("$every_list; SET ivfpq.candidates = 1");
$reader->query('SET ivfpq.probes = 300');
cmp_ok(pages_of_new_session($node), '<', 100, 'the first search reads no list') for 1 .. 3;
is(nearest_of_many(7), 7, 'a row of many lists');
index_pages($look);
cmp_ok(index_pages($look), '<', 20, 'nor does a later one');

$writer->query('INSERT INTO many_lists SELECT i, vec(i, 8) FROM generate_series(5001, 5100) AS i');
is(nearest_of_many(5050), 5050, 'inserted into many lists');
reads_no_list_soon($node, 'after inserts');
is(nearest_of_many($_), $_, 'an inserted row') for 5001, 5077;

# One list grows. Nothing else makes a search look into it.
$writer->query('INSERT INTO many_lists VALUES (6001, vec(6001, 8))');
cmp_ok(pages_of_new_session($node), '>=', 300, 'a change: the search looks at every list');
is(nearest_of_many(6001), 6001, 'one row inserted');
reads_no_list_soon($node, 'after one insert');
is(nearest_of_many(6001), 6001, 'still there');

# Lists that lose entries.
$writer->query('DELETE FROM many_lists WHERE id % 10 = 7');
value($node, 'VACUUM (INDEX_CLEANUP ON) many_lists');
$writer->query('INSERT INTO many_lists SELECT i, vec(i, 8) FROM generate_series(7001, 7300) AS i');
isnt(nearest_of_many(7), 7, 'deleted');
is(nearest_of_many(7150), 7150, 'where it was is another');
reads_no_list_soon($node, 'after VACUUM');
isnt(nearest_of_many(17), 17, 'deleted');
is(nearest_of_many(7151), 7151, 'inserted');

# A row moves from one list to another, under a search of every list.
my $moved = 0;
for my $n (8001 .. 8030)
{
	$writer->query("UPDATE many_lists SET v = vec($n, 8) WHERE id = 11");
	$moved += nearest_of_many($n) eq '11' && nearest_of_many($n - 1) ne '11';
	select(undef, undef, undef, 0.06) if $n % 3 == 0;
}
is($moved, 30, 'updates are seen at once');
reads_no_list_soon($node, 'after updates');
is(nearest_of_many(8030), 11, 'the last update');

# Searches of one list bring the others up to date, too.
sub search_one_list
{
	my ($server) = @_;
	my $new = session($server);
	$new->query("$every_list; SET ivfpq.probes = 1");
	select(undef, undef, undef, 0.1);
	$new->query('DO $$ BEGIN FOR i IN 1 .. 1200 LOOP
		PERFORM id FROM many_lists ORDER BY v <-> vec(7, 8) LIMIT 1; END LOOP; END $$');
	$new->quit;
}
$writer->query('INSERT INTO many_lists SELECT i, vec(i, 8) FROM generate_series(9001, 9500) AS i');
# A list at a time: on a busy machine it takes a while.
search_one_list($node) for 1 .. 4;
cmp_ok(pages_of_new_session($node), '<', 100, 'lists that no search has looked into');
is(nearest_of_many(9123), 9123, 'and what is in them');
$look->quit;
$reader->query('RESET ivfpq.probes');
value($node, 'DROP TABLE many_lists');

# Inserted, and committed.
$writer->query('INSERT INTO t VALUES (100001, vec(100001, 8))');
is(nearest(100001), '{100001}', 'an insert is seen by the next statement');
is(path(), 'service', 'of the service, with the end of the list from its page');
is($reader->query('SELECT lists_grown FROM ivfpq_last_scan()'), 1, 'one list has grown');
$writer->query('BEGIN; INSERT INTO t VALUES (100002, vec(100002, 8))');
isnt(nearest(100002), '{100002}', 'not before COMMIT');
is($writer->query('SET enable_seqscan = off; SELECT id FROM t ORDER BY v <-> vec(100002, 8) LIMIT 1'), 100002,
	'but by who inserted it');
$writer->query('COMMIT');
is(nearest(100002), '{100002}', 'and after');
$writer->query("BEGIN; INSERT INTO t VALUES (100003, vec(100003, 8)); PREPARE TRANSACTION 'p'");
isnt(nearest(100003), '{100003}', 'not when prepared');
$writer->query("COMMIT PREPARED 'p'");
is(nearest(100003), '{100003}', 'but when committed');

# Enough rows for lists to grow by pages.
$writer->query('INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(200001, 212000) AS i');
my $wrong = 0;
for my $n (map { 200001 + int(rand(12000)) } 1 .. 100) { $wrong += nearest($n) ne "{$n}"; }
is($wrong, 0, 'thousands of inserts');
is(path(), 'service', 'still the service');
is(value($node, 'SELECT reloads, appends > 0 FROM pg_stat_pgwarp'), '0|t', 'what was appended was sent');

# Deleted, vacuumed, and the TIDs used again, many times.
for my $round (1 .. 5)
{
	my $from = 300000 + $round * 10000;
	$writer->query("DELETE FROM t WHERE id % 5 = $round - 1");
	isnt(nearest(300000 + $round), '{}', 'there are rows');
	value($node, 'VACUUM t');
	$writer->query("INSERT INTO t SELECT i, vec(i, 8) FROM generate_series($from, $from + 3000) AS i");
	my ($lost, $invented) = (0, 0);
	for my $n (map { $from + int(rand(3000)) } 1 .. 30) { $lost += nearest($n) ne "{$n}"; }
	for my $n (map { 5 * int(rand(800)) + $round - 1 } 1 .. 30) { $invented += nearest($n) eq "{$n}"; }
	is("$lost $invented", '0 0', "round $round: nothing lost, nothing invented");
}
$reader->query('RESET ivfpq.target_recall');
compares($node, 't', 'v <-> vec(0, 8)', 'a whole scan');
$reader->query('SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100');

# A cursor over a VACUUM and reuse of what it has not fetched yet.
$reader->query('BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY v <-> vec(1, 8)');
$reader->query('FETCH 5 FROM c');
$writer->query('DELETE FROM t WHERE id % 7 = 0');
value($node, 'VACUUM t');
$writer->query('INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(400001, 404000) AS i');
my $rest = $reader->query('FETCH ALL FROM c');
my @rest = split /\n/, $rest;
is(scalar(grep { $_ > 400000 } @rest), 0, 'a cursor sees no later rows');
cmp_ok(scalar(grep { $_ % 7 == 0 } @rest), '>', 100, 'and all earlier ones');
$reader->query('COMMIT');

# Files that are replaced.
$writer->query('REINDEX INDEX t_v');
is(nearest(400007, 1), '{400007}', 'REINDEX');
is(path(), 'service', 'served anew');
$writer->query('REINDEX INDEX CONCURRENTLY t_v');
is(nearest(400007), '{400007}', 'REINDEX CONCURRENTLY');
$writer->query('BEGIN; TRUNCATE t; INSERT INTO t VALUES (500001, vec(500001, 8))');
$writer->query('ROLLBACK');
is(nearest(400007), '{400007}', 'TRUNCATE rolled back');
$writer->query('BEGIN; REINDEX INDEX t_v; SELECT id FROM t ORDER BY v <-> vec(1, 8) LIMIT 1; ROLLBACK');
is(nearest(400007), '{400007}', 'REINDEX rolled back');
$writer->query('CREATE TABLE keep AS SELECT * FROM t; TRUNCATE t');
is(nearest(1), '', 'TRUNCATE');
$writer->query('INSERT INTO t SELECT * FROM keep');
is(nearest(400007), '{400007}', 'filled again');
$writer->query('VACUUM t');
is(nearest(400007), '{400007}', 'trained by VACUUM');
is(path(), 'service', 'served');
$writer->query('DROP INDEX t_v; CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 9)');
is(nearest(400007), '{400007}', 'dropped and made again');

# A copy of the database: the same files' names and contents, and a life of its own.
$reader->quit;
$writer->quit;
value($node, "SELECT pgwarp_prewarm('t_v')");
$node->safe_psql('template1', 'CREATE DATABASE twin TEMPLATE postgres');
$node->safe_psql('twin', 'DELETE FROM t WHERE id = 400007');
my $ask = "SET search_path = public, ivfpq_test; SET enable_seqscan = off; SET ivfpq.executor = 'service';
	SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SELECT id FROM t ORDER BY v <-> vec(400007, 8) LIMIT 1";
isnt($node->safe_psql('twin', $ask), 400007, 'deleted in the copy');
is($node->safe_psql('postgres', $ask), 400007, 'not in the template');
$node->safe_psql('twin', 'VACUUM t');
isnt($node->safe_psql('twin', $ask), 400007, 'vacuumed in the copy');
is($node->safe_psql('postgres', $ask), 400007, 'still in the template');

# A standby: fed by WAL only, with a service of its own.
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
wait_until($standby, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
my $there = session($standby);
$there->query("SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100");
sub nearest_there
{
	my ($n) = @_;
	$node->wait_for_catchup($standby);
	return $there->query("SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1");
}
is(nearest_there(400007), 400007, 'standby: a row');
is($there->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'from its service');
value($node, 'INSERT INTO t VALUES (600001, vec(600001, 8))');
is(nearest_there(600001), 600001, 'standby: an insert');
for my $round (1 .. 3)
{
	my $from = 700000 + $round * 10000;
	value($node, "DELETE FROM t WHERE id % 3 = $round - 1");
	value($node, 'VACUUM t');
	value($node, "INSERT INTO t SELECT i, vec(i, 8) FROM generate_series($from, $from + 2000) AS i");
	my ($lost, $invented) = (0, 0);
	for my $n (map { $from + int(rand(2000)) } 1 .. 20) { $lost += nearest_there($n) ne "$n"; }
	for my $n (map { 3 * int(rand(1000)) + $round - 1 } 1 .. 20) { $invented += nearest_there($n) eq "$n"; }
	is("$lost $invented", '0 0', "standby, round $round: nothing lost, nothing invented");
}
value($node, 'REINDEX INDEX t_v');
is(nearest_there(730500), 730500, 'standby: REINDEX');
# A database may have the number of one that was dropped, and as a copy of the same template the same files. Its row is in the
# place of another one. A search loads the lists while DROP DATABASE waits, and nothing tells the standby of a drop.
if (server_version() >= 15)
{
	value($node, 'CREATE DATABASE mold');
	$node->safe_psql('mold', 'CREATE EXTENSION pgwarp');
	$node->safe_psql('mold', slurp_file('test/include/ivfpq.sql'));
	$node->safe_psql('mold', 'CREATE TABLE copied (id bigint, v vector(8));
		INSERT INTO copied SELECT i, ivfpq_test.vec(i, 8) FROM generate_series(1, 1500) AS i;
		CREATE INDEX copied_v ON copied USING ivfpq (v) WITH (lists = 1)');
	for my $n (5001 .. 5003)
	{
		value($node, 'CREATE DATABASE reborn TEMPLATE mold OID 60000');
		$node->safe_psql('reborn', "INSERT INTO copied VALUES ($n, ivfpq_test.vec($n, 8))");
		$node->wait_for_catchup($standby);
		my $search = "SELECT id FROM copied ORDER BY v <-> ivfpq_test.vec($n, 8) LIMIT 1";
		my @inside = map { session($_, database => 'reborn') } $node, $standby;
		for my $session (@inside)
		{
			my $where = $session == $inside[0] ? 'a database' : 'standby: a database';
			$session->query("SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET ivfpq.candidates = 5");
			is($session->query($search), $n, "$where of the number of another: its row $n") for 1 .. 2;
			is($session->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'by the service');
		}
		start($writer, 'DROP DATABASE reborn');
		wait_until($node, "count(*) = 1 FROM pg_locks WHERE classid = 'pg_database'::regclass
			AND mode = 'AccessExclusiveLock' AND granted");
		is($inside[0]->query($search), $n, 'searched while it is to be dropped');
		$_->quit for @inside;
		finish($writer);
	}
}
# Replay counts no changes. So what the service has of the lists is never known to be all, until the
# server has been promoted and lists were looked at again.
make_table($node, 'many_lists', 8, 3000);
value($node, 'CREATE INDEX many_v ON many_lists USING ivfpq (v) WITH (lists = 300)');
$node->wait_for_catchup($standby);
value($standby, "SELECT pgwarp_prewarm('many_v')");
cmp_ok(pages_of_new_session($standby), '>=', 300, 'standby: a search looks at every list') for 1 .. 2;
value($node, 'INSERT INTO many_lists VALUES (9001, vec(9001, 8))');
$node->wait_for_catchup($standby);
is($there->query('SELECT id FROM many_lists ORDER BY v <-> vec(9001, 8) LIMIT 1'), 9001, 'standby: replayed');
$standby->promote;
cmp_ok(pages_of_new_session($standby), '>=', 300, 'promoted: a search looks at every list');
search_one_list($standby);
reads_no_list_soon($standby, 'and reads no list when each was looked at');
value($standby, 'INSERT INTO many_lists VALUES (9002, vec(9002, 8))');
is($there->query('SELECT id FROM many_lists ORDER BY v <-> vec(9002, 8) LIMIT 1'), 9002, 'promoted: an insert');
is($there->query('SELECT id FROM many_lists ORDER BY v <-> vec(9001, 8) LIMIT 1'), 9001, 'what was replayed');
is($there->query('SELECT id FROM t ORDER BY v <-> vec(730500, 8) LIMIT 1'), 730500, 'promoted');
$there->query('INSERT INTO t VALUES (800001, vec(800001, 8))');
is($there->query('SELECT id FROM t ORDER BY v <-> vec(800001, 8) LIMIT 1'), 800001, 'written to');
is($there->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'by its service');
for my $n (800002 .. 800010)
{
	value($standby, "INSERT INTO t VALUES ($n, vec($n, 8))");
	is($there->query("SELECT id FROM t ORDER BY v <-> vec($n, 8) LIMIT 1"), $n, 'by another session');
}
$there->quit;
indexes_are_sound($standby, 'the standby is sound');
$standby->stop;

# After a crash; an unlogged table is empty then.
value($node, 'CREATE UNLOGGED TABLE n (id bigint, v vector(8))');
value($node, 'INSERT INTO n SELECT i, vec(i, 8) FROM generate_series(1, 2000) AS i');
value($node, 'CREATE INDEX n_v ON n USING ivfpq (v) WITH (lists = 4)');
my $unlogged = "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100;
	SELECT id FROM n ORDER BY v <-> vec(5, 8) LIMIT 1";
is(value($node, $unlogged), 5, 'an unlogged table');
value($node, 'INSERT INTO t VALUES (900001, vec(900001, 8))');
crash($node);
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
is(value($node, $ask =~ s/400007/900001/r), 900001, 'after a crash');
is(value($node, $unlogged), '', 'the unlogged table is empty');
value($node, 'INSERT INTO n SELECT i + 10000, vec(i, 8) FROM generate_series(1, 20000) AS i');
value($node, 'VACUUM n');
is(value($node, $unlogged), 10005, 'and filled anew');
indexes_are_sound($node);
$node->stop;
done_testing();
