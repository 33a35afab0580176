# knn_search, knn_join and LATERAL joins ask the service for many queries at once. Rows are those of an exact search, each
# time: with lists that grow, lose rows or are not there, with pending rows, over partitions, and with a worker that hangs.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('served_batches', service => 1, conf => "work_mem = 16MB\npgwarp.watchdog_timeout = 0\nivfpq.audit_every = 0");
my ($rows, $queries) = (4000, 120);
value($node, "CREATE TABLE items (id int PRIMARY KEY, v vector(8), kind int DEFAULT 0);
	INSERT INTO items SELECT i, vec(i, 8, $seed), i % 5 FROM generate_series(1, $rows) AS i;
	CREATE INDEX items_v ON items USING ivfpq (v) WITH (lists = 40, m = 4);
	CREATE TABLE parts (id int, v vector(8)) PARTITION BY HASH (id);
	CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 3, REMAINDER 0);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 3, REMAINDER 1);
	CREATE TABLE parts_2 PARTITION OF parts FOR VALUES WITH (MODULUS 3, REMAINDER 2);
	INSERT INTO parts SELECT id, v FROM items;
	CREATE INDEX parts_v ON parts USING ivfpq (v) WITH (lists = 20, m = 4);
	CREATE TABLE queries AS SELECT i AS id, vec(i, 8, $seed + 1) AS v FROM generate_series(1, $queries) AS i;
	VACUUM ANALYZE");
wait_until($node, 'serves FROM pgwarp_service()');

# All lists and many candidates: what is not exact is wrong.
my $settings = "SET ivfpq.probes = 100; SET ivfpq.candidates = 1500; SET enable_seqscan = off; SET enable_sort = off;
	SET ivfpq.executor = service; SET pgwarp.service_timeout = '60s';";
my %ways = (
	knn_search => "SELECT query AS id, i.id AS key FROM knn_search('%1\$s_v', (SELECT array_agg(v ORDER BY id) FROM queries), 10) AS f
		JOIN %1\$s AS i ON i.ctid = f.ctid AND i.tableoid = f.tableoid",
	knn_join   => "SELECT query_key AS id, key FROM knn_join('queries', 'id', 'v', '%s_v', 'id', 10)",
	lateral    => 'SELECT q.id, r.id AS key FROM queries AS q, LATERAL (SELECT i.id FROM %s AS i ORDER BY i.v <-> q.v LIMIT 10) AS r');
# Queries whose rows do not have the least distances, and rows found twice.
sub wrong_rows
{
	my ($table, $way) = @_;
	my $asked = sprintf($ways{$way}, $table);
	return value($node, "$settings CREATE TEMP TABLE found AS $asked;
		SET enable_indexscan = off; SET enable_seqscan = on; SET enable_sort = on;
		WITH exact AS (SELECT q.id, array_agg(r.d ORDER BY r.d) AS distances FROM queries AS q,
				LATERAL (SELECT i.v <-> q.v AS d FROM $table AS i ORDER BY i.v <-> q.v LIMIT 10) AS r GROUP BY q.id),
			found_all AS (SELECT q.id, array_agg(i.v <-> q.v ORDER BY i.v <-> q.v) AS distances
				FROM found AS f JOIN queries AS q USING (id) JOIN $table AS i ON i.id = f.key GROUP BY q.id)
		SELECT (SELECT count(*) FROM exact LEFT JOIN found_all USING (id) WHERE exact.distances IS DISTINCT FROM found_all.distances) || ' ' ||
			(SELECT count(*) - count(DISTINCT (id, key)) FROM found) || ' ' || (SELECT count(*) FROM found)");
}
sub searches
{
	return value($node, "SELECT coalesce(sum(cpu_searches), 0) || ' ' || coalesce(sum(service_searches), 0) FROM pg_stat_pgwarp
		WHERE tablename LIKE '$_[0]%'");
}
sub all_are_exact
{
	my ($how, $served) = @_;
	for my $table ('items', 'parts')
	{
		for my $way (sort keys %ways)
		{
			value($node, 'SELECT pg_stat_pgwarp_reset()');
			is(wrong_rows($table, $way), '0 0 ' . 10 * $queries, "$how, $way of $table: the exact rows");
			my $searches = $queries * ($table eq 'parts' ? 3 : 1);
			is(searches($table), "0 $searches", "$how, $way of $table: each query by the service, once") if $served;
		}
	}
	return;
}
sub prewarm
{
	is(value($node, "SELECT pgwarp_prewarm('items_v') + pgwarp_prewarm('parts_v')"), 100, "$_[0]: all lists are resident");
	return;
}

prewarm('first');
all_are_exact('resident', 1);
like(value($node, "$settings EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " . sprintf($ways{lateral}, 'items')),
	qr/Custom Scan \(Ivfpq Batch\).*Executor: service.*Queries: $queries\s+Single Scans: 0/s, 'EXPLAIN names the service');

# A bound on lists is one for the service, too: no query is asked for again.
value($node, 'SELECT pg_stat_pgwarp_reset()');
is(value($node, 'SET ivfpq.executor = service; SET ivfpq.max_probes = 2; SET enable_seqscan = off; SET ivfpq.iterative_scan = off;
	SELECT count(*) FROM (' . sprintf($ways{lateral}, 'items') . ') AS s'), 10 * $queries, 'with few lists: as many rows');
is(searches('items'), "0 $queries", 'with few lists: each query once');

# Entries that the service does not have yet, and rows that are gone.
value($node, "INSERT INTO items SELECT i, vec(i, 8, $seed), 0 FROM generate_series($rows + 1, $rows + 40) AS i;
	INSERT INTO parts SELECT id, v FROM items WHERE id > $rows");
all_are_exact('lists that have grown', 0);
value($node, 'DELETE FROM items WHERE id % 7 = 0; DELETE FROM parts WHERE id % 7 = 0; UPDATE items SET kind = 9 WHERE id % 11 = 0');
all_are_exact('dead rows', 0);
value($node, 'VACUUM (INDEX_CLEANUP ON) items; VACUUM (INDEX_CLEANUP ON) parts');
all_are_exact('lists that lost rows', 0);
prewarm('again');
all_are_exact('again', 1);

# A worker that knows nothing, one that hangs, and no room for more than two searches.
value($node, 'ALTER SYSTEM SET pgwarp.max_searches = 2');
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
all_are_exact('little room, a new worker', 0);
prewarm('little room');
all_are_exact('little room', 1);
value($node, 'ALTER SYSTEM RESET pgwarp.max_searches');
$node->restart;
wait_until($node, 'serves FROM pgwarp_service()');
prewarm('a new worker');
my $worker = value($node, 'SELECT pid FROM pgwarp_service()');
kill('STOP', $worker);
$settings =~ s/ivfpq.executor = service/ivfpq.executor = auto/;
$settings =~ s/'60s'/300/;
is(wrong_rows('items', 'lateral'), '0 0 ' . 10 * $queries, 'a worker that hangs: the exact rows');
kill('CONT', $worker);
indexes_are_sound($node);
$node->stop;
done_testing();
