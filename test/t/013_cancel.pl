# A cancelled build is quick to end and leaves nothing behind; training cut short inside VACUUM leaves
# a right index, and a later VACUUM goes on.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('cancel',
	conf => "maintenance_work_mem = 256MB\nmin_parallel_table_scan_size = 1MB");
make_table($node, 't', 256, 10000);
my $oid = value($node, "SELECT oid FROM pg_database WHERE datname = 'postgres'");
my $files = sub { return scalar(my @found = glob($node->data_dir . "/base/$oid/*")) };
my $build = session($node);
my $look = session($node);    # phases are short: a new connection a look would miss some
my $pid = $build->query_safe('SELECT pg_backend_pid()');
value($node, 'CHECKPOINT');
my $files_before = $files->();

# In every phase, with and without workers.
for my $workers (0, 2)
{
	$build->query_safe("SET max_parallel_maintenance_workers = $workers");
	for my $phase ('sampling rows', 'training lists', 'training codes', 'encoding rows',
		'measuring recall')
	{
		start($build, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 500)');
		my $seen = 1;
		until ($look->query_safe("SELECT count(*) FROM pg_stat_progress_create_index
			WHERE phase = 'building index: $phase'"))
		{
			$seen = $look->query_safe("SELECT count(*) FROM pg_stat_activity
				WHERE pid = $pid AND state = 'active'") or last;
		}
		my $complaints;
		my $time = elapsed(sub {
			$look->query_safe("SELECT pg_cancel_backend($pid)");
			(undef, $complaints) = finish($build);
		});
		if ($complaints eq '')
		{
			# The phase was over before the test saw it.
			value($node, 'DROP INDEX t_v');
			next;
		}
		like($complaints, qr/canceling statement due to user request/,
			"cancelled with $workers workers, $phase");
		# The machine may be busy; a phase of this build takes longer.
		cmp_ok($time, '<', 5, 'at once');
	}
}
is(value($node, "SELECT count(*) FROM pg_class WHERE relname = 't_v'"), 0, 'no index is left');
value($node, 'CHECKPOINT');
is($files->(), $files_before, 'and no file');
is(value($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'"),
	0, 'and no worker');

# By time, at random moments.
for my $timeout (map { int(rand(700)) + 1 } 1 .. 5)
{
	my $complaints = error_of($node, "SET statement_timeout = $timeout;
		CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 500)");
	like($complaints, qr/canceling statement due to statement timeout/, "after $timeout ms")
	  or value($node, 'DROP INDEX IF EXISTS t_v');
}
# CONCURRENTLY: an invalid index that holds up nothing, and can be made again.
like(error_of($node, "SET statement_timeout = 250;
	CREATE INDEX CONCURRENTLY t_v ON t USING ivfpq (v) WITH (lists = 500)"),
	qr/canceling statement due to statement timeout/, 'concurrently');
is(value($node, "SELECT indisvalid FROM pg_index WHERE indexrelid = 't_v'::regclass"), 'f', 'invalid');
value($node, 'INSERT INTO t SELECT i, vec(i, 256) FROM generate_series(10001, 10010) AS i');
value($node, 'REINDEX INDEX CONCURRENTLY t_v');
is(value($node, "SELECT indisvalid FROM pg_index WHERE indexrelid = 't_v'::regclass"), 't', 'valid');
value($node, 'DROP TABLE t');

# Training inside VACUUM, cut short at random moments: every answer is exact, or nearly so once there
# is a model, and whole scans have every row.
my $rows = 12000;
value($node, 'CREATE TABLE u (id int, v vector(64))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 200)');
value($node, "INSERT INTO u SELECT i, vec(i, 64) FROM generate_series(1, $rows) AS i");
my (%states, $done);
my $timeout = 20;
for my $try (1 .. 40)
{
	my $complaints = error_of($node, "SET statement_timeout = $timeout; VACUUM u");
	my ($trained, $pending) =
	  split /\|/, value($node, "SELECT trained, pending_rows FROM ivfpq_info('u_v')");
	$states{ $trained eq 'f' ? 'untrained' : $pending > 0 ? 'moving' : 'trained' }++;
	is(value($node, "SELECT count(*) || ' ' || count(DISTINCT id) FROM
		(SELECT id FROM u ORDER BY v <-> vec(0, 64)) AS s"), "$rows $rows",
		"after $timeout ms: trained $trained, $pending rows pending");
	is(value($node, "SELECT count(*) FROM ivfpq_check('u_v', true)"), 0, 'sound');
	$done = $complaints eq '' and last;
	$timeout += 20 + int(rand($timeout * 0.5));
}
ok($done, 'VACUUM comes to its end');
is(value($node, "SELECT trained, pending_rows FROM ivfpq_info('u_v')"), 't|0', 'and has trained');
is(value($node, "SELECT count(*) > 0 FROM ivfpq_recall_curve('u_v')"), 't', 'and has measured');
note("states seen: " . join ', ', map { "$_ $states{$_}" } sort keys %states);
# Pages of trainings that were cut short come back: nothing is lost.
value($node, 'VACUUM u');
is(value($node, "SELECT 8192 + model_bytes + list_bytes + pending_bytes + free_bytes = bytes
	FROM ivfpq_info('u_v')"), 't', 'every page has its place');

# Cut short while it moves rows, held there by the row it reads: index expressions can wait. VACUUM has
# no schema of ours in its search_path from 17 on.
value($node, <<'SQL');
CREATE FUNCTION wait_for(id int, v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF id = 11000 AND (SELECT trained FROM public.ivfpq_info('public.w_v')) THEN
		PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
	END IF;
	RETURN v;
END
$$;
CREATE TABLE w (id int, v vector(8));
CREATE INDEX w_v ON w USING ivfpq ((wait_for(id, v)::vector(8))) WITH (lists = 50);
INSERT INTO w SELECT i, vec(i, 8) FROM generate_series(1, 12000) AS i;
SQL
my $gate = session($node);
$gate->query_safe('SELECT pg_advisory_lock(1)');
start($build, 'VACUUM w');
wait_until($node, "count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'advisory'");
my ($trained, $pending) =
  split /\|/, value($node, "SELECT trained, pending_rows FROM ivfpq_info('w_v')");
is($trained, 't', 'the model is there');
cmp_ok($pending, '>', 0, "$pending rows are still pending");
value($node, "SELECT pg_cancel_backend($pid)");
my (undef, $complaints) = finish($build);
like($complaints, qr/canceling statement/, 'cancelled in the middle');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
is(value($node, "SELECT count(*) || ' ' || count(DISTINCT id) FROM
	(SELECT id FROM w ORDER BY wait_for(id, v)::vector(8) <-> vec(0, 8)) AS s"), '12000 12000',
	'every row once, from both places');
value($node, 'INSERT INTO w SELECT i, vec(i, 8) FROM generate_series(12001, 12500) AS i');
value($node, 'DELETE FROM w WHERE id % 3 = 0');
value($node, 'VACUUM w');
is(value($node, "SELECT pending_rows, rows FROM ivfpq_info('w_v')"), '0|8334',
	'the next VACUUM moves the rest');
compares($node, 'w', 'wait_for(id, v)::vector(8) <-> vec(0, 8)', 'every row once');
is(value($node, "SELECT count(*) > 0 FROM ivfpq_recall_curve('w_v')"), 't', 'and measures recall');
cmp_ok(value($node, "SELECT ivfpq_recall('w_v', 100, 10)"), '>=', 0.9, 'which is good');

$_->quit for $build, $look, $gate;
indexes_are_sound($node);
$node->stop;
done_testing();
