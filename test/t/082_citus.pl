# What docs/citus.md says, with a coordinator and two workers, where Citus is installed. The functions themselves are in
# 081_kinds_of_tables.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

chomp(my $share = `pg_config --sharedir`);
plan skip_all => 'Citus is not installed' unless -e "$share/extension/citus.control";

my $conf = <<'END';
shared_preload_libraries = 'citus,pgwarp'
listen_addresses = '127.0.0.1'
citus.node_conninfo = 'sslmode=prefer'
citus.enable_statistics_collection = off
END
my @nodes = map { new_node($_, conf => $conf) } 'coordinator', 'worker_1', 'worker_2';
my $node = $nodes[0];
value($_, 'CREATE EXTENSION citus') for @nodes;
value($node, "SELECT citus_set_coordinator_host('127.0.0.1', ${\$node->port})");
value($node, "SELECT citus_add_node('127.0.0.1', ${\$_->port})") for @nodes[ 1, 2 ];

# Tenant 3 has half of the rows.
my $rows = 12000;
value($node, "CREATE TABLE copy AS SELECT i AS id, CASE WHEN i <= $rows / 2 THEN 3 ELSE i % 20 END AS tenant, vec(i, 8)::vector(8) AS v
	FROM generate_series(1, $rows) AS i");
value($node, "CREATE TABLE items (LIKE copy); INSERT INTO items SELECT id + 100000, tenant, v FROM copy WHERE id <= 2000");
value($node, "SELECT create_distributed_table('items', 'tenant', shard_count => 3)");
is(value($node, "SELECT count(*) FROM items"), 2000, 'rows are copied to shards');
value($node, "TRUNCATE items; SELECT truncate_local_data_after_distributing_table('items'); INSERT INTO items SELECT * FROM copy");
unlike(error_of($node, 'CREATE INDEX items_v_idx ON items USING ivfpq (v, tenant)'), qr/not trained/, 'no word about the shell');
value($node, 'ANALYZE items');

# --- searches
my $near = "ORDER BY v <-> vec(7, 8, 3) LIMIT 10";
my $plan = value($node, "EXPLAIN (COSTS OFF) SELECT id FROM items $near");
like($plan, qr/Task Count: 3/, 'all shards are asked');
like($plan, qr/Limit\n\s+->  Index Scan using items_v_idx_\d+/, 'with LIMIT, by their indexes');
$plan = value($node, "EXPLAIN (COSTS OFF) SELECT id FROM items WHERE tenant = 3 $near");
like($plan, qr/Task Count: 1\n.*Index Scan using items_v_idx_\d+/s, 'a tenant has one shard');
# From here on searches are exact, so that rows can be compared.
value($node, 'ALTER DATABASE postgres SET ivfpq.target_recall = 1');
my $exact = value($node, "SELECT id FROM copy $near");
is(value($node, "SELECT id FROM items $near"), $exact, 'the nearest rows of all shards');
is(value($node, "SELECT id FROM items WHERE tenant = 3 $near"), value($node, "SELECT id FROM copy WHERE tenant = 3 $near"), 'and its rows');

# --- settings, as scans of shards see them
my $seen = "SELECT min(s), max(s) FROM (SELECT current_setting('ivfpq.target_recall', id > 0)::float8 AS s FROM items) AS s";
is(value($node, $seen), '1|1', 'a setting of the database reaches workers');
is(value($node, "SET ivfpq.target_recall = 0.6; $seen"), '1|1', 'SET does not');
is(value($node, "BEGIN; SET LOCAL citus.propagate_set_commands = 'local'; SET LOCAL ivfpq.target_recall = 0.6; $seen; COMMIT"), '0.6|0.6',
	'SET LOCAL does, if it is told to');
value($node, 'CREATE ROLE reader; ALTER ROLE reader SET ivfpq.target_recall = 0.8');
is(value($node, "SELECT string_agg(result, ' ') FROM run_command_on_workers(\$\$SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'reader'::regrole\$\$)"),
	'{ivfpq.target_recall=0.8} {ivfpq.target_recall=0.8}', 'a setting of a role reaches workers');

# --- a tenant on a shard of its own
value($node, "SELECT isolate_tenant_to_new_shard('items', 3, 'CASCADE', shard_transfer_mode => 'block_writes')");
value($node, 'ANALYZE items');
my $propagated = "BEGIN; SET LOCAL citus.propagate_set_commands = 'local'; SET LOCAL ivfpq.target_recall = 0.95;";
like(value($node, "$propagated EXPLAIN (COSTS OFF) SELECT id FROM items WHERE tenant = 3 $near; COMMIT"), qr/Index Scan using items_v_idx_\d+/, 'after ANALYZE, its index is used');
is(value($node, "SELECT id FROM items $near"), $exact, 'the same rows');

# --- the recipes
my $index = "indrelid = '%s'::regclass AND indexrelid::regclass::text LIKE '%%v_idx%%'";
is(value($node, "SELECT min(result::float8), bool_and(success), count(*) > 3 FROM run_command_on_shards('items', \$\$
	SELECT coalesce(ivfpq_recall(indexrelid), 1) FROM pg_index WHERE $index \$\$)"), '1|t|t', 'ivfpq_recall of shards');
is(value($node, "SELECT sum(result::int), bool_and(success) FROM run_command_on_shards('items', \$\$
	SELECT count(*) FROM pg_index, ivfpq_check(indexrelid, true) WHERE $index \$\$)"), '0|t', 'ivfpq_check of shards');
is(value($node, "SELECT sum(result::int), bool_and(success) FROM run_command_on_shards('items', \$\$
	SELECT rows FROM pg_index, ivfpq_info(indexrelid) WHERE $index \$\$)"), "$rows|t", 'ivfpq_info of shards');
value($node, "CREATE TABLE queries AS SELECT i AS id, vec(i, 8, 5)::vector(8) AS v FROM generate_series(1, 40) AS i;
	CREATE INDEX copy_v ON copy USING ivfpq (v)");
my $expected = value($node, "SELECT query_key, rank, distance FROM knn_join('queries', 'id', 'v', 'copy_v', 'id', 5) ORDER BY 1, 2");
is(value($node, "SELECT query_key, rank, distance FROM knn_join('queries', 'id', 'v', 'items_v_idx', 'id', 5) ORDER BY 1, 2"), $expected,
	'knn_join by queries');
value($node, "SELECT create_reference_table('queries')");
my $joined = "FROM (SELECT r.*, row_number() OVER (PARTITION BY query_key ORDER BY distance, key) AS rank
	FROM run_command_on_shards('items', \$\$
		SELECT coalesce(json_agg(j), '[]') FROM pg_index, knn_join('queries', 'id', 'v', indexrelid, 'id', 5) AS j WHERE $index \$\$) AS shard,
		json_to_recordset(shard.result::json) AS r(query_key bigint, key bigint, distance real)) AS merged WHERE rank <= 5";
is(value($node, "SELECT query_key, rank, distance $joined ORDER BY 1, 2"), $expected, 'knn_join of shards, merged');
is(value($node, "SELECT count(*) $joined AND NOT EXISTS (SELECT FROM copy AS c, queries AS q WHERE c.id = key AND q.id = query_key
	AND (c.v <-> q.v)::real = distance)"), 0, 'by keys of rows that are as far');
value($node, "CREATE TABLE clusters AS SELECT * FROM kmeans('items', 'v', 5, seed => 1)");
is(value($node, "SELECT sum(size) FROM clusters"), $rows, 'kmeans has all rows');
is(value($node, "SELECT count(*) FROM (SELECT cluster, count(*) AS n FROM (SELECT kmeans_assign(v, (SELECT array_agg(centroid ORDER BY cluster)
	FROM clusters)) AS cluster FROM items) AS a GROUP BY 1) AS b JOIN clusters AS c USING (cluster) WHERE n = size"), 5, 'and shards assign them alike');

# --- maintenance
value($node, 'UPDATE items SET v = v WHERE id % 3 = 0');
value($node, 'VACUUM items');
value($node, 'REINDEX INDEX CONCURRENTLY items_v_idx');
is(value($node, "SELECT id FROM items $near"), $exact, 'the same rows after VACUUM and REINDEX');
value($node, 'DROP INDEX items_v_idx');
is(value($node, "SELECT sum(result::int) FROM run_command_on_shards('items', \$\$SELECT count(*) FROM pg_index WHERE indrelid = '%s'::regclass\$\$)"), 0, 'DROP INDEX reaches shards');
done_testing();
