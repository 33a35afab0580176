# Places for statistics are few: those that were not used for longest give way, indexes that never were
# take none, and nothing else depends on them.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('statistics', service => 1, conf => "pgwarp.debug_statistics_places = 8\nmax_prepared_transactions = 5");
make_table($node, 't', 4, 1100);
my $search = 'SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> vec(1, 4) LIMIT 1) AS s';
my $settings = 'SET enable_seqscan = off;';
wait_until($node, 'serves FROM pgwarp_service()');
my $used = value($node, 'SELECT used FROM pgwarp_devices()');

# Created, searched and rolled back.
value($node, "$settings DO \$\$
BEGIN
	FOR i IN 1 .. 12 LOOP
		BEGIN
			CREATE INDEX gone ON t USING ivfpq (v) WITH (lists = 4);
			PERFORM id FROM t ORDER BY v <-> vec(1, 4) LIMIT 1;
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
		END;
	END LOOP;
END
\$\$");
value($node, "$settings BEGIN; CREATE INDEX gone ON t USING ivfpq (v) WITH (lists = 4);
	SELECT pgwarp_prewarm('gone'); $search; ROLLBACK");
is(value($node, 'SELECT count(*) FROM pgwarp_stat_indexes()'), 0, 'indexes that never were take no place');
wait_until($node, "(SELECT used FROM pgwarp_devices()) = $used");
pass('nor memory of the device');

# Prepared and rolled back; dropped by a prepared transaction.
my $twice = "$settings SELECT id FROM t ORDER BY v <-> vec(1, 4) LIMIT 1; SELECT id FROM t ORDER BY v <-> vec(1, 4) LIMIT 1";
my $in_use = "(SELECT used FROM pgwarp_devices()) > $used";
value($node, "$settings BEGIN; CREATE INDEX gone ON t USING ivfpq (v) WITH (lists = 4);
	SELECT pgwarp_prewarm('gone'); PREPARE TRANSACTION 'gone'");
value($node, "ROLLBACK PREPARED 'gone'");
wait_until($node, "(SELECT used FROM pgwarp_devices()) = $used");
pass('rolled back after it was prepared: no memory of the device');
value($node, 'CREATE INDEX kept ON t USING ivfpq (v) WITH (lists = 4)');
value($node, "$twice; SELECT pgwarp_prewarm('kept')");
wait_until($node, $in_use);
value($node, "BEGIN; DROP INDEX kept; PREPARE TRANSACTION 'drop'");
value($node, "COMMIT PREPARED 'drop'");
wait_until($node, "(SELECT used FROM pgwarp_devices()) = $used");
pass('dropped by a prepared transaction: none either');

# Drops that are rolled back change nothing.
value($node, 'CREATE INDEX kept ON t USING ivfpq (v) WITH (lists = 4)');
value($node, "SET ivfpq.audit_every = 1; $twice; SELECT pgwarp_prewarm('kept')");
wait_until($node, "audited = 2 FROM pg_stat_pgwarp WHERE indexname = 'kept'");
my $counted = "SELECT cpu_searches + service_searches, audited, resident_lists FROM pg_stat_pgwarp WHERE indexname = 'kept'";
is(value($node, $counted), '2|2|4', 'what is counted');
value($node, 'BEGIN; DROP INDEX kept; ROLLBACK');
value($node, 'BEGIN; SAVEPOINT a; DROP INDEX kept; ROLLBACK TO a; COMMIT');
is(value($node, "BEGIN; DROP INDEX kept; PREPARE TRANSACTION 'drop'; ROLLBACK PREPARED 'drop'; $counted") =~ s/\|\d$//r, '2|2',
	'drops that are rolled back leave counters and audits');

# DROP INDEX CONCURRENTLY waits for a search, which brings the lists back.
my ($searcher, $dropper, $holder) = map { session($node) } 1 .. 3;
$holder->query('SELECT pg_advisory_lock(23, 0)');
$searcher->query("$settings SET ivfpq.executor = 'service'; SET pgwarp.debug_pause = 'scan'");
start($searcher, 'SELECT id FROM t ORDER BY v <-> vec(1, 4) LIMIT 1');
wait_until($node, "count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
start($dropper, 'DROP INDEX CONCURRENTLY kept');
wait_until($node, "count(*) = 1 FROM pg_index WHERE indexrelid = 'kept'::regclass AND NOT indisvalid");
$holder->query('SELECT pg_advisory_unlock(23, 0)');
is((finish($searcher))[0], 1, 'the search has its row');
finish($dropper);
is($searcher->query('SELECT path FROM ivfpq_last_scan()'), 'service', 'by the service');
wait_until($node, "(SELECT used FROM pgwarp_devices()) = $used");
is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp'), 0, 'dropped concurrently: nothing is left');
$_->quit for $searcher, $dropper, $holder;

# More indexes than places.
value($node, "CREATE TABLE t$_ AS SELECT * FROM t; CREATE INDEX t${_}_v ON t$_ USING ivfpq (v) WITH (lists = 5)")
  for 1 .. 12;
for my $n (1 .. 12)
{
	# To the second, places know when they were used.
	value($node, "$settings SELECT pg_sleep(1.1)") if $n == 9;
	value($node, "$settings SELECT id FROM t$n ORDER BY v <-> vec(1, 4) LIMIT 1");
	value($node, "$settings SELECT id FROM t1 ORDER BY v <-> vec(1, 4) LIMIT 1") if $n == 8 || $n == 10;
}
is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp'), 8, 'all places are taken');
is(value($node, "SELECT string_agg(indexname, ' ' ORDER BY indexrelid) FROM pg_stat_pgwarp
	WHERE tablename IN ('t1', 't9', 't10', 't11', 't12')"), 't1_v t9_v t10_v t11_v t12_v', 'by those used last');
is(value($node, "SELECT cpu_searches + service_searches FROM pg_stat_pgwarp WHERE tablename = 't12'"), 1,
	'who comes begins at nought');

# Prewarm and drop do without.
is(value($node, "SELECT pgwarp_prewarm('t${_}_v')"), 5, "t$_ is resident") for 1 .. 12;
cmp_ok(value($node, 'SELECT used FROM pgwarp_devices()'), '>', $used, 'memory is in use');
value($node, 'DROP TABLE ' . join(', ', map { "t$_" } 1 .. 12));
wait_until($node, "(SELECT used FROM pgwarp_devices()) = $used");
is(value($node, 'SELECT count(*) FROM pgwarp_stat_indexes()'), 0, 'places come back');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 4)');
indexes_are_sound($node);
$node->stop;
done_testing();
