# What audits teach: where searches find less than the target, effort is corrected and they find more. A
# restart keeps that, a standby reads it, and REINDEX begins anew. Where no effort helps, the log and the view
# ivfpq_drift say so.
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
	value($node, "CREATE TABLE $table (id bigint, v vector(16));
		INSERT INTO $table SELECT i, vec(i, 16) * array_fill($scale\::real, ARRAY[16])::vector
			FROM generate_series(1, $rows) AS i;
		CREATE INDEX ${table}_v ON $table USING ivfpq (v) WITH (lists = 60);
		INSERT INTO $table SELECT i, vec(i, 16) FROM generate_series(100001, 100000 + $others) AS i;
		ANALYZE $table");
	return;
}

# So many searches, all of them audited.
my $seed = 1_000_000;
sub search
{
	my ($server, $table, $count, %options) = @_;
	my $audited = $options{anew} ? 0 : value($server, "SELECT coalesce(max(audited + audits_dropped), 0) FROM pg_stat_pgwarp WHERE tablename = '$table'");
	value($server, "SET ivfpq.audit_every = 1; SET enable_seqscan = off;
		DO \$\$
		BEGIN
			FOR i IN 1 .. $count LOOP
				PERFORM id FROM $table ORDER BY v <-> vec($seed + i, 16) LIMIT 10;
			END LOOP;
		END
		\$\$");
	wait_until($server, "audited + audits_dropped = $audited + $count FROM pg_stat_pgwarp WHERE tablename = '$table'");
	$seed += $count;
	return;
}
sub correction
{
	my ($server, $table) = @_;
	return value($server, "SELECT correction FROM pgwarp_stat_audits() WHERE index = '${table}_v'::regclass");
}

# Lists and candidates of one query with this LIMIT, on the CPU.
sub effort
{
	my ($table, $rows) = @_;
	return value($node, "SET ivfpq.executor = cpu; SET enable_seqscan = off; SET ivfpq.audit_every = 0;
		SELECT count(*) FROM (SELECT id FROM $table ORDER BY v <-> vec(-5, 16) LIMIT $rows) AS s;
		SELECT probes, candidates FROM ivfpq_last_scan()");
}

# --- effort is corrected
make_moved('m', 0.6, 8000, 4000);
my ($ten, $hundred, $thousand) = map { effort('m', $_) } 10, 100, 1000;
my $before = value($node, "SELECT recall_of('m', 'true', int4range(5001, 5101), 10)");
search($node, 'm', 40);
is(correction($node, 'm'), 0, 'a few audits change nothing');
search($node, 'm', 60) for 1 .. 6;
my $correction = correction($node, 'm');
cmp_ok($before, '<', 0.93, "searches find too little: $before");
cmp_ok($correction, '>', 0.3, "effort is corrected: $correction");
my $after = value($node, "SELECT recall_of('m', 'true', int4range(5001, 5101), 10)");
cmp_ok($after, '>', $before + 0.02, "and they find more: $after");
isnt(effort('m', 10), $ten, 'a search for ten rows does more');
is(effort('m', 100), $hundred, 'for a hundred rows, it does what it did: none was audited');
is(effort('m', 1000), $thousand, 'for a thousand, too');
my ($seen, $low, $high) = split /\|/, value($node, "SELECT recall, recall_low, recall_high FROM pg_stat_pgwarp WHERE tablename = 'm'");
cmp_ok(abs($seen - $after), '<', 0.05, "pg_stat_pgwarp has what is now: $seen ($low to $high)");

# --- where the least effort finds more than was asked for, there is nothing to correct: less would be asked for
# again and again, of every k and every target
value($node, "CREATE TABLE easy (id bigint, v vector(16));
	INSERT INTO easy SELECT i, vec(i, 16) FROM generate_series(1, 3000) AS i;
	CREATE INDEX easy_v ON easy USING ivfpq (v) WITH (lists = 1); ANALYZE easy;
	ALTER DATABASE postgres SET ivfpq.target_recall = 0.5");
search($node, 'easy', 60) for 1 .. 3;
value($node, 'ALTER DATABASE postgres RESET ivfpq.target_recall');
cmp_ok(value($node, "SELECT recall FROM pg_stat_pgwarp WHERE tablename = 'easy'"), '>', 0.9, 'one list has all rows');
cmp_ok(correction($node, 'easy'), '>', -0.2, 'and nothing is corrected');

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
is(value($node, "SELECT audited FROM pg_stat_pgwarp WHERE tablename = 'far'"), 45, 'audits are counted anew');

value($node, 'VACUUM');
indexes_are_sound($node);
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|an audit of index/, 'no failure');
done_testing();
