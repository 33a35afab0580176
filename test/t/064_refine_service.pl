# Refinement codes on devices: a search by the service has the rows of a sort of the table, and visits few of them,
# whatever changes between two searches; so has one of an index that is spread over two devices, and of one whose
# refinements find no room there.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
my $on_host = ($ENV{PGWARP_TEST_DEVICES} // 'host') eq 'host';
my $node = new_node('refined', service => 1, streaming => 1, conf => 'pgwarp.service_timeout = 20s');
wait_until($node, 'serves FROM pgwarp_service()');

# 150 dimensions: a list page has several refinement pages. All rows are candidates, so the rows are those of a sort.
my $dims = 150;
my $rows = 1500;
my $effort = 'SET ivfpq.probes = 1000; SET ivfpq.candidates = 2000; SET enable_seqscan = off; SET enable_sort = off';
sub nearest
{
	my ($table, $query, $k, $condition) = @_;
	return "SELECT string_agg(id || ':' || d, ' ' ORDER BY d, id) FROM (SELECT id, v <-> vec($query, $dims, $seed) AS d FROM $table
		WHERE $condition ORDER BY v <-> vec($query, $dims, $seed) LIMIT $k) AS s";
}
my $sorts = 'SET enable_indexscan = off; SET enable_seqscan = on; SET enable_sort = on';
# Without the ids of rows that are as far as the last: LIMIT may cut between them.
sub without_ties
{
	my @rows = map { [ split /:/ ] } split / /, shift;
	return join(' ', map { $_->[1] eq $rows[-1][1] ? ":$_->[1]" : "$_->[0]:$_->[1]" } @rows);
}
# Compares searches with sorts, and counts rows that they visited.
sub agrees
{
	my ($session, $table, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $condition = $options{condition} // 'true';
	my ($wrong, $visited, $paths) = (0, 0, '');
	$session->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; $effort; SET ivfpq.executor = service; "
		. ($options{settings} // ''));
	for my $k (1, 10, 77)
	{
		for my $query (1 .. ($options{queries} // 4))
		{
			my $found = $session->query_safe(nearest($table, -$query, $k, $condition));
			my ($path, $ranked) = split /\|/, $session->query_safe('SELECT path, ranked_rows FROM ivfpq_last_scan()');
			$visited += $ranked if $k == 10;
			$paths .= "$path " if index($paths, $path) < 0;
			my $sorted = $session->query_safe("SAVEPOINT s; $sorts; " . nearest($table, -$query, $k, $condition) . '; ROLLBACK TO s');
			if (without_ties($found) ne without_ties($sorted))
			{
				diag("query $query, k = $k: $found instead of $sorted") if $wrong++ < 3;
			}
		}
	}
	$session->query_safe('COMMIT; RESET ALL');
	is($wrong, 0, "$name: the rows of a sort");
	# Where VACUUM has moved entries, the service's answer is worth nothing until it has these lists again.
	is($paths, 'service ', "$name: by the service") if !$options{moved};
	return $visited / ($options{queries} // 4);
}
sub add_rows
{
	my ($table, $from, $to) = @_;
	return "INSERT INTO $table SELECT i, i % 5, vec(i, $dims) FROM generate_series($from, $to) AS i";
}
sub loaded
{
	my ($server, $index) = @_;
	my $lists = value($server, "SELECT lists FROM ivfpq_info('$index')");
	is(value($server, "SELECT pgwarp_prewarm('$index')"), $lists, "all lists of $index are resident");
	return;
}

for my $kind ('l2', 'four')
{
	value($node, "CREATE TABLE $kind (id bigint, a int, v vector($dims)); " . add_rows($kind, 1, $rows));
	my $more = $kind eq 'four' ? ', bits = 4, m = 10' : '';
	value($node, "CREATE INDEX ${kind}_v ON $kind USING ivfpq (v, a) WITH (lists = 6, refine = int8$more)");
	loaded($node, "${kind}_v");
}
my $session = session($node);
cmp_ok(value($node, "SELECT bytes FROM pg_stat_pgwarp WHERE indexname = 'l2_v'"), '>', $rows * $dims,
	'refinements are on the device, and counted');

# --- few rows are visited

for my $kind ('l2', 'four')
{
	cmp_ok(agrees($session, $kind, $kind), '<=', 20, "$kind: about k rows are visited");
	is(agrees($session, $kind, "$kind, refine = off", settings => 'SET pgwarp.debug_refine = off'), $rows,
		"$kind, refine = off: all rows are visited");
}
is(agrees($session, 'l2', 'a filter of rows', condition => 'id % 2 = 0', queries => 2) > 100, 1,
	'a filter of rows: it visits what it has to check');
agrees($session, 'l2', 'a condition', condition => 'a = 3', queries => 2);
is(agrees($session, 'l2', 'a bound on the distance', condition => "v <-> vec(-1, $dims, $seed) < 100000", queries => 1) > 100, 1,
	'a bound on the distance: rows are visited as before');
# No further round may find what a device leaves out.
cmp_ok(agrees($session, 'l2', 'iterative_scan = off', settings => 'SET ivfpq.iterative_scan = off', queries => 2), '<=', 20,
	'iterative_scan = off: few rows are visited');

# Efforts that the index chooses: as many rows as the CPU finds, of the same ones but for a few.
for my $target (0.9, 0.99)
{
	my @recall;
	for my $executor ('cpu', 'service')
	{
		my $hits = 0;
		for my $query (1 .. 40)
		{
			my ($found, $sorted) = map {
				[ split / /, $session->query_safe("BEGIN; SET LOCAL ivfpq.executor = $executor; SET LOCAL ivfpq.target_recall = $target; $_; "
					. nearest('l2', -$query, 10, 'true') . '; COMMIT; RESET ALL') ]
			} 'SET LOCAL enable_seqscan = off', $sorts;
			my %sorted = map { $_ => 1 } @$sorted;
			$hits += grep { $sorted{$_} } @$found;
		}
		push @recall, $hits / 400;
	}
	cmp_ok($recall[1], '>=', $recall[0] - 0.02, "target $target: the service finds what the CPU finds");
	cmp_ok($recall[1], '>=', $target - 0.05, "target $target: recall");
}

# --- whole scans, and cursors

is($session->query_safe("$effort; SELECT same_rows, each_once FROM compare_scan('l2', 'v <-> vec(-1, $dims, $seed)')"), 't|t',
	'a whole scan has every row once');
$session->query_safe("SET ivfpq.executor = service; BEGIN; DECLARE c CURSOR FOR
	SELECT id FROM l2 ORDER BY v <-> vec(-2, $dims, $seed)");
my @ids = map { split /\n/, $session->query_safe('FETCH 70 FROM c') } 1 .. 25;
my %different = map { $_ => 1 } @ids;
is(@ids . ' ' . keys(%different), "$rows $rows", 'a cursor has every row once');
# By their distances: some rows are as far as others.
my $first = $session->query_safe("SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on;
	SELECT string_agg(d::text, ',' ORDER BY d) FROM (SELECT v <-> vec(-2, $dims, $seed) AS d FROM l2 ORDER BY 1 LIMIT 500) AS s");
is($session->query_safe("SELECT string_agg((v <-> vec(-2, $dims, $seed))::text, ',' ORDER BY n)
	FROM unnest(ARRAY[" . join(',', @ids[ 0 .. 499 ]) . "]) WITH ORDINALITY AS i (id, n) JOIN l2 USING (id)"), $first, 'and these in order');
$session->query_safe('COMMIT; RESET ALL');

# --- rows that are not visible: the device names too few, and a further round finds the others

my $other = session($node);
$other->query_safe("BEGIN; DELETE FROM l2 WHERE id IN
	(SELECT id FROM l2 ORDER BY v <-> vec(-1, $dims, $seed) LIMIT 200)");
agrees($session, 'l2', 'beside a DELETE');
$other->query_safe('COMMIT');
agrees($session, 'l2', 'after a DELETE');
agrees($session, 'l2', 'after a DELETE, iterative_scan = off', settings => 'SET ivfpq.iterative_scan = off');
vacuum_all($node, 'l2');
agrees($session, 'l2', 'after VACUUM', moved => 1);
loaded($node, 'l2_v');
# Of more queries: the mean of four may be beyond by chance.
cmp_ok(agrees($session, 'l2', 'after VACUUM, loaded', queries => 16), '<=', 20, 'after VACUUM, loaded: few rows are visited');

# --- entries that the device lacks: few are visited, many scored by their pages

for my $more (5, 300)
{
	value($node, add_rows('l2', 100 * $rows + $more, 100 * $rows + 2 * $more - 1));
	cmp_ok(agrees($session, 'l2', "$more rows more"), '<=', 110, "$more rows more: not all are visited");
}
# They were sent meanwhile, with their refinements.
cmp_ok(agrees($session, 'l2', 'appended'), '<=', 20, 'appended: few rows are visited');
value($node, "UPDATE l2 SET v = vec(id + 1000000, $dims) WHERE id % 3 = 0");
agrees($session, 'l2', 'after an UPDATE');
vacuum_all($node, 'l2');
agrees($session, 'l2', 'after an UPDATE and VACUUM', moved => 1);
$session->query_safe("SET ivfpq.executor = service; SELECT count(*) FROM (SELECT id FROM l2 ORDER BY v <-> vec(-9, $dims) LIMIT 10) AS s") for 1 .. 5;
loaded($node, 'l2_v');
cmp_ok(agrees($session, 'l2', 'all changes loaded'), '<=', 20, 'all changes loaded: few rows are visited');
indexes_are_sound($node);

# Beside writers and VACUUM, which move entries under the lists that are being sent.
my $writer = session($node);
for my $round (1 .. 3)
{
	start($writer, "DO \$\$ BEGIN FOR i IN 1 .. 10 LOOP
		UPDATE l2 SET v = vec(id + i + $round * 100, $dims) WHERE id % 17 = i; DELETE FROM l2 WHERE id = i * 7 + $round; COMMIT;
		INSERT INTO l2 SELECT 500000 + $round * 1000 + i * 10 + j, 1, vec(j + i * 100, $dims) FROM generate_series(1, 5) AS j; COMMIT;
		END LOOP; END \$\$");
	agrees($session, 'l2', "beside a writer, $round", queries => 1, moved => 1);
	finish($writer);
	start($writer, 'VACUUM (INDEX_CLEANUP ON) l2');
	agrees($session, 'l2', "beside VACUUM, $round", queries => 1, moved => 1);
	finish($writer);
	agrees($session, 'l2', "after VACUUM, $round", queries => 1, moved => 1);
}
loaded($node, 'l2_v');
cmp_ok(agrees($session, 'l2', 'and loaded'), '<=', 20, 'and loaded: few rows are visited');
indexes_are_sound($node);

# --- pages whose refinements do not fit one load buffer, and long vectors

value($node, "CREATE TABLE long (id bigint, v vector(1999)); INSERT INTO long SELECT i, vec(i, 1999) FROM generate_series(1, 1200) AS i;
	CREATE INDEX long_v ON long USING ivfpq (v) WITH (lists = 2, m = 4, refine = int8)");
loaded($node, 'long_v');
cmp_ok(value($node, "SELECT bytes FROM pg_stat_pgwarp WHERE indexname = 'long_v'"), '>', 1200 * 1999, 'sent in parts');
my $long = "SELECT string_agg(id::text, ',') FROM (SELECT id FROM long ORDER BY v <-> vec(-1, 1999) LIMIT 20) AS s";
is($session->query_safe("RESET ALL; $effort; SET ivfpq.executor = service; $long"), value($node, $sorts . "; $long"), 'long vectors');
my ($path, $ranked) = split /\|/, $session->query_safe('SELECT path, ranked_rows FROM ivfpq_last_scan()');
is($path, 'service', 'long vectors: by the service');
cmp_ok($ranked, '<=', 40, 'long vectors: few rows are visited');
$session->query_safe('RESET ALL');

# --- trained by VACUUM

value($node, "CREATE TABLE few (id bigint, a int, v vector($dims));
	CREATE INDEX few_v ON few USING ivfpq (v) WITH (refine = int8, lists = 3, m = 10); " . add_rows('few', 1, 10500));
value($node, 'VACUUM few; DELETE FROM few WHERE id > 1500');
vacuum_all($node, 'few');
is(value($node, "SELECT trained, pending_rows FROM ivfpq_info('few_v')"), 't|0', 'trained');
loaded($node, 'few_v');
cmp_ok(agrees($session, 'few', 'trained', queries => 2), '<=', 20, 'trained: few rows are visited');

# --- other metrics

for my $class ('vector_ip_ops', 'vector_cosine_ops')
{
	my $operator = $class =~ /ip/ ? '<#>' : '<=>';
	value($node, "DROP INDEX few_v; CREATE INDEX few_v ON few USING ivfpq (v $class) WITH (refine = int8, lists = 3, m = 10)");
	loaded($node, 'few_v');
	my $search = "SELECT string_agg(id::text, ',') FROM (SELECT id FROM few ORDER BY v $operator vec(-1, $dims), id LIMIT 20) AS s";
	my $by_index = $search =~ s/, id LIMIT/ LIMIT/r;
	is($session->query_safe("$effort; SET ivfpq.executor = service; $by_index"), value($node, "$sorts; $search"), "$operator: the rows of a sort");
	my ($path, $ranked) = split /\|/, $session->query_safe('SELECT path, ranked_rows FROM ivfpq_last_scan()');
	is($path, 'service', "$operator: by the service");
	cmp_ok($ranked, '<=', 40, "$operator: few rows are visited");
	$session->query_safe('RESET ALL');
}

# --- rows that are as far as each other: what a device left out may be as far as what it named, and a cursor comes to all

value($node, "CREATE TABLE alike (id bigint, v vector(8));
	INSERT INTO alike SELECT i, array_fill((i % 4)::real, '{8}')::vector FROM generate_series(1, 2000) AS i");
value($node, 'CREATE INDEX alike_v ON alike USING ivfpq (v) WITH (lists = 4, m = 8, refine = int8)');
loaded($node, 'alike_v');
{
	my $session = session($node);
	$session->query_safe("SET statement_timeout = '60s'; SET ivfpq.executor = service; SET enable_seqscan = off; SET enable_sort = off; SET cursor_tuple_fraction = 0.005");
	$session->query_safe("BEGIN; DECLARE c CURSOR FOR SELECT id, v <-> array_fill(1::real, '{8}')::vector AS d FROM alike
		ORDER BY v <-> array_fill(1::real, '{8}')::vector");
	my (%seen, $nearest);
	for my $part (1 .. 200)
	{
		for (split /\n/, $session->query_safe('FETCH 10 FROM c'))
		{
			my ($id, $d) = split /\|/;
			$seen{$id}++;
			$nearest //= $d;
		}
	}
	$session->query_safe('COMMIT; RESET ALL');
	is(keys(%seen) . ' ' . grep({ $_ > 1 } values %seen), '2000 0', 'alike: a cursor has every row once');
	is($nearest, 0, 'alike: the nearest first');
	$session->quit;
}

# --- dead rows among those that a device names: the next round finds what it left out, as a scan of pages does

value($node, "CREATE TABLE dead (id bigint, a int, v vector($dims)) WITH (autovacuum_enabled = off); " . add_rows('dead', 1, 5000));
value($node, 'CREATE INDEX dead_v ON dead USING ivfpq (v) WITH (lists = 8, m = 5, refine = int8)');
loaded($node, 'dead_v');
value($node, "DELETE FROM dead WHERE id IN (SELECT id FROM dead ORDER BY v <-> vec(-$_, $dims, $seed) LIMIT 30)") for 1 .. 20;
{
	my $session = session($node);
	my %found;
	for my $executor ('cpu', 'service')
	{
		$session->query_safe("SET enable_seqscan = off; SET ivfpq.executor = $executor; SET ivfpq.audit_every = 0");
		$found{$executor} = 0;
		for my $query (1 .. 20)
		{
			my %near = map { $_ => 1 } split /,/, value($node, "$sorts; SELECT string_agg(id::text, ',') FROM
				(SELECT id FROM dead ORDER BY v <-> vec(-$query, $dims, $seed) LIMIT 10) AS s");
			my @rows = split /,/, $session->query_safe("SELECT string_agg(id::text, ',') FROM
				(SELECT id FROM dead ORDER BY v <-> vec(-$query, $dims, $seed) LIMIT 10) AS s");
			$found{$executor} += grep { $near{$_} } @rows;
		}
	}
	note("dead rows: $found{cpu} of 200 by the CPU, $found{service} by the service");
	cmp_ok($found{service}, '>=', $found{cpu} - 6, 'dead rows: the service finds as many as the CPU');
	$session->quit;
}

# --- a standby, which cannot count changes

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
wait_until($standby, 'serves FROM pgwarp_service()');
loaded($standby, 'l2_v');
my $reader = session($standby);
cmp_ok(agrees($reader, 'l2', 'on a standby'), '<=', 20, 'on a standby: few rows are visited');
value($node, "DELETE FROM l2 WHERE id % 4 = 1");
vacuum_all($node, 'l2');
value($node, add_rows('l2', 900000, 900050));
$node->wait_for_catchup($standby);
agrees($reader, 'l2', 'changes on a standby', moved => 1);
$reader->quit;
$standby->stop;
$_->quit for $session, $other, $writer;
$node->stop;

# --- two devices, with room for all of it together; and then for the codes only

SKIP:
{
	skip 'needs devices with little memory', 1 if !$on_host;
	my $two = new_node('two', service => 1, conf => "pgwarp.devices = 'host,host'\npgwarp.device_memory = 2MB\npgwarp.service_timeout = 20s");
	wait_until($two, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
	value($two, "CREATE TABLE s (id bigint, a int, v vector($dims)); " . add_rows('s', 1, $rows));
	value($two, 'CREATE INDEX s_v ON s USING ivfpq (v) WITH (lists = 12, m = 10, refine = int8, placement = shard)');
	loaded($two, 's_v');
	is(value($two, "SELECT count(*) FROM pg_stat_pgwarp_devices WHERE indexname = 's_v' AND bytes > 0.3 * $rows * $dims"), 2,
		'spread over both, with refinements');
	my $session = session($two);
	cmp_ok(agrees($session, 's', 'shards'), '<=', 20, 'shards: few rows are visited');
	value($two, "DELETE FROM s WHERE id IN (SELECT id FROM s ORDER BY v <-> vec(-1, $dims, $seed) LIMIT 200)");
	agrees($session, 's', 'shards, after a DELETE');
	value($two, add_rows('s', 5000, 5200));
	agrees($session, 's', 'shards, rows more');
	vacuum_all($two, 's');
	agrees($session, 's', 'shards, after VACUUM', moved => 1);
	loaded($two, 's_v');
	cmp_ok(agrees($session, 's', 'shards, loaded'), '<=', 20, 'shards, loaded: few rows are visited');

	# Lists stay where refinements have no room.
	value($two, "CREATE TABLE large (id bigint, a int, v vector($dims)); " . add_rows('large', 1, 20000));
	value($two, 'CREATE INDEX large_v ON large USING ivfpq (v) WITH (lists = 40, m = 10, refine = int8, placement = single)');
	loaded($two, 'large_v');
	cmp_ok(value($two, "SELECT bytes FROM pg_stat_pgwarp WHERE indexname = 'large_v'"), '<', 20000 * 60, 'large: codes only');
	my $search = "SELECT string_agg(id::text, ',') FROM (SELECT id FROM large ORDER BY v <-> vec(-1, $dims) LIMIT 10) AS s";
	for my $refine ('on', 'off')
	{
		is($session->query_safe("RESET ALL; SET enable_seqscan = off; SET ivfpq.executor = service; SET ivfpq.probes = 40; SET ivfpq.candidates = 2000;
			SET pgwarp.debug_refine = $refine; $search"), value($two, "$sorts; $search"), "large, refine = $refine: the rows of a sort");
		is($session->query_safe('SELECT path, ranked_rows FROM ivfpq_last_scan()'), 'service|2000', "large, refine = $refine: all are visited");
	}
	$session->quit;
	$two->stop;
}

done_testing();
