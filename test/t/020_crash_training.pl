# Training inside VACUUM, cut short by a kill or an immediate shutdown at every stage: whatever is
# left, the answers are right, and VACUUM finishes what was begun.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('crash_training', conf => "restart_after_crash = on\nshared_buffers = 1MB
wal_consistency_checking = 'generic'");

# The expression of the index waits, when asked to, at some row: while the sample is taken, and,
# once the model is there, while rows are moved.
value($node, <<'SQL');
CREATE TABLE gate (stage text, id int);
CREATE FUNCTION pass(id int, v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	now_at text;
BEGIN
	IF id % 1000 = 0 AND EXISTS (SELECT FROM public.gate WHERE gate.id = pass.id) THEN
		now_at := CASE WHEN (SELECT trained FROM public.ivfpq_info('public.t_v')) THEN 'moving' ELSE 'sampling' END;
		IF EXISTS (SELECT FROM public.gate WHERE stage = now_at AND gate.id = pass.id) THEN
			PERFORM pg_sleep(60);
		END IF;
	END IF;
	RETURN v;
END
$$;
CREATE TABLE t (id int, v vector(8));
CREATE INDEX t_v ON t USING ivfpq ((pass(id, v)::vector(8))) WITH (lists = 40);
INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(1, 12000) AS i;
SQL

sub whole_scan
{
	return value($node, 'SET enable_seqscan = off; SELECT count(*), count(DISTINCT id) FROM
		(SELECT id FROM t ORDER BY pass(id, v)::vector(8) <-> vec(0, 8)) AS s');
}

my $rows = 12000;
for my $stop (
	# Not every row is in the sample: whichever comes.
	[ 'sampling', 'id >= 5000', 'kill' ],
	[ 'sampling', 'id >= 9000', 'shutdown' ],
	[ 'moving', 'id = 1000', 'kill' ],
	[ 'moving', 'id = 7000', 'shutdown' ],
	# The last rows have taken the places of the first by now: whichever comes.
	[ 'moving', 'id > 0', 'kill' ])
{
	my ($stage, $rule, $way) = @$stop;
	value($node, "INSERT INTO gate SELECT '$stage', id FROM generate_series(1000, 12000, 1000) AS id
		WHERE $rule");
	value($node, 'CHECKPOINT') if $way eq 'kill';
	my $vacuum = session($node);
	my $pid = $vacuum->query_safe('SELECT pg_backend_pid()');
	start($vacuum, 'VACUUM t');
	wait_until($node, "count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'PgSleep'");
	value($node, 'DELETE FROM gate');
	my ($trained, $pending) =
	  split /\|/, value($node, "SELECT trained, pending_rows FROM ivfpq_info('t_v')");
	is($trained, $stage eq 'moving' ? 't' : 'f', "$stage, $rule, $way: $pending rows pending");
	# Rows come and go meanwhile, committed and not.
	value($node, "INSERT INTO t SELECT i, vec(i, 8) FROM generate_series($rows + 1, $rows + 100) AS i");
	$rows += 100;
	is(whole_scan(), "$rows|$rows", 'right while VACUUM is at it');
	$way eq 'kill' ? kill_backend($node, $pid) : crash($node);
	$vacuum->{run}->kill_kill;
	is(whole_scan(), "$rows|$rows", 'right after recovery');
	is(value($node, "SELECT count(*) FROM ivfpq_check('t_v', true)"), 0, 'and sound');
}
value($node, 'VACUUM t');
is(value($node, "SELECT trained, rows, pending_rows FROM ivfpq_info('t_v')"), "t|$rows|0",
	'VACUUM moves what is left');
is(value($node, "SELECT count(*) > 0 FROM ivfpq_recall_curve('t_v')"), 't', 'and measures recall');
is(whole_scan(), "$rows|$rows", 'every row once');
value($node, 'VACUUM t');
is(value($node, "SELECT 8192 + model_bytes + list_bytes + pending_bytes + free_bytes = bytes
	FROM ivfpq_info('t_v')"), 't', 'pages of trainings that were cut short are free again');

# Without anybody waiting: a shutdown right behind the training.
value($node, 'CREATE TABLE u (id int, v vector(8))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 40)');
value($node, 'INSERT INTO u SELECT i, vec(i, 8) FROM generate_series(1, 12000) AS i');
value($node, 'VACUUM u');
# VACUUM does not wait until its WAL is on disk; a commit does, and all WAL before it is there then.
value($node, "INSERT INTO gate VALUES ('none', 0)");
crash($node);
is(value($node, "SELECT trained, rows, pending_rows FROM ivfpq_info('u_v')"), 't|12000|0', 'it is in WAL');
compares($node, 'u', 'v <-> vec(0, 8)', 'with every row');

indexes_are_sound($node);
$node->stop;
done_testing();
