# Refinement codes: after a crash in the middle of inserts and of VACUUM, beside builds and training, on a
# standby, in unlogged tables; and searches beside VACUUM, which moves entries and frees pages under them.
# Every answer is compared with a sort of the table, every index checked against its rows.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('refine', streaming => 1, conf => "restart_after_crash = on
wal_consistency_checking = 'generic'\nshared_buffers = 4MB\nwal_keep_size = 1GB
min_parallel_table_scan_size = 64kB");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;

# 150 dimensions: a list page has several refinement pages.
my $dims = 150;
value($node, <<"SQL");
CREATE FUNCTION differs(relation text, query vector, k int, condition text DEFAULT 'true') RETURNS text
LANGUAGE plpgsql AS \$\$
DECLARE
	search text := format('SELECT array_agg(d) FROM (SELECT v <-> \$1 AS d FROM %s WHERE %s ORDER BY v <-> \$1
		LIMIT %s) AS s', relation, condition, k);
	by_index float8[];
	exact float8[];
BEGIN
	PERFORM set_config('ivfpq.probes', '1000', true), set_config('ivfpq.candidates', '100000', true),
		set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true);
	EXECUTE search INTO by_index USING query;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
		set_config('enable_indexscan', 'off', true);
	EXECUTE search INTO exact USING query;
	PERFORM set_config('enable_indexscan', 'on', true);
	RETURN CASE WHEN by_index IS DISTINCT FROM exact THEN format('%s instead of %s', by_index[1:5], exact[1:5]) END;
END
\$\$
SQL

