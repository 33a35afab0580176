# What audits teach: where searches find less than the target, effort is raised and they find more; with conditions
# and without, each for itself, and never below what was measured. A restart keeps that, a standby reads it,
# ivfpq_forget() and REINDEX begin anew. Where no effort helps, the log and the view ivfpq_drift say so.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('learning', service => 1, streaming => 1, conf => 'ivfpq.audit_every = 0');
$node->backup('backup');
make_recall_function($node, 16);
# Rows within a small box when the index is built, and others everywhere afterwards: lists and codes know
# nothing of where these are.
sub make_moved
{
	my ($table, $scale, $rows, $others) = @_;
	value($node, "CREATE TABLE $table (id bigint, v vector(16), moved int);
		INSERT INTO $table SELECT i, vec(i, 16) * array_fill($scale\::real, ARRAY[16])::vector, 0
			FROM generate_series(1, $rows) AS i;
		CREATE INDEX ${table}_v ON $table USING ivfpq (v, moved) WITH (lists = 60);
		INSERT INTO $table SELECT i, vec(i, 16), 1 FROM generate_series(100001, 100000 + $others) AS i;
		ANALYZE $table");
	return;
}

# A number of searches, all of them audited.
my $seed = 1_000_000;
sub search
{
	my ($server, $table, $count, %options) = @_;
	my $where = $options{where} // 'true';
	my $all = 'audited + conditions_audited + audits_dropped';
	# An index that is built again keeps the count of audits that were dropped.
	my $before = $options{anew} ? 'audits_dropped' : $all;
	my $audited = value($server, "SELECT coalesce(max($before), 0) FROM pg_stat_pgwarp WHERE tablename = '$table'");
	value($server, "SET ivfpq.audit_every = 1; SET enable_seqscan = off;
		DO \$\$
		BEGIN
			FOR i IN 1 .. $count LOOP
				PERFORM id FROM $table WHERE $where ORDER BY v <-> vec($seed + i, 16) LIMIT 10;
			END LOOP;
		END
		\$\$");
	wait_until($server, "$all = $audited + $count FROM pg_stat_pgwarp WHERE tablename = '$table'");
	$seed += $count;
	return;
}
# In force, of searches for about ten rows.
sub correction
{
	my ($server, $table, $kind) = @_;
	return value($server, "SELECT @{[ $kind // '' ]}corrections[2] FROM pg_stat_pgwarp WHERE tablename = '$table'");
}

# Lists and candidates of one query with this LIMIT, on the CPU.
sub effort
{
	my ($table, $rows, $where) = @_;
	$where //= 'true';
	return value($node, "SET ivfpq.executor = cpu; SET enable_seqscan = off; SET ivfpq.audit_every = 0;
		SELECT count(*) FROM (SELECT id FROM $table WHERE $where ORDER BY v <-> vec(-5, 16) LIMIT $rows) AS s;
		SELECT probes, candidates FROM ivfpq_last_scan()");
}

# --- effort is corrected
make_moved('m', 0.5, 8000, 4000);
my ($ten, $hundred, $thousand) = map { effort('m', $_) } 10, 100, 1000;
my $ten_moved = effort('m', 10, 'moved = 1');
my $before = value($node, "SELECT recall_of('m', 'true', int4range(5001, 5201), 10)");
search($node, 'm', 40);
is(correction($node, 'm'), 0, 'a few audits change nothing');
search($node, 'm', 60) for 1 .. 6;
my $correction = correction($node, 'm');
cmp_ok($before, '<', 0.93, "searches find too little: $before");
cmp_ok($correction, '>', 0.3, "effort is corrected: $correction");
my $after = value($node, "SELECT recall_of('m', 'true', int4range(5001, 5201), 10)");
cmp_ok($after, '>', $before + 0.01, "and they find more: $after");
isnt(effort('m', 10), $ten, 'a search for ten rows does more');
is(effort('m', 100), $hundred, 'for a hundred rows, it does what it did: none was audited');
is(effort('m', 1000), $thousand, 'for a thousand, too');
is(effort('m', 10, 'moved = 1'), $ten_moved, 'nor was one with a condition');
is(value($node, "SELECT conditions_audited, conditions_corrections FROM pg_stat_pgwarp WHERE tablename = 'm'"), '0|{0,0,0,0}',
	'these have corrections of their own');
my ($seen, $low, $high) = split /\|/, value($node, "SELECT recall, recall_low, recall_high FROM pg_stat_pgwarp WHERE tablename = 'm'");
cmp_ok(abs($seen - $after), '<', 0.05, "pg_stat_pgwarp has what is now: $seen ($low to $high)");

cmp_ok(value($node, "SELECT share_below_80 FROM pg_stat_pgwarp WHERE tablename = 'm'"), '<', 0.2, 'few searches found less than 0.8');

# --- searches with a condition raise theirs
make_moved('half', 0.4, 8000, 4000);
my ($plain, $moved) = map { effort('half', 10, $_) } 'true', 'moved = 1';
search($node, 'half', 60, where => 'moved = 1') for 1 .. 2;
my $with_condition = correction($node, 'half', 'conditions_');
cmp_ok($with_condition, '>', 0.3, "the effort of searches with a condition is raised: $with_condition");
isnt(effort('half', 10, 'moved = 1'), $moved, 'they do more');
is(value($node, "SELECT audited, corrections FROM pg_stat_pgwarp WHERE tablename = 'half'"), '0|{0,0,0,0}', 'the others have no correction');
is(effort('half', 10), $plain, 'and do what was measured');
value($node, "SELECT ivfpq_forget('half_v')");
is(effort('half', 10, 'moved = 1'), $moved, 'ivfpq_forget() forgets theirs');
value($node, 'DROP TABLE half');

# --- searches that find more than was asked for leave effort as it was measured
value($node, "CREATE TABLE easy (id bigint, v vector(16), moved int);
	INSERT INTO easy SELECT i, vec(i, 16), i % 2 FROM generate_series(1, 3000) AS i;
	CREATE INDEX easy_v ON easy USING ivfpq (v, moved) WITH (lists = 1); ANALYZE easy;
	ALTER DATABASE postgres SET ivfpq.target_recall = 0.5");
my $easy = effort('easy', 10);
search($node, 'easy', 60);
search($node, 'easy', 60, where => 'moved = 1');
is(value($node, "SELECT recall > 0.9, share_below_80 < 0.1, corrections, conditions_recall > 0.9, conditions_corrections
	FROM pg_stat_pgwarp WHERE tablename = 'easy'"), 't|t|{0,0,0,0}|t|{0,0,0,0}', 'searches that find more than was asked for lower nothing');
is(effort('easy', 10), $easy, 'and do what was measured');
value($node, 'ALTER DATABASE postgres RESET ivfpq.target_recall');

# --- a restart keeps it, after a crash, too
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
search($node, 'm', 1);
is(correction($node, 'm'), $correction, 'a restart keeps what was learned');
crash($node);
wait_until($node, 'serves FROM pgwarp_service()');
search($node, 'm', 1);
is(correction($node, 'm'), $correction, 'so does a crash');

# --- a standby reads it
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
wait_until($standby, 'serves FROM pgwarp_service()');
my $by_cpu = "SET ivfpq.executor = cpu; SELECT recall_of('m', 'true', int4range(5001, 5101), 10)";
is(value($standby, $by_cpu), value($node, $by_cpu), 'a standby searches with the same effort');
search($standby, 'm', 120);
is(correction($standby, 'm'), $correction, 'its own audits change nothing');
my ($audited, $recall) = split /\|/, value($standby, "SELECT audited, recall FROM pg_stat_pgwarp WHERE tablename = 'm'");
is($audited, 120, 'but it has them');
cmp_ok(abs($recall - $after), '<', 0.05, "and their recall: $recall");

# --- forgotten
like(error_of($standby, "SELECT ivfpq_forget('m_v')"), qr/cannot execute ivfpq_forget\(\) during recovery/, 'a standby does not forget by itself');
like(error_of($node, "CREATE ROLE reader; GRANT SELECT ON m TO reader; SET ROLE reader; SELECT ivfpq_forget('m_v')"),
	qr/permission denied|must be owner/, 'nor does everybody');
is(correction($node, 'm'), $correction, 'which changes nothing');
value($node, "SELECT ivfpq_forget('m_v')");
is(join(' ', effort('m', 10), effort('m', 10, 'moved = 1')), "$ten $ten_moved", 'after ivfpq_forget() searches do what was measured');
is(value($node, "SELECT count(*) FROM pgwarp_stat_audits() WHERE index = 'm_v'::regclass"), 0, 'and no audits are left');
$node->wait_for_catchup($standby);
is(value($standby, "SELECT learned_at IS NULL FROM ivfpq_info('m_v')"), 't', 'on the standby, too');
$standby->stop;

# --- drift
make_moved('far', 0.05, 3000, 9000);
my $log_before = -s $node->logfile;
search($node, 'far', 60) for 1 .. 9;
is(correction($node, 'far'), 3, 'the correction has a bound');
is(value($node, "SELECT schemaname, tablename, indexname, reason, recall < 0.9, rows_at_build, rows > 11000, way_out FROM ivfpq_drift"),
	'public|far|far_v|recall is below the target, with the largest effort that audits may ask for|t|3000|t|REINDEX INDEX CONCURRENTLY public.far_v',
	'the view has what is to be done');
my $log = substr(slurp_file($node->logfile), $log_before);
my $warnings = () = $log =~ /WARNING:  recall of index "far_v" is below the target/g;
is($warnings, 1, 'the log says so once');
like($log, qr/HINT:  Build it again: REINDEX INDEX CONCURRENTLY public\.far_v/, 'with the way out');

# --- REINDEX begins anew
value($node, 'REINDEX INDEX far_v');
is(value($node, 'SELECT count(*) FROM ivfpq_drift'), 0, 'built again, it is no drift');
search($node, 'far', 45, anew => 1);
is(correction($node, 'far'), 0, 'and has nothing learned');
cmp_ok(value($node, "SELECT recall FROM pg_stat_pgwarp WHERE tablename = 'far'"), '>', 0.9, 'nor needs it');
cmp_ok(value($node, "SELECT audited FROM pg_stat_pgwarp WHERE tablename = 'far'"), '<=', 45, 'audits are counted anew');

value($node, 'VACUUM');
indexes_are_sound($node);
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|an audit of index/, 'no failure');
done_testing();
