# Parts of different size: a search that decides by itself how many lists it takes finds on three devices no less than on
# one.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

plan skip_all => 'needs devices with little memory' if ($ENV{PGWARP_TEST_DEVICES} // 'host') ne 'host';
my $node = new_node('shard_effort', service => 1, conf => <<"END");
pgwarp.devices = 'host'
pgwarp.service_timeout = 10s
enable_seqscan = off
END
sub all_serve { wait_until($node, 'bool_and(serves) FROM pgwarp_devices()'); }
all_serve();
value($node, "CREATE TABLE s (id bigint, v vector(16), a bigint, b bigint, c bigint, d bigint);
	INSERT INTO s SELECT i, vec(i, 16), i % 7, i, -i, i % 100 FROM generate_series(1, 14500) AS i;
	CREATE INDEX s_v ON s USING ivfpq (v, a, b, c, d) WITH (lists = 64, m = 16)");
sub answers
{
	my ($name, $devices, $memory) = @_;
	$node->append_conf('postgresql.conf', "pgwarp.devices = '$devices'\npgwarp.device_memory = $memory");
	$node->restart;
	all_serve();
	is(value($node, "SELECT pgwarp_prewarm('s_v')"), 64, "$name: all lists are resident");
	value($node, "SET ivfpq.executor = service; CREATE TABLE $name AS SELECT q, k, (SELECT sum(d) FROM
		(SELECT v <-> vec(q + 50000, 16) AS d FROM s ORDER BY d LIMIT k) AS x) AS distances FROM generate_series(1, 500) AS q, unnest('{10,300}'::int[]) AS k");
	return;
}
answers('one_device', 'host', '300MB');
answers('three_devices', 'host,host,host', '1MB');
is(value($node, "SELECT string_agg(part::text, ' ' ORDER BY place) FROM pg_stat_pgwarp_devices"), '0 1 0', 'three devices: a part on two of them');
# The sum of distances says which answer is nearer.
my ($worse, $better) = split /\|/, value($node, "SELECT string_agg(worse::text, ' ' ORDER BY k), string_agg(better::text, ' ' ORDER BY k) FROM
	(SELECT k, count(*) FILTER (WHERE b.distances > a.distances * 1.000001) AS worse, count(*) FILTER (WHERE b.distances < a.distances * 0.999999) AS better
	FROM one_device AS a JOIN three_devices AS b USING (q, k) GROUP BY k) AS s");
note("of 500 answers with 10 rows, and with 300: worse $worse, better $better");
my @worse = split / /, $worse;
my @better = split / /, $better;
cmp_ok($worse[0], '<=', 10, '10 rows: hardly any answer is worse');
cmp_ok($worse[1], '<=', $better[1], '300 rows: no more are worse than better');
indexes_are_sound($node);
$node->stop;
done_testing();
