# With the library preloaded, one search in ivfpq.audit_every is made again by a background worker, with a
# larger effort: audits measure recall, and leave alone what they should.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('audits', service => 1, conf => "ivfpq.audit_every = 0\nlog_min_messages = info");
make_table($node, 't', 16, 12000);
value($node, 'ALTER TABLE t ADD c int, ADD d int; UPDATE t SET c = id % 10, d = id % 7; VACUUM FULL t;
	CREATE INDEX t_v ON t USING ivfpq (v, c) WITH (lists = 60); ANALYZE t');
make_recall_function($node, 16);
my $every = 'SET ivfpq.audit_every = 1;';
my $of_t = "FROM pg_stat_pgwarp WHERE indexname = 't_v'";

sub recall_of
{
	my ($condition, $from, $to, %options) = @_;
	my $settings = $options{settings} // $every;
	return value($node, "$settings SELECT recall_of('t', '$condition', int4range($from, $to), @{[ $options{rows} // 10 ]})");
}

# --- off is off
recall_of('true', 50001, 50040, settings => '');
is(value($node, 'SELECT count(*) FROM pgwarp_stat_audits()'), 0, 'nothing is audited where it is off');
like(error_of($node, 'CREATE ROLE reader; SET ROLE reader; SET ivfpq.audit_every = 1'),
	qr/permission denied to set parameter "ivfpq.audit_every"/, 'it is not for everybody to set');

# --- what audits say is what is true
my $true = recall_of('true', 51001, 51046);
my $true_with = recall_of('c = 3', 52001, 52041);
wait_until($node, "audited = 45 AND conditions_audited = 40 $of_t");
my ($recall, $low, $high, $with) = split /\|/,
  value($node, "SELECT recall, recall_low, recall_high, conditions_recall $of_t");
cmp_ok(abs($recall - $true), '<', 0.01, "recall: $recall by audits, $true by sorting the table");
cmp_ok(abs($with - $true_with), '<', 0.01, "with a condition: $with, $true_with");
ok($low <= $true && $true <= $high && $low > $recall - 0.1, "the interval: $low to $high");
is(value($node, "SELECT audits_dropped $of_t"), 0, 'none was dropped');
is(value($node, "SELECT cpu_searches + service_searches $of_t"), 39 + 45 + 40, 'audits are not counted as searches');

# --- of halves, too
value($node, 'CREATE TABLE halves AS SELECT id, v::halfvec(16) AS v FROM t; CREATE INDEX halves_v ON halves USING ivfpq (v)
	WITH (lists = 60); ANALYZE halves');
my $true_of_halves = value($node, "$every SELECT recall_of('halves', 'true', int4range(51001, 51041), 10)");
wait_until($node, "audited = 40 FROM pg_stat_pgwarp WHERE indexname = 'halves_v'");
my $of_halves = value($node, "SELECT recall FROM pg_stat_pgwarp WHERE indexname = 'halves_v'");
cmp_ok(abs($of_halves - $true_of_halves), '<', 0.01, "recall of halves: $of_halves by audits, $true_of_halves by sorting");
value($node, 'DROP TABLE halves');

# --- a table that nothing is known of, as CREATE INDEX leaves it from 18 on
value($node, "CREATE TABLE unknown AS SELECT id, v FROM t WHERE id <= 5000;
	CREATE INDEX unknown_v ON unknown USING ivfpq (v, id) WITH (lists = 20);
	UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relname = 'unknown'");
value($node, "$every SELECT recall_of('unknown', 'true', int4range(1, 21), 10); SELECT recall_of('unknown', 'id > 2000', int4range(1, 21), 10)");
wait_until($node, "audited = 20 AND conditions_audited = 20 FROM pg_stat_pgwarp WHERE indexname = 'unknown_v'");
is(value($node, "SELECT audits_dropped FROM pg_stat_pgwarp WHERE indexname = 'unknown_v'"), 0, 'a table that was never analyzed is audited');
value($node, 'DROP TABLE unknown');

# --- searches that are not audited
# The worker takes searches in their order: when the last one was audited, others would have been.
sub not_audited
{
	my ($name, $before, $search) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# A busy machine may drop some.
	my $seen = 'audited + conditions_audited + audits_dropped';
	my $audited = value($node, "SELECT $seen $of_t");
	value($node, "$every SET enable_seqscan = off; $before $search; ROLLBACK");
	recall_of('true', 53001, 53003);
	wait_until($node, "$seen >= $audited + 2 $of_t");
	return is(value($node, "SELECT $seen - $audited $of_t"), 2, $name);
}
my $search = 'SELECT id FROM t ORDER BY v <-> vec(1, 16)';
not_audited('effort was given: probes', 'SET ivfpq.probes = 3;', "$search LIMIT 5");
not_audited('candidates', 'SET ivfpq.candidates = 30;', "$search LIMIT 5");
not_audited('max_probes', 'SET ivfpq.max_probes = 30;', "$search LIMIT 5");
not_audited('an exact search', 'SET ivfpq.target_recall = 1;', "$search LIMIT 5");
not_audited('no LIMIT', '', $search);
not_audited('a filter on rows', '', 'SELECT id FROM t WHERE d = 1 ORDER BY v <-> vec(1, 16) LIMIT 5');
not_audited('a volatile filter', '', 'SELECT id FROM t WHERE random() < 0.5 ORDER BY v <-> vec(1, 16) LIMIT 5');
not_audited('null', '', 'SELECT id FROM t ORDER BY v <-> NULL LIMIT 5');
not_audited('a transaction that writes', 'BEGIN; INSERT INTO t VALUES (1, vec(1, 16), 1, 1);', "$search LIMIT 5");
not_audited('functions that search', '', "SELECT ivfpq_recall('t_v', 10, 10)");
not_audited('knn_search', '', "SELECT count(*) FROM knn_search('t_v', ARRAY[vec(1, 16)], 5)");
not_audited('a temporary table', 'CREATE TEMP TABLE tt AS SELECT * FROM t LIMIT 2000;
	CREATE INDEX ON tt USING ivfpq (v) WITH (lists = 4);', 'SELECT id FROM tt ORDER BY v <-> vec(1, 16) LIMIT 5');

# --- one search in N
my $audited = value($node, "SELECT audited + audits_dropped $of_t");
recall_of('true', 60001, 60601, settings => 'SET ivfpq.audit_every = 30;', rows => 1);
recall_of('true', 53001, 53003);
wait_until($node, "audited + audits_dropped > $audited + 2 $of_t");
value($node, 'SELECT pg_sleep(3)');
my $more = value($node, "SELECT audited + audits_dropped - $audited $of_t") - 2;
cmp_ok($more, '>=', 5, "one in thirty of 600: $more");
cmp_ok($more, '<=', 45, 'and no more');

# --- reset
value($node, 'SELECT pg_stat_pgwarp_reset()');
is(value($node, 'SELECT count(*) FROM pgwarp_stat_audits()'), 0, 'pg_stat_pgwarp_reset() forgets audits');

# --- queries stay in memory
my @odd = map { 0.7654321 + $_ / 1024 } 1 .. 16;
my $text = '[' . join(',', @odd) . ']';
value($node, "$every SET enable_seqscan = off; SELECT id FROM t ORDER BY v <-> '$text' LIMIT 3");
recall_of('true', 53001, 53009);
$audited = value($node, "SELECT audited + audits_dropped $of_t");
value($node, 'SELECT pg_sleep(1)');
is(value($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgwarp audit' AND query LIKE '%0.76%'"),
	0, 'no query in pg_stat_activity');

# --- things that go away
value($node, 'CREATE TABLE gone AS SELECT * FROM t; CREATE INDEX gone_v ON gone USING ivfpq (v) WITH (lists = 40)');
value($node, "$every SELECT recall_of('gone', 'true', int4range(1, 60), 10); DROP TABLE gone");
value($node, 'CREATE TABLE built AS SELECT * FROM t; CREATE INDEX built_v ON built USING ivfpq (v) WITH (lists = 40)');
value($node, "$every SELECT recall_of('built', 'true', int4range(1, 60), 10); REINDEX INDEX built_v");
value($node, "SELECT pg_sleep(3)");
value($node, 'CREATE DATABASE other TEMPLATE postgres');
$node->safe_psql('other', "SET search_path = public, ivfpq_test; $every SELECT recall_of('t', 'true', int4range(1, 60), 10)");
$node->safe_psql('postgres', 'DROP DATABASE other');
pass('a database can be dropped after its searches were audited');
recall_of('true', 53001, 53040);
wait_until($node, "audited + audits_dropped >= $audited + 39 $of_t");
pass('audits go on');
value($node, "SELECT pg_sleep(3)");
is(value($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgwarp audit'"), 0,
	'the worker ends when it has nothing to do');

# --- one that takes too long ends, and leaves others their turn
# After a start, audits have some seconds free.
$node->restart;
# The worker has the server's setting, and this session another.
value($node, "$every CREATE TABLE slow AS SELECT id, v FROM t WHERE id <= 3000;
	CREATE FUNCTION slowly(v vector) RETURNS vector AS 'BEGIN
		IF current_setting(''ivfpq.audit_every'') = ''0'' THEN PERFORM pg_sleep(3600); END IF;
		RETURN v;
	END' LANGUAGE plpgsql IMMUTABLE;
	CREATE INDEX slow_v ON slow USING ivfpq ((slowly(v)::vector(16))) WITH (lists = 40)");
value($node, "$every SET enable_seqscan = off; SET max_parallel_workers_per_gather = 0;
	SELECT id FROM slow ORDER BY slowly(v)::vector(16) <-> vec($_, 16) LIMIT 5") for 1 .. 3;
recall_of('true', 53001, 53006);
wait_until($node, "audited + audits_dropped = 5 $of_t");
cmp_ok(value($node, "SELECT audited $of_t"), '>', 0, 'audits of others go on');
is(value($node, "SELECT audited, audits_dropped FROM pg_stat_pgwarp WHERE indexname = 'slow_v'"), '0|2', 'those that follow are dropped');
value($node, 'DROP TABLE slow');

indexes_are_sound($node);
$node->stop;
my $log = slurp_file($node->logfile);
unlike($log, qr/(?<!\d)0\.76[5-9]|PANIC|an audit of index \d+ failed|pgwarp audit FATAL/, 'no query in the log, and no failure');
my $slow = () = $log =~ /an audit of index \d+ took longer than 4 seconds/g;
is($slow, 1, 'one took too long, and is logged');
# Their bytes, as the worker has them.
my $bytes = pack('f<4', @odd[4 .. 7]);
my @holds;
for my $file (split /\0/, `find '@{[ $node->data_dir ]}' -type f -print0`)
{
	push @holds, $file if index(slurp_file($file), $bytes) >= 0;
}
is("@holds", '', 'nor in a file');
done_testing();