sub agrees
{
	my ($server, $relation, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $condition = $options{condition} // 'true';
	my $count = $options{count} // 10;
	# One transaction, so that both queries see the same rows.
	my $found = value($server, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT string_agg(d, '; ') FROM
		generate_series(1, $count) AS q, unnest('{1,10,77}'::int[]) AS k,
		differs('$relation', vec(-q, $dims, $seed + $count), k, '$condition') AS d; COMMIT");
	return is($found, '', $name);
}
sub add_rows
{
	my ($relation, $from, $to) = @_;
	return "INSERT INTO $relation SELECT i, i % 5, vec(i, $dims) FROM generate_series($from, $to) AS i";
}

value($node, 'CREATE TABLE t (id bigint, a int, v vector(150))');
value($node, add_rows('t', 1, 3000));
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v, a) WITH (lists = 6, refine = int8)');
value($node, 'CREATE UNLOGGED TABLE u (LIKE t); INSERT INTO u SELECT * FROM t LIMIT 1500;
	CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 3, refine = int8)');
cmp_ok(value($node, "SELECT refinement_bytes FROM ivfpq_info('t_v')"), '>', 3000 * $dims, 'there are refinements');
agrees($node, 't', 'built');
agrees($node, 't', 'with a condition', condition => 'a = 3');
indexes_are_sound($node);

# --- cut short

my $next = 10000;
for my $way ('crash', 'kill', 'crash')
{
	value($node, 'CHECKPOINT') if $way eq 'kill';
	my $writer = session($node);
	my $pid = $writer->query_safe('SELECT pg_backend_pid()');
	$writer->query_safe(add_rows('t', $next, $next + 199));
	start($writer, 'BEGIN; ' . add_rows('t', -100000, -1));
	usleep(50_000 + int(rand(300_000)));
	$way eq 'kill' ? kill_backend($node, $pid) : crash($node);
	$writer->{run}->kill_kill;
	$next += 200;
	agrees($node, 't', "$way among inserts");
	is(value($node, 'SELECT count(*) FROM t WHERE id < 0'), 0, 'nothing of what was not committed');
	indexes_are_sound($node);

	value($node, 'DELETE FROM t WHERE id % 4 = ' . $next / 200 % 4);
	my $vacuum = session($node);
	$vacuum->query_safe("SET vacuum_cost_delay = '1ms'; SET vacuum_cost_limit = 5");
	$pid = $vacuum->query_safe('SELECT pg_backend_pid()');
	start($vacuum, 'VACUUM (INDEX_CLEANUP ON) t');
	for (1 .. 200)
	{
		my $phase = value($node, "SELECT coalesce((SELECT phase FROM pg_stat_progress_vacuum WHERE pid = $pid), 'none')");
		last if $phase eq 'vacuuming indexes' || $phase eq 'none';
	}
	usleep(int(rand(50_000)));
	$way eq 'kill' ? kill_backend($node, $pid) : crash($node);
	$vacuum->{run}->kill_kill;
	agrees($node, 't', "$way in VACUUM");
	indexes_are_sound($node);
	vacuum_all($node, 't');
	agrees($node, 't', 'the next one');
	is(value($node, 'SELECT count(*) FROM u'), 0, 'an unlogged table is empty');
	value($node, add_rows('u', 1, 300));
	agrees($node, 'u', 'and takes rows', count => 3);
	indexes_are_sound($node);
	is(value($node, "SELECT 8192 + model_bytes + list_bytes + refinement_bytes + pending_bytes + free_bytes = bytes
		FROM ivfpq_info('t_v')"), 't', 'no page is lost');
}

# --- the standby

$node->wait_for_catchup($standby);
agrees($standby, 't', 'on the standby');
value($node, 'UPDATE t SET v = vec(id + 1, 150) WHERE id % 3 = 0');
vacuum_all($node, 't');
$node->wait_for_catchup($standby);
agrees($standby, 't', 'after changes');
is(value($standby, "SELECT count(*) FROM ivfpq_check('t_v', true)"), 0, 'sound');

# --- beside writers

my $writes = <<'SQL';
DO $$ BEGIN FOR round IN 1 .. 30 LOOP
	INSERT INTO t SELECT i, 1, vec(i, 150) FROM generate_series(200000 + round * 5, 200004 + round * 5) AS i;
	UPDATE t SET v = vec(id + round, 150) WHERE id % 97 = round;
	DELETE FROM t WHERE id = 200000 + round * 5;
	COMMIT;
	PERFORM pg_sleep(0.005);
END LOOP; END $$
SQL
my $writer = session($node);
for my $statement ('REINDEX INDEX CONCURRENTLY t_v',
	'DROP INDEX t_v; SET maintenance_work_mem = 1024; CREATE INDEX CONCURRENTLY t_v ON t USING ivfpq (v, a) WITH (lists = 6, refine = int8)')
{
	my ($first) = $statement =~ /^(\w+)/;
	start($writer, $writes);
	for my $part (split /; /, $statement)
	{
		next if $part =~ /^SET/;
		my $set = $statement =~ /(SET \w+ = \d+)/ ? "$1;" : '';
		$node->command_ok([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), ($set ? ('-c', $set) : ()), '-c', $part ],
			"$first: " . substr($part, 0, 20));
	}
	my (undef, $complaints) = finish($writer);
	is($complaints, '', 'the writer goes on');
	agrees($node, 't', "$first beside a writer");
	indexes_are_sound($node);
}

# Searches while VACUUM moves entries and frees pages, and inserts take these.
my $search = session($node);
$search->query_safe("SET search_path = public, ivfpq_test");
my @found;
for my $round (1 .. 6)
{
	value($node, "DELETE FROM t WHERE id % 6 = $round - 1");
	start($writer, 'VACUUM (INDEX_CLEANUP ON) t');
	for my $turn (1 .. 4)
	{
		push @found, $search->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT string_agg(d, '; ')
			FROM generate_series(1, 2) AS q, unnest('{1,20}'::int[]) AS k, differs('t', vec(-q - $turn, 150, $seed), k) AS d; COMMIT");
	}
	finish($writer);
	start($writer, add_rows('t', $next, $next + 500));
	push @found, $search->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT string_agg(d, '; ')
		FROM generate_series(1, 3) AS q, unnest('{1,20}'::int[]) AS k, differs('t', vec(-q, 150, $seed), k) AS d; COMMIT");
	finish($writer);
	$next += 501;
}
is(join('', @found), '', 'searches beside VACUUM and inserts');
# A cursor that is read on after VACUUM has taken all rows that it has not seen from their slots.
$search->query_safe("SET enable_seqscan = off; SET ivfpq.probes = 1000; SET ivfpq.candidates = 100000");
$search->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ");
# Rows at one distance have no order: rows and distances are compared apart.
my $rows_of_cursor = 'SELECT id, v <-> vec(-1, 150) AS d FROM t ORDER BY v <-> vec(-1, 150) LIMIT 500';
$search->query_safe("DECLARE c CURSOR FOR $rows_of_cursor");
my $some = $search->query_safe('FETCH 5 FROM c');
my $expected = value($node, "SET enable_indexscan = off; $rows_of_cursor");
value($node, 'UPDATE t SET v = vec(id + 7, 150)');
value($node, 'VACUUM (INDEX_CLEANUP ON) t');
$some .= "\n" . $search->query_safe('FETCH ALL FROM c');
$search->query_safe('COMMIT');
for my $column (0, 1)
{
	my ($got, $wanted) = map { [ map { (split /\|/)[$column] } split /\n/ ] } $some, $expected;
	($got, $wanted) = map { [ sort @$_ ] } $got, $wanted if $column == 0;
	is_deeply($got, $wanted, ('a cursor has its own rows', 'in their order')[$column]);
}
vacuum_all($node, 't');
agrees($node, 't', 'rows that have changed');
indexes_are_sound($node);

# --- trained by VACUUM

value($node, 'CREATE TABLE few (id bigint, a int, v vector(150));
	CREATE INDEX few_v ON few USING ivfpq (v) WITH (refine = int8, lists = 5, m = 10)');
value($node, add_rows('few', 1, 10500));
is(value($node, "SELECT trained, refine FROM ivfpq_info('few_v')"), 'f|int8', 'untrained');
agrees($node, 'few', 'untrained', count => 2);
value($node, 'VACUUM few');
is(value($node, "SELECT trained, refine, pending_rows, refinement_bytes > 10500 * 150 FROM ivfpq_info('few_v')"),
	't|int8|0|t', 'trained');
agrees($node, 'few', 'trained', count => 3);
indexes_are_sound($node);

$standby->stop;
$node->stop;
done_testing();
