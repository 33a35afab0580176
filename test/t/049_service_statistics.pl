# Places for statistics are few: those that were not used for longest give way, indexes that never were
# take none, and nothing else depends on them.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('statistics', service => 1, conf => 'pgwarp.debug_statistics_places = 8');
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
