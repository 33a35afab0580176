# Training inside VACUUM: the model is for the rows that can be seen, and one whose VACUUM was cut
# short before the recall curve was measured gets its curve from a later one, once.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('vacuum_training');

# --- rows of transactions that are under way are no rows to plan for

value($node, 'CREATE TABLE t (id int, v vector(4))');
value($node, "CREATE INDEX $_") for 't_v ON t USING ivfpq (v)', 't_p ON t USING ivfpq (v) WHERE id > 0';
my $row = 'i, ARRAY[i % 251, i % 241, i % 239, i % 233]::vector FROM generate_series';
value($node, "INSERT INTO t SELECT $row(1, 9999) AS i");
my $writer = session($node);
$writer->query_safe('BEGIN');
$writer->query_safe("INSERT INTO t SELECT $row(20001, 50000) AS i");
value($node, 'VACUUM t');
is(value($node, "SELECT trained, pending_rows FROM ivfpq_info('t_v')"), 'f|39999',
	'9,999 rows that can be seen are too few, whatever others are writing');
value($node, "INSERT INTO t SELECT $row(10000, 10100) AS i");
value($node, 'VACUUM t');
for my $index ('t_v', 't_p')
{
	is(value($node, "SELECT trained, lists, training_rows > 9000, rows_at_build, pending_rows
		FROM ivfpq_info('$index')"), 't|176|t|10100|30000', "$index: 176 lists for 10,100 rows");
}
$writer->query_safe('COMMIT');
value($node, 'VACUUM t');
is(value($node, "SELECT rows, pending_rows FROM ivfpq_info('t_v')"), '40100|0', 'the others follow');
compares($node, 't', "v <-> '[1,2,3,4]'", 'with every row');

# --- a curve that was not measured is measured later

# Held by a row that the VACUUM moves, then cancelled, or killed. VACUUM has no schema of ours in its
# search_path from 17 on.
value($node, <<'SQL');
CREATE FUNCTION wait_for(id int, v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF id = 11000 AND (SELECT trained FROM public.ivfpq_info('public.w_v')) THEN
		PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
	END IF;
	RETURN v;
END
$$;
SQL
for my $way ('cancel', 'kill')
{
	value($node, 'DROP TABLE IF EXISTS w');
	value($node, 'CREATE TABLE w (id int, v vector(16))');
	value($node, 'CREATE INDEX w_v ON w USING ivfpq ((wait_for(id, v)::vector(16))) WITH (lists = 100)');
	value($node, 'INSERT INTO w SELECT i, vec(i, 16) FROM generate_series(1, 12000) AS i');
	my $gate = session($node);
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $vacuum = session($node);
	my $pid = $vacuum->query_safe('SELECT pg_backend_pid()');
	start($vacuum, 'VACUUM w');
	wait_until($node, "count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'advisory'");
	if ($way eq 'cancel')
	{
		value($node, "SELECT pg_cancel_backend($pid)");
		my (undef, $complaints) = finish($vacuum);
		like($complaints, qr/canceling statement/, 'cancelled before it measures');
		$gate->quit;
		$vacuum->quit;
	}
	else
	{
		$node->append_conf('postgresql.conf', 'restart_after_crash = on');
		$node->reload;
		# What the VACUUM has written so far survives only if its WAL is on disk.
		value($node, 'CHECKPOINT');
		kill_backend($node, $pid);
		$_->{run}->kill_kill for $gate, $vacuum;
	}
	is(value($node, "SELECT trained FROM ivfpq_info('w_v')"), 't', "$way: there is a model");
	is(value($node, "SELECT count(*) FROM ivfpq_recall_curve('w_v')"), 0, 'and no curve');
	my $log = -s $node->logfile;
	if ($way eq 'cancel')
	{
		# With too few rows to tell recall by, it waits for more.
		value($node, 'DELETE FROM w WHERE id > 50');
		vacuum_all($node, 'w');
		is(value($node, "SELECT rows, pending_rows FROM ivfpq_info('w_v')"), '50|0', 'few rows');
		ok(!$node->log_contains(qr/was measured/, $log), 'are not measured');
		value($node, 'INSERT INTO w SELECT i, vec(i, 16) FROM generate_series(51, 12000) AS i');
	}
	value($node, 'VACUUM w');
	ok($node->log_contains(qr/recall of index "w_v" was measured with 2048 queries/, $log),
		'the next VACUUM measures');
	is(value($node, "SELECT pending_rows FROM ivfpq_info('w_v')"), 0, 'and moves what is left');
	is(value($node, "SELECT count(*) > 0, max(recall) > 0.99 FROM ivfpq_recall_curve('w_v')"), 't|t',
		'there is a curve');
	cmp_ok(value($node, "SELECT ivfpq_recall('w_v', 200, 10)"), '>=', 0.93, 'recall is as asked for');
	$log = -s $node->logfile;
	my $curve = value($node, "SELECT md5(string_agg(c::text, ',')) FROM ivfpq_recall_curve('w_v') AS c");
	value($node, 'VACUUM w');
	ok(!$node->log_contains(qr/was measured/, $log), 'once is enough');
	is(value($node, "SELECT md5(string_agg(c::text, ',')) FROM ivfpq_recall_curve('w_v') AS c"), $curve,
		'it stays as it is');
}

# Of a partial index on a column, cut short by time until it has a model and no curve. A parallel
# VACUUM cannot evaluate its predicate, and leaves it to the next.
value($node, 'CREATE TABLE p (id int PRIMARY KEY, v vector(16))');
value($node, 'CREATE INDEX p_v ON p USING ivfpq (v) WITH (lists = 100) WHERE id % 2 = 0');
value($node, 'INSERT INTO p SELECT i, vec(i, 16) FROM generate_series(1, 22000) AS i');
my $seen = 0;
for (my $timeout = 50; $timeout < 20000; $timeout *= 1.25)
{
	error_of($node, "SET statement_timeout = ${\int($timeout)}; VACUUM p");
	$seen = value($node, "SELECT trained FROM ivfpq_info('p_v')") eq 't' and last;
}
ok($seen, 'trained');
SKIP:
{
	skip 'it got its curve at once', 1
	  if value($node, "SELECT count(*) FROM ivfpq_recall_curve('p_v')") > 0;
	value($node, 'SET min_parallel_index_scan_size = 0; VACUUM (PARALLEL 2) p');
	is(value($node, "SELECT pending_rows FROM ivfpq_info('p_v')"), 0, 'a parallel one moves entries');
}
value($node, 'VACUUM (PARALLEL 0) p');
is(value($node, "SELECT pending_rows FROM ivfpq_info('p_v')"), 0, 'no entry is left');
is(value($node, "SELECT count(*) > 0 FROM ivfpq_recall_curve('p_v')"), 't', 'there is a curve');
compares($node, 'p', 'v <-> vec(0, 16)', 'with every row', condition => 'id % 2 = 0');

$writer->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
