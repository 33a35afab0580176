# VACUUM makes new lists for a table that has outgrown those of its index. Whatever happens meanwhile,
# each row is found, and once: for scans of before, beside and behind it, for writers, after a crash
# at each step, and on a standby.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('primary', streaming => 1, conf => "wal_consistency_checking = 'generic'");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "max_standby_streaming_delay = 0\nhot_standby_feedback = off");
$standby->start;

sub make_functions
{
	value($node, <<'SQL');
CREATE FUNCTION moved(v vector) RETURNS vector LANGUAGE sql IMMUTABLE AS 'SELECT v + ivfpq_test.vec(7, 8)';
CREATE FUNCTION fill(relation regclass, first int, last int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %s SELECT i, CASE WHEN i %% 97 = 5 THEN array_fill(0, ''{8}'')::vector
		ELSE vec(i, 8) END, i %% 10 FROM generate_series(%s, %s) AS i', relation, first, last);
END
$$;
SQL
	return;
}

# --- of every kind

make_functions();
my @kinds = (
	[ 'l2', 'v', 'v <-> vec(0, 8)', '' ],
	[ 'ip', 'v vector_ip_ops', 'v <#> vec(0, 8)', '' ],
	[ 'cosine', 'v vector_cosine_ops', 'v <=> vec(0, 8)', '' ],
	[ 'four', 'v', 'v <-> vec(0, 8)', 'WITH (bits = 4)' ],
	[ 'refined', 'v, a', 'v <-> vec(0, 8)', 'WITH (refine = int8)', 'a = 3' ],
	[ 'partial', 'v', 'v <-> vec(0, 8)', 'WHERE a < 5', 'a < 5' ],
	[ 'expression', '(moved(v)::vector(8))', 'moved(v)::vector(8) <-> vec(0, 8)', '' ],
	[ 'parents', 'v', 'v <-> vec(0, 8)', 'WITH (parents = 8)' ],
	[ 'unlogged', 'v', 'v <-> vec(0, 8)', '' ]);
my $has_lapack = error_of($node, 'CREATE TABLE o (id int, v vector(8), a int); INSERT INTO o SELECT i, vec(i, 8), 1
	FROM generate_series(1, 1000) AS i; CREATE INDEX ON o USING ivfpq (v) WITH (quantizer = opq)') eq '';
value($node, 'DROP TABLE IF EXISTS o');
push @kinds, [ 'opq', 'v', 'v <-> vec(0, 8)', 'WITH (quantizer = opq)' ],
  [ 'lsq', 'v', 'v <-> vec(0, 8)', 'WITH (quantizer = lsq, m = 4)' ]
  if $has_lapack;
for my $kind (@kinds)
{
	my ($table, $columns, $distance, $options, $condition) = @$kind;
	my $unlogged = $table eq 'unlogged' ? 'UNLOGGED' : '';
	value($node, "CREATE $unlogged TABLE $table (id int, v vector(8), a int)");
	value($node, "SELECT fill('$table', 1, 2000)");
	value($node, "CREATE INDEX ${table}_v ON $table USING ivfpq ($columns) $options");
	value($node, "SELECT fill('$table', 2001, 6000)");
	my $before = value($node, "SELECT lists FROM ivfpq_info('${table}_v')");
	value($node, "VACUUM (PARALLEL 0) $table");
	my ($lists, $pending) = split /\|/, value($node, "SELECT lists, pending_rows FROM ivfpq_info('${table}_v')");
	cmp_ok($lists, '>', 1.5 * $before, "$table: $lists lists instead of $before");
	is($pending, 0, 'and no row is pending');
	compares($node, $table, $distance, "$table: every row once", condition => $condition // 'true');
	value($node, "DELETE FROM $table WHERE id % 5 = 0; SELECT fill('$table', 6001, 6500)");
	vacuum_all($node, $table);
	compares($node, $table, $distance, "$table: and after changes", condition => $condition // 'true');
}
indexes_are_sound($node);
is(value($node, "SELECT 8192 + model_bytes + list_bytes + pending_bytes + free_bytes = bytes
	FROM ivfpq_info('l2_v')"), 't', 'the pages of the old lists are free');
$node->wait_for_catchup($standby);
compares($standby, $_->[0], $_->[2], "$_->[0]: on the standby", condition => $_->[4] // 'true')
  for grep { $_->[0] ne 'unlogged' } @kinds;
value($node, "SELECT fill('l2', 7001, 15000)");
value($node, 'VACUUM l2');
cmp_ok(value($node, "SELECT pages FROM ivfpq_info('l2_v')"), '<=', 2.2 * value($node,
	"SELECT pages - free_bytes / 8192 FROM ivfpq_info('l2_v')"), 'no more pages than both lists need');

# A user's number of lists stays.
value($node, 'CREATE TABLE asked (id int, v vector(8), a int)');
value($node, "SELECT fill('asked', 1, 2000)");
value($node, 'CREATE INDEX asked_v ON asked USING ivfpq (v) WITH (lists = 20)');
value($node, "SELECT fill('asked', 2001, 9000)");
value($node, 'VACUUM asked');
is(value($node, "SELECT lists FROM ivfpq_info('asked_v')"), 20, 'a number of lists that was asked for stays');

# Rows of another kind at the same number.
value($node, 'DELETE FROM asked; INSERT INTO asked SELECT i, vec(i, 8) * array_fill(i % 7 + 20, \'{8}\')::vector, 0
	FROM generate_series(1, 9000) AS i');
my $log = -s $node->logfile;
vacuum_all($node, 'asked');
ok($node->log_contains(qr/index "asked_v" was trained with/, $log), 'rows of another kind have lists of their own');
vacuum_all($node, 'asked');
compares($node, 'asked', 'v <-> vec(0, 8)', 'and are found');

# --- at every step

sub begin
{
	value($node, 'DROP TABLE IF EXISTS t');
	value($node, 'CREATE TABLE t (id int PRIMARY KEY, v vector(8), a int)');
	value($node, "SELECT fill('t', 1, 2000)");
	value($node, 'CREATE INDEX t_v ON t USING ivfpq (v vector_cosine_ops, a) WITH (refine = int8)');
	value($node, "SELECT fill('t', 2001, 8000)");
	return;
}

# A VACUUM that waits at a point; returns it and who holds it there.
sub vacuum_to
{
	my ($point) = @_;
	my $gate = session($node);
	$gate->query_safe('SELECT pg_advisory_lock(23, 0)');
	my $vacuum = session($node);
	my $pid = $vacuum->query_safe("SET pgwarp.debug_pause = '$point'; SELECT pg_backend_pid()");
	start($vacuum, 'VACUUM (INDEX_CLEANUP ON) t');
	wait_until($node, "count(*) = 1 FROM pg_locks WHERE pid = $pid AND locktype = 'advisory' AND NOT granted");
	return ($gate, $vacuum);
}

my $near = 'v <=> vec(0, 8)';
for my $point ('renew', 'replace')
{
	begin();
	my $cursor = session($node);
	$cursor->query_safe('SET enable_seqscan = off; SET ivfpq.candidates = 100; BEGIN ISOLATION LEVEL REPEATABLE READ;
		DECLARE c CURSOR FOR SELECT id FROM t ORDER BY ' . $near);
	my @seen = split /\n/, $cursor->query_safe('FETCH 300 FROM c');
	my $writer = session($node);
	$writer->query_safe("BEGIN; SELECT fill('t', 8001, 8300)");
	my ($gate, $vacuum) = vacuum_to($point);
	value($node, "SELECT fill('t', 9001, 9500)");
	value($node, 'DELETE FROM t WHERE id % 20 = 3; UPDATE t SET v = vec(-id, 8), a = 1 WHERE id % 20 = 4');
	compares($node, 't', $near, "$point: while it is at it");
	$gate->query_safe('SELECT pg_advisory_unlock(23, 0)');
	my (undef, $said) = finish($vacuum);
	is($said, '', "$point: VACUUM ends");
	cmp_ok(value($node, "SELECT lists FROM ivfpq_info('t_v')"), '>', 110, 'and has made lists');
	compares($node, 't', $near, "$point: behind it");
	is(value($node, "SELECT pending_rows > 300 FROM ivfpq_info('t_v')"), 't',
		'rows of the transaction in progress are pending');
	push @seen, split /\n/, $cursor->query_safe('FETCH ALL FROM c');
	my %ids = map { $_ => 1 } @seen;
	is(@seen . '|' . keys(%ids), '8000|8000', "$point: a scan of before has all its rows once");
	# A new scan by the old snapshot.
	is($cursor->query_safe("SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM t ORDER BY $near) AS s"),
		'8000|8000', 'and so has a new one of the same transaction');
	my $free = value($node, "SELECT free_bytes FROM ivfpq_info('t_v')");
	value($node, 'VACUUM t');
	$cursor->query_safe('COMMIT');
	$writer->query_safe('COMMIT');
	compares($node, 't', $near, "$point: with the rows of that transaction");
	vacuum_all($node, 't');
	is(value($node, "SELECT pending_rows FROM ivfpq_info('t_v')"), 0, 'which come to lists');
	cmp_ok(value($node, "SELECT free_bytes FROM ivfpq_info('t_v')"), '>', $free, 'and the old lists are freed');
	compares($node, 't', $near, "$point: at last");
	indexes_are_sound($node, "$point: sound");
	is(value($node, "SELECT 8192 + model_bytes + list_bytes + refinement_bytes + pending_bytes + free_bytes - bytes
		FROM ivfpq_info('t_v')"), 0, 'every page has its use');
	$_->quit for $cursor, $writer, $gate, $vacuum;
}

# More rows than one page of the pending list holds.
begin();
my $old = session($node);
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t');
value($node, 'DELETE FROM t WHERE id % 3 = 1');
for my $lists (78, 128)
{
	my $from = -s $node->logfile;
	value($node, 'VACUUM t');
	is(value($node, "SELECT lists FROM ivfpq_info('t_v')"), $lists, "$lists lists");
	is($node->log_contains(qr/index "t_v" keeps its lists/, $from) ? 1 : 0, $lists == 78 ? 1 : 0,
		'the log says why where they stay');
	$old->query_safe('COMMIT') if $lists == 78;
}
compares($node, 't', $near, 'every row once');
$old->quit;

# Rows that were removed after VACUUM began, and that nobody sees any more.
begin();
{
	my ($gate, $vacuum) = vacuum_to('renew');
	value($node, 'DELETE FROM t WHERE id % 3 = 1');
	$gate->query_safe('SELECT pg_advisory_unlock(23, 0)');
	finish($vacuum);
	is(value($node, "SELECT lists > 110, pending_rows FROM ivfpq_info('t_v')"), 't|0', 'do not keep it from making lists');
	$_->quit for $gate, $vacuum;
	compares($node, 't', $near, 'of the others');
}

# A crash at each point, and with the old lists kept for a snapshot.
for my $point ('renew', 'replace', 'kept')
{
	begin();
	my @sessions;
	if ($point eq 'kept')
	{
		push @sessions, session($node);
		$sessions[0]->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t');
		value($node, 'VACUUM t');
	}
	else
	{
		@sessions = vacuum_to($point);
	}
	value($node, "SELECT fill('t', 9001, 9500); DELETE FROM t WHERE id % 10 = 3");
	crash($node);
	$_->{run}->kill_kill for @sessions;
	compares($node, 't', $near, "$point: after a crash");
	indexes_are_sound($node, "$point: sound after it");
	vacuum_all($node, 't');
	cmp_ok(value($node, "SELECT lists FROM ivfpq_info('t_v')"), '>', 110, "$point: the next VACUUM makes lists");
	compares($node, 't', $near, "$point: and finds all");
	vacuum_all($node, 't');
	indexes_are_sound($node, "$point: sound");
	is(value($node, "SELECT 8192 + model_bytes + list_bytes + refinement_bytes + pending_bytes + free_bytes - bytes
		FROM ivfpq_info('t_v')"), 0, 'no page is lost');
}

# --- writers that do not wait for anybody

begin();
my @writers = map { session($node) } 1 .. 3;
$node->safe_psql('postgres', 'CREATE SEQUENCE next START 100001');
for my $number (0 .. 2)
{
	start($writers[$number], <<"SQL");
DO \$\$
BEGIN
	FOR i IN 1 .. 1500 LOOP
		INSERT INTO t SELECT n, vec(n::int, 8), 1 FROM nextval('next') AS n;
		DELETE FROM t WHERE id = $number + 3 * i;
		COMMIT;
	END LOOP;
END
\$\$
SQL
}
my $wrong = 0;
for (1 .. 3)
{
	value($node, 'VACUUM t');
	$wrong += value($node, "SELECT NOT (same_rows AND each_once) FROM compare_scan('t', '$near')") ne 'f'
	  for 1 .. 2;
}
finish($_) for @writers;
is($wrong, 0, 'every search beside them has every row once');
vacuum_all($node, 't');
compares($node, 't', $near, 'so has one behind them');
cmp_ok(value($node, "SELECT lists FROM ivfpq_info('t_v')"), '>', 110, 'with new lists');

# --- a query of the standby that reads the old lists

begin();
$node->wait_for_catchup($standby);
my $reader = session($standby);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SET enable_seqscan = off; SET ivfpq.candidates = 100');
$reader->query_safe("DECLARE c CURSOR FOR SELECT id FROM t ORDER BY $near");
$reader->query_safe('FETCH 300 FROM c');
$log = -s $standby->logfile;
# A transaction number that the standby does not know.
my $idle = session($node);
$idle->query_safe('BEGIN; SELECT txid_current()');
value($node, 'VACUUM t');
$node->wait_for_catchup($standby);
ok($standby->log_contains(qr/conflict with recovery/, $log), 'a query of the standby that has the old lists ends');
$reader->{run}->kill_kill;
$idle->quit;
compares($standby, 't', $near, 'others have every row');

# A query of the standby that sees rows which the new lists lack, where a snapshot keeps the old lists.
begin();
$node->wait_for_catchup($standby);
$reader = session($standby);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SET enable_seqscan = off; SELECT count(*) FROM t');
my ($gate, $vacuum) = vacuum_to('renew');
value($node, 'DELETE FROM t WHERE id % 3 = 1');
my $keeper = session($node);
$keeper->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t');
$log = -s $standby->logfile;
$gate->query_safe('SELECT pg_advisory_unlock(23, 0)');
finish($vacuum);
cmp_ok(value($node, "SELECT lists FROM ivfpq_info('t_v')"), '>', 110, 'lists without the removed rows');
$node->wait_for_catchup($standby);
ok($standby->log_contains(qr/conflict with recovery/, $log), 'a query of the standby that sees these rows ends');
$reader->{run}->kill_kill;
$_->quit for $gate, $vacuum, $keeper;
compares($standby, 't', $near, 'others have the rows that there are');

indexes_are_sound($node);
$standby->stop;
$node->stop;

# --- the service has the new lists, too

$node = new_node('served', service => 1);
make_functions();
begin();
my $search = "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET ivfpq.probes = 1000;
	SELECT count(*) FROM (SELECT id FROM t ORDER BY $near LIMIT 300) AS s; SELECT path, probes FROM ivfpq_last_scan()";
value($node, "SELECT pgwarp_prewarm('t_v')");
like(value($node, $search), qr/^300\n.*service/, 'the service has the lists');
value($node, 'VACUUM t');
for my $round (1 .. 2)
{
	value($node, "SELECT pgwarp_prewarm('t_v')");
	like(value($node, $search), qr/^300\n.*service/, 'and new ones');
	compares($node, 't', $near, 'with every row');
	value($node, "DELETE FROM t WHERE id % 9 = 2; SELECT fill('t', ${round}0001, ${round}0500)");
	vacuum_all($node, 't');
}
indexes_are_sound($node, 'sound');
$node->stop;
done_testing();
