# A table whose partitions are on three other servers, by postgres_fdw: knn_shards() asks each for k rows.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $main = new_node('main');
value($main, 'CREATE EXTENSION postgres_fdw; CREATE TABLE items (id int, v vector(12), kind int) PARTITION BY HASH (id)');
value($main, "CREATE TABLE exact AS SELECT i AS id, vec(i, 12, $seed) AS v, i % 4 AS kind FROM generate_series(1, 6000) AS i");
my @shards;
for my $i (0 .. 2)
{
	my $shard = new_node("shard_$i");
	value($shard, "CREATE TABLE items (id int, v vector(12), kind int); CREATE INDEX items_v ON items USING ivfpq (v);
		ALTER SYSTEM SET log_min_duration_statement = 0; SELECT pg_reload_conf()");
	value($main, "CREATE SERVER shard_$i FOREIGN DATA WRAPPER postgres_fdw
			OPTIONS (host '${\$shard->host}', port '${\$shard->port}', dbname 'postgres', extensions 'pgwarp', async_capable 'true');
		CREATE USER MAPPING FOR CURRENT_USER SERVER shard_$i;
		CREATE FOREIGN TABLE items_$i PARTITION OF items FOR VALUES WITH (MODULUS 3, REMAINDER $i) SERVER shard_$i OPTIONS (table_name 'items')");
	push @shards, $shard;
}
value($main, 'INSERT INTO items SELECT * FROM exact');
value($_, 'REINDEX INDEX items_v; VACUUM ANALYZE items') for @shards;

# Beside exact search of a copy: recall, the right distances, in order, each row from the shard that has it.
value($main, <<'SQL');
CREATE FUNCTION look(k int, o text, c text) RETURNS TABLE (rows bigint, recall boolean, same boolean, ordered boolean, placed boolean) LANGUAGE plpgsql AS $$
BEGIN
	CREATE TEMP TABLE f AS SELECT q.id AS query, s.* FROM exact AS q, knn_shards('items', 'id', 'v', q.v, k, o, c) AS s WHERE q.id % 300 = 5;
	EXECUTE format('CREATE TEMP TABLE e AS SELECT q.id AS query, s.* FROM exact AS q, LATERAL (SELECT e.id, e.v %s q.v AS d FROM exact AS e
		WHERE %s ORDER BY d LIMIT %s) AS s WHERE q.id %% 300 = 5', o, coalesce(c, 'true'), k);
	RETURN QUERY SELECT count(*), count(*) FILTER (WHERE f.distance <= (SELECT max(d) FROM e WHERE e.query = f.query))::float8 / count(*) >= 0.9,
		(SELECT bool_and(e.d = f.distance) FROM e JOIN f USING (query) WHERE e.id = f.key),
		(SELECT bool_and(distance >= before) FROM (SELECT distance, lag(distance) OVER (PARTITION BY query ORDER BY rank) AS before FROM f) AS s),
		bool_and(f.shard = (SELECT tableoid::regclass FROM items WHERE id = f.key)) FROM f;
	DROP TABLE f, e;
END$$;
SQL
is(value($main, "SELECT * FROM look(10, '<->', NULL)"), '200|t|t|t|t', 'the nearest rows of all shards');
is(value($main, "SELECT * FROM look(25, '<->', 'kind = 2')"), '500|t|t|t|t', 'with a condition');
is(value($main, "SELECT * FROM look(3, '<=>', NULL)"), '60|t|t|t|t', 'by another distance, without an index for it');

# What a shard is asked for: k rows, by the index.
my @logs = map { -s $_->logfile } @shards;
is(value($main, "SELECT count(*) FROM knn_shards('items', 'id', 'v', '[1,2,3,4,5,6,7,8,9,10,11,12]', 7)"), 7, 'a literal');
for my $i (0 .. 2)
{
	my $log = slurp_file($shards[$i]->logfile, $logs[$i]);
	like($log, qr/DECLARE c\d+ CURSOR FOR\s+SELECT .* ORDER BY .* LIMIT 7::bigint/s, "shard $i is asked for k rows");
}
like(value($shards[0], "EXPLAIN SELECT id FROM items ORDER BY v <-> vec(1, 12) LIMIT 7"), qr/Index Scan using items_v/, 'it takes the index for that');
# 14 scans one subquery of UNION ALL after the other.
my $scan = server_version() >= 15 ? 'Async Foreign Scan' : '-> +Foreign Scan';
like(error_of($main, "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET client_min_messages = log;
	SELECT count(*) FROM knn_shards('items', 'id', 'v', vec(1, 12), 3)"), qr/Append(?:(?!Merge Append).)*${scan}.*${scan}.*${scan}/s,
	'shards work at the same time');

# Tables that are here, with children and without; mistakes.
is(value($main, "SELECT array_agg(key::int ORDER BY rank) = (SELECT array_agg(id) FROM (SELECT id FROM exact ORDER BY v <-> vec(3, 12) LIMIT 5) AS s)
	FROM knn_shards('exact', 'id', 'v', vec(3, 12), 5)"), 't', 'a table without partitions');
is(value($main, "CREATE TABLE none (id int, v vector(12)) PARTITION BY HASH (id); SELECT count(*) FROM knn_shards('none', 'id', 'v', vec(3, 12), 5)"), 0, 'no partitions');
like(error_of($main, "SELECT knn_shards('items', 'id', 'v', vec(3, 12), 0)"), qr/k must be at least 1/, 'no rows');
like(error_of($main, "SELECT knn_shards('items', 'id', 'w', vec(3, 12), 1)"), qr/column "w" of relation "(public\.)?items" does not exist/, 'no such column');
like(error_of($main, "SELECT knn_shards('items', 'id', 'v', vec(3, 12), 1, '<')"), qr/there is no distance "<" for type/, 'no distance');
like(error_of($main, "SELECT knn_shards('items', 'id', 'v', NULL::vector, 1)"), qr/must not be null/, 'no query');
indexes_are_sound($_) for @shards;
done_testing();
