# More lists than a query is compared with one by one: devices have them all, and answer what the table has,
# whatever changes, on one device and spread over two.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $lists = 33000;
my $on_host = ($ENV{PGWARP_TEST_DEVICES} // 'host') eq 'host';
my $two = $on_host ? 'host,host' : '0,0';
my $node = new_node('many', service => 1, conf => 'pgwarp.service_timeout = 20s');
make_table($node, 't', 4, 20000);
value($node, "SET client_min_messages = warning; CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = $lists)");
is(value($node, "SELECT lists, parents > 100 FROM ivfpq_info('t_v')"), "$lists|t", 'the lists have parents');
wait_until($node, 'serves FROM pgwarp_service()');

# By distances: of two rows as near as each other either may come first.
my $search = 'SELECT array_agg(d) FROM (SELECT v <-> vec(%1$d, 4, 9) AS d FROM t %2$s ORDER BY v <-> vec(%1$d, 4, 9) LIMIT 5) AS s';
sub agrees
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($wrong, $paths) = (0, '');
	# A session of its own: it has not seen a list before.
	my $session = session($node);
	$session->query('SET enable_seqscan = off; SET ivfpq.probes = 2000; SET ivfpq.candidates = 2000; SET ivfpq.executor = service');
	for my $n (1 .. 12)
	{
		my $query = sprintf($search, $n, $n % 3 == 0 ? 'WHERE id % 5 < 3' : '');
		my $found = $session->query($query);
		my $path = $session->query('SELECT path FROM ivfpq_last_scan()');
		$paths .= "$path " if index($paths, $path) < 0;
		my $sorted = value($node, "SET enable_indexscan = off; $query");
		if ($found ne $sorted)
		{
			diag("query $n: $found instead of $sorted") if $wrong++ < 3;
		}
	}
	is($wrong, 0, "$name: the rows of a sort");
	is($paths, 'service ', "$name: by the service");
	$session->quit;
}

sub resident { return value($node, "SELECT pgwarp_prewarm('t_v')"); }
is(resident(), $lists, 'all lists are resident');
agrees('as built');

value($node, 'INSERT INTO t SELECT i, vec(i, 4, 9) FROM generate_series(1, 500) AS i');
agrees('with new rows');
value($node, 'DELETE FROM t WHERE id % 4 = 1');
value($node, 'UPDATE t SET v = vec(id, 4, 9) WHERE id % 9 = 2');
agrees('with rows that went and moved');
value($node, 'VACUUM (INDEX_CLEANUP ON) t');
is(resident(), $lists, 'after VACUUM all lists are resident again');
agrees('after VACUUM');
is(value($node, "SELECT count(*) FROM ivfpq_check('t_v')"), 0, 'the index is sound');

# A batch.
value($node, 'CREATE TABLE q AS SELECT i AS id, vec(i, 4, 9) AS v FROM generate_series(1, 100) AS i');
is( value(
		$node, "SET ivfpq.candidates = 2000; SET enable_indexscan = off;
		WITH exact AS (SELECT q.id, s.rank, s.d FROM q, LATERAL (SELECT row_number() OVER (ORDER BY t.v <-> q.v) AS rank, t.v <-> q.v AS d
				FROM t ORDER BY t.v <-> q.v LIMIT 5) AS s),
			found AS (SELECT * FROM knn_join('q', 'id', 'v', 't_v', 'id', 5, 2000))
		SELECT count(*), count(*) FILTER (WHERE abs(found.distance - exact.d) <= 1e-4 * exact.d)
		FROM exact FULL JOIN found ON found.query_key = exact.id AND found.rank = exact.rank"),
	'500|500', 'knn_join');

# Spread over two devices.
$node->append_conf('postgresql.conf', "pgwarp.devices = '$two'\npgwarp.placement = shard");
$node->restart;
wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
is(resident(), $lists, 'all lists are resident on two devices');
is(value($node, 'SELECT sum(own_lists), min(own_lists) > 10000 FROM pg_stat_pgwarp_devices'), "$lists|t", 'each has its share');
agrees('on two devices');

done_testing();
