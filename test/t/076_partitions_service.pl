# The service is asked for all partitions of a table at once: with room for some or hardly any of them, cancelled, of a
# worker that hangs, fails or ends, and while rows change. The rows are those of an exact search, each time.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
# An index trains itself from 1,000 rows on.
my ($parts, $rows) = (18, 21600);
my $least_at_once = 16; # searches_at_once of extension/service/service.h
my $node = new_node('partitions_service', service => 1, conf => "max_connections = 40\npgwarp.watchdog_timeout = 0\nwork_mem = 16MB");

# Plain codes, refined ones, and conditions.
my @tables = ('plain', 'refined');
value($node, "CREATE TABLE $_ (id int PRIMARY KEY, v vector(8), kind int, note int DEFAULT 0) PARTITION BY HASH (id)") for @tables;
for my $i (0 .. $parts - 1)
{
	value($node, "CREATE TABLE ${_}_$i PARTITION OF $_ FOR VALUES WITH (MODULUS $parts, REMAINDER $i)") for @tables;
}
value($node, "INSERT INTO $_ SELECT i, vec(i, 8, $seed), i % 7 FROM generate_series(1, $rows) AS i") for @tables;
value($node, "CREATE INDEX ON plain USING ivfpq (v, kind) WITH (lists = 5, m = 4);
	CREATE INDEX ON refined USING ivfpq (v) WITH (lists = 5, m = 4, refine = int8); VACUUM ANALYZE");
wait_until($node, 'serves FROM pgwarp_service()');
sub prewarm
{
	is(value($node, "SELECT pgwarp_prewarm('plain_v_kind_idx') + pgwarp_prewarm('refined_v_idx')"), 2 * 5 * $parts, "$_[0]: all lists are resident");
	return;
}

# Searches of all lists, and of as many candidates as there are rows, are exact: the distances of the nearest rows, in
# order, and rows that have them, each once.
value($node, <<'SQL');
CREATE FUNCTION compare(t text, k int, condition text DEFAULT 'true', queries int DEFAULT 6, start int DEFAULT 1,
	OUT wrong int, OUT rows bigint) LANGUAGE plpgsql AS $$
DECLARE
	query vector;
	ids int[];
	notes int[];
	found float8[];
	exact float8[];
	same bigint;
BEGIN
	wrong := 0;
	rows := 0;
	PERFORM set_config('ivfpq.probes', '100', true), set_config('ivfpq.candidates', '1000', true);
	FOR n IN start .. start + queries - 1 LOOP
		query := vec(n, 8, 99);
		PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true);
		EXECUTE format('SELECT array_agg(id), array_agg(note), array_agg(d) FROM
			(SELECT id, note, v <-> $1 AS d FROM %I WHERE %s ORDER BY v <-> $1 LIMIT %s) AS s', t, condition, k) INTO ids, notes, found USING query;
		PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true), set_config('enable_indexscan', 'off', true);
		EXECUTE format('SELECT array_agg(d ORDER BY d) FROM (SELECT v <-> $1 AS d FROM %I WHERE %s ORDER BY d LIMIT %s) AS s', t, condition, k)
			INTO exact USING query;
		EXECUTE format('SELECT count(DISTINCT f.n) FROM unnest($2, $3, $4) WITH ORDINALITY AS f(id, note, d, n)
			JOIN %1$I AS t ON t.id = f.id AND t.note = f.note AND t.v <-> $1 = f.d WHERE %2$s', t, replace(replace(condition, 'id', 't.id'), 'kind', 't.kind'))
			INTO same USING query, ids, notes, found;
		PERFORM set_config('enable_indexscan', 'on', true);
		wrong := wrong + (found IS DISTINCT FROM exact OR same <> cardinality(ids) OR
			cardinality(ids) <> (SELECT count(DISTINCT i) FROM unnest(ids) AS i))::int;
		rows := rows + coalesce(cardinality(ids), 0);
	END LOOP;
END$$;
SQL
sub searches
{
	my ($table) = @_;
	return split /\|/, value($node, "SELECT coalesce(sum(cpu_searches), 0), coalesce(sum(service_searches), 0), coalesce(sum(fallbacks), 0)
		FROM pg_stat_pgwarp WHERE tablename LIKE '${table}\\_%'");
}
# A worker counts its last answer a little after the session has it.
sub stop
{
	my ($worker) = @_;
	wait_until($node, 'bool_and(busy = 0) FROM pgwarp_devices()');
	kill('STOP', $worker);
	return;
}
sub all_are_exact
{
	my ($how, @more) = @_;
	for my $case ([ 'plain', 10, 'true' ], [ 'plain', 10, 'kind = 3' ], [ 'refined', 10, 'true' ], @more)
	{
		my ($table, $k, $condition) = @$case;
		value($node, 'SELECT pg_stat_pgwarp_reset()');
		is(value($node, "SET ivfpq.executor = service; SELECT * FROM compare('$table', $k, '$condition')"), "0|${\(6 * $k)}",
			"$how, $table, LIMIT $k, $condition: the exact rows");
		my ($cpu, $served, $fallbacks) = searches($table);
		is("$cpu $fallbacks", '0 0', "$how, $table, LIMIT $k, $condition: none by the CPU");
		cmp_ok($served, '>=', 6 * $parts, "$how, $table, LIMIT $k, $condition: all partitions by the service");
	}
	return;
}
prewarm('first');
all_are_exact('resident', [ 'plain', 1, 'true' ], [ 'plain', 300, 'true' ], [ 'plain', 10, 'id % 3 = 1' ], [ 'refined', 200, 'true' ]);
# With nothing set: one search of each partition.
value($node, 'SELECT pg_stat_pgwarp_reset()');
is(value($node, "SET enable_seqscan = off; SET ivfpq.executor = service; SELECT count(*) FROM (SELECT 1 FROM plain ORDER BY v <-> vec(5, 8, 98) LIMIT 10) AS s"), 10,
	'a query with nothing set');
cmp_ok((searches('plain'))[1], '<=', $parts + 3, 'hardly any partition is searched twice');

# They wait for the worker together.
my $worker = value($node, 'SELECT pid FROM pgwarp_service()');
my $asker = session($node);
$asker->query("SET enable_seqscan = off; SET ivfpq.executor = service; SET pgwarp.service_timeout = '60s'");
my $near = 'SELECT array_agg(id) FROM (SELECT id FROM plain ORDER BY v <-> vec(5, 8, 98) LIMIT 10) AS s';
my $expected = $asker->query($near);
stop($worker);
start($asker, $near);
wait_until($node, "busy = $parts FROM pgwarp_devices()");
pass('searches of all partitions are under way');
kill('CONT', $worker);
is((finish($asker))[0], $expected, 'the rows are the same');

# Cancelled searches, again and again, leave nothing behind: neither places nor room for queries.
for my $try (1 .. 3)
{
	stop($worker);
	start($asker, $near);
	wait_until($node, "busy >= $parts FROM pgwarp_devices()");
	value($node, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT array_agg(id) FROM (SELECT id FROM plain%'");
	my ($result, $complaint) = finish($asker);
	like($complaint, qr/canceling statement due to user request/, "cancelled, $try");
	kill('CONT', $worker);
	is($asker->query($near), $expected, "the next answer after that, $try");
}
value($node, 'SELECT pg_stat_pgwarp_reset()');
is($asker->query($near), $expected, 'after cancels');
is((searches('plain'))[0], 0, 'the service answers for all partitions');
# A session that ends while it waits.
stop($worker);
start($asker, $near);
wait_until($node, "busy >= $parts FROM pgwarp_devices()");
value($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT array_agg(id) FROM (SELECT id FROM plain%'");
wait_until($node, "count(*) = 0 FROM pg_stat_activity WHERE query LIKE 'SELECT array_agg(id) FROM (SELECT id FROM plain%'");
kill('CONT', $worker);
$asker->{run}->kill_kill;
all_are_exact('after a session ended');

# A worker that hangs: each statement waits once, and the CPU has the same rows.
stop($worker);
my $seconds = elapsed(sub {
	is(value($node, "SET pgwarp.service_timeout = 700; SELECT * FROM compare('plain', 10)"), '0|60', 'a worker that hangs: the exact rows');
});
cmp_ok($seconds, '<', 15, 'a worker that hangs: not one timeout for each partition');
kill('CONT', $worker);
wait_until($node, 'serves FROM pgwarp_service()');
all_are_exact('after it hung');

# A device that fails, and a worker that ends, with all searches under way: the pages have the rows. All lists are
# asked for: those that the rule takes depend on what other partitions were seen to have.
my $auto = session($node);
$auto->query("SET enable_seqscan = off; SET pgwarp.service_timeout = '60s'; SET ivfpq.probes = 100; SET ivfpq.candidates = 1000");
$expected = $auto->query($near);
for my $end ('failed', 'ended')
{
	$worker = value($node, 'SELECT pid FROM pgwarp_service()');
	stop($worker);
	start($auto, $near);
	wait_until($node, "busy = $parts FROM pgwarp_devices()");
	# A worker that is stopped takes it in when it goes on.
	value($node, "ALTER SYSTEM SET pgwarp.debug_fault = 'failed'") if $end eq 'failed';
	$end eq 'failed' ? value($node, 'SELECT pg_reload_conf()') : kill('TERM', $worker);
	kill('CONT', $worker);
	is((finish($auto))[0], $expected, "$end: the same rows");
	value($node, 'ALTER SYSTEM RESET pgwarp.debug_fault; SELECT pg_reload_conf()') if $end eq 'failed';
	wait_until($node, 'count(*) = 1 FROM pgwarp_devices() WHERE serves AND busy = 0');
	wait_until($node, "count(*) = 1 FROM pgwarp_service() WHERE pid <> $worker") if $end eq 'ended';
	prewarm($end);
	all_are_exact("after it $end");
}

# The service does not know one partition, unless a session has sent it by then, and another has no lists: these alone
# are searched on the CPU.
value($node, 'REINDEX INDEX plain_3_v_kind_idx; ALTER SYSTEM SET pgwarp.service_timeout = 60000; SELECT pg_reload_conf()');
value($node, 'CREATE TABLE few (LIKE plain INCLUDING DEFAULTS)');
value($node, "BEGIN; INSERT INTO few SELECT * FROM plain_4 ORDER BY id LIMIT 200; CREATE INDEX ON few USING ivfpq (v, kind) WITH (lists = 5, m = 4);
	ALTER TABLE plain DETACH PARTITION plain_4; DROP TABLE plain_4;
	ALTER TABLE plain ATTACH PARTITION few FOR VALUES WITH (MODULUS $parts, REMAINDER 4); COMMIT; ANALYZE few");
value($node, 'SELECT pg_stat_pgwarp_reset()');
$auto->query($near);
like(value($node, "SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_stat_pgwarp WHERE cpu_searches > 0 AND tablename ~ '^(plain|few)'"),
	qr/^few( plain_3)?$/, 'those that the service cannot search');
is(value($node, "SELECT count(*) FROM pg_stat_pgwarp WHERE service_searches > 0 AND tablename LIKE 'plain\\_%' AND tablename <> 'plain_3'"), $parts - 2, 'all others by the service');
is(value($node, "SELECT * FROM compare('plain', 10)"), '0|60', 'one unknown, one without lists: the exact rows');
value($node, 'ALTER SYSTEM RESET pgwarp.service_timeout; SELECT pg_reload_conf()');
value($node, "INSERT INTO plain SELECT i, vec(i, 8, $seed), i % 7 FROM generate_series(1, $rows) AS i WHERE NOT EXISTS (SELECT FROM plain WHERE id = i);
	VACUUM ANALYZE few; REINDEX TABLE few; ALTER TABLE few RENAME TO plain_4");
$auto->quit;

# Room for a few more searches than one session may take then.
value($node, "ALTER SYSTEM SET pgwarp.max_searches = ${\($least_at_once + 2)}");
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
prewarm('some room');
$worker = value($node, 'SELECT pid FROM pgwarp_service()');
$asker = session($node);
$asker->query("SET enable_seqscan = off; SET ivfpq.executor = service; SET pgwarp.service_timeout = '60s'");
$expected = $asker->query($near);
stop($worker);
start($asker, $near);
wait_until($node, "busy = $least_at_once FROM pgwarp_devices()");
kill('CONT', $worker);
is((finish($asker))[0], $expected, 'some room: the rest follows, and the rows are the same');
$asker->quit;
all_are_exact('some room');

# Room for two searches of all sessions, and indexes that a new worker does not have.
value($node, 'ALTER SYSTEM SET pgwarp.max_searches = 2');
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
my ($answers) = value($node, "SELECT * FROM compare('plain', 10); SELECT * FROM compare('refined', 10)");
is($answers, "0|60\n0|60", 'a worker that knows no partition: the exact rows');
my $known = 0;
for (1 .. 20)
{
	$known = value($node, "SELECT count(*) FROM pg_stat_pgwarp WHERE tablename LIKE 'plain\\_%' AND lists > 0");
	last if $known == $parts;
	usleep(500_000);
	value($node, "SELECT * FROM compare('plain', 10)");
}
is($known, $parts, 'sessions bring the models of all partitions');
prewarm('little room');
all_are_exact('little room');
value($node, 'ALTER SYSTEM RESET pgwarp.max_searches');
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
prewarm('again');

# Rows that come, change and go meanwhile; every answer is compared with the table in one snapshot.
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/change.sql", <<'SQL');
\set id random(1, 21600)
\set new random(21601, 40000)
\set what random(1, 10)
\if :what <= 3
INSERT INTO :table (id, v, kind) VALUES (:new, vec(:new, 8), :new % 7) ON CONFLICT DO NOTHING;
\elif :what <= 5
DELETE FROM :table WHERE id = :new OR id = :id;
\elif :what <= 7
UPDATE :table SET v = vec(:new, 8), note = note + 1 WHERE id = :id;
\elif :what <= 9
UPDATE :table SET note = note + 1 WHERE id = :id;
\else
VACUUM (INDEX_CLEANUP ON) :table_part;
\endif
SQL
for my $table (@tables)
{
	my $script = slurp_file("$folder/change.sql");
	$script =~ s/:table_part/"${table}_" . int(rand($parts))/e;
	$script =~ s/:table/$table/g;
	append_to_file("$folder/$table.sql", $script);
}
my @changes = map
{
	IPC::Run::start([ 'pgbench', '--no-vacuum', "--file=$folder/$_.sql", '--client=2', '--time=' . ($ENV{STRESS_SECONDS} // 6), '--rate=300', '--random-seed=' . ($seed % 100000),
		'--port=' . $node->port, '--host=' . $node->host, 'postgres' ], '>', \my $out, '2>', \my $errors)
} @tables;
my ($compared, $wrong) = (0, 0);
my $end = time + ($ENV{STRESS_SECONDS} // 6);
value($node, 'SELECT pg_stat_pgwarp_reset()');
while (time < $end)
{
	for my $case ([ 'plain', 10, 'true' ], [ 'refined', 10, 'true' ], [ 'plain', 10, 'kind = 3' ], [ 'plain', 60, 'true' ])
	{
		my ($table, $k, $condition) = @$case;
		my $start = int(rand(100000));
		my ($differ) = split /\|/, value($node, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM compare('$table', $k, '$condition', 3, $start); COMMIT");
		diag("$table, LIMIT $k, $condition, queries from $start: $differ differ") if $differ;
		$wrong += $differ;
		$compared += 3;
	}
}
$_->finish for @changes;
is($wrong, 0, "$compared searches while rows change: the exact rows");
cmp_ok(value($node, 'SELECT sum(service_searches) FROM pg_stat_pgwarp'), '>', 0, 'the service had its share');
indexes_are_sound($node);
$node->stop;
done_testing();
