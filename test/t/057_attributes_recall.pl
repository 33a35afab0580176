# What conditions promise: the recall asked for among the rows that pass, whatever share of the rows
# that is, and wherever they are. And conditions of unusual size.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('attributes_recall', service => 1, conf => "maintenance_work_mem = 128MB\njit = off");
# Clusters of rows around 200 places. Queries are near such places, and no rows. `side` has to do with
# the vector; the other attributes have not.
value($node, <<'SQL');
CREATE FUNCTION place(i bigint, cluster bigint, spread float8) RETURNS vector LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT ARRAY(SELECT ((hashint8extended(cluster * 1000 + d, 1) & 1023) +
		spread * ((hashint8extended(i * 1000 + d, 2) & 1023) - 511))::real FROM generate_series(1, 16) AS d)::vector
$$;
CREATE TABLE t (id int, v vector(16), tenth int, hundredth int, thousandth int, side float8, k int);
INSERT INTO t SELECT i, p, hashint4(i) & 1023, hashint4(i + 7777777) & 1023, hashint4(i * 3 + 1) & 1023, p <-> place(0, 0, 0), i
	FROM generate_series(1, 30000) AS i, place(i, i % 200, 0.4) AS p;
CREATE INDEX t_v ON t USING ivfpq (v, tenth, hundredth, thousandth, side, k);
ANALYZE t;
CREATE TABLE queries AS SELECT q, place(-q, q * 7 % 200, 0.4) AS v FROM generate_series(1, 50) AS q;

-- The k nearest rows that pass, looked up once for both executors.
CREATE TABLE truth (condition text, k int, q int, ids int[]);
-- Of these, how many the index gives, over all queries.
CREATE FUNCTION recall(condition text, k int, OUT recall float8, OUT rows float8, OUT probes float8) LANGUAGE plpgsql AS $$
DECLARE
	query record;
	found int[];
	exact int[];
	hits int := 0;
	wanted int := 0;
	sum_of_probes float8 := 0;
	number int := 0;
	line text;
	plan text;
	text text;
	known bool := EXISTS (SELECT FROM truth AS t WHERE t.condition = recall.condition AND t.k = recall.k);
BEGIN
	EXECUTE 'SELECT count(*) FROM t WHERE ' || replace(condition, '$1', '(SELECT v FROM queries LIMIT 1)') INTO rows;
	FOR query IN SELECT * FROM queries LOOP
		text := format('SELECT array_agg(id) FROM (SELECT id FROM t WHERE %s ORDER BY v <-> %L LIMIT %s) AS s',
			replace(condition, '$1', quote_literal(query.v)), query.v, k);
		SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off;
		plan := '';
		FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || text LOOP plan := plan || line; END LOOP;
		IF plan NOT LIKE '%Index Scan using t_v%' THEN RAISE 'not by the index: %', plan; END IF;
		EXECUTE text INTO found;
		sum_of_probes := sum_of_probes + (SELECT s.probes FROM ivfpq_last_scan() AS s);
		IF NOT known THEN
			SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = on;
			EXECUTE text INTO exact;
			INSERT INTO truth VALUES (condition, k, query.q, exact);
		END IF;
		SELECT ids INTO exact FROM truth AS t WHERE t.condition = recall.condition AND t.k = recall.k AND t.q = query.q;
		hits := hits + (SELECT count(*) FROM unnest(found) AS f WHERE f = ANY (exact));
		wanted := wanted + cardinality(exact);
		number := number + 1;
	END LOOP;
	recall := hits / wanted::float8;
	probes := sum_of_probes / number;
END
$$;
SQL
my $lists = value($node, "SELECT lists FROM ivfpq_info('t_v')");
my $far = value($node, 'SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY side) FROM t');
my $near = value($node, 'SELECT percentile_cont(0.01) WITHIN GROUP (ORDER BY side) FROM t');
value($node, "SELECT pgwarp_prewarm('t_v')");
for my $case (
	[ '10%', 'tenth < 102' ], [ '1%', 'hundredth < 10' ], [ '0.1%', 'thousandth = 5' ],
	[ 'half', 'tenth < 512' ], [ '1% by two conditions', 'tenth < 102 AND hundredth < 102' ],
	[ 'a few rows', 'k BETWEEN 17 AND 23' ], [ '1% by IN', 'hundredth IN (3, 77, 501, 502, 900, 901, 902, 1000, 1, 2)' ],
	[ 'the side far from a place', "side > $far" ], [ 'the side near to it', "side < $near" ],
	[ '10%, within a distance', 'tenth < 102 AND v <-> $1 < 900' ],
	# Not in the index. A cluster has 150 rows, and fewer than 10 of them pass.
	[ '10%, a filter', 'tenth + 0 < 102' ], [ '5%, a filter', 'hundredth + 0 < 51' ], [ '1%, a filter', 'hundredth + 0 < 10' ],
	[ '1% by a condition and a filter', 'tenth < 102 AND hundredth + 0 < 102' ],
	[ '10%, a filter, LIMIT 100', 'tenth + 0 < 102', 100 ],
	[ '1% by both, LIMIT 100', 'tenth < 102 AND hundredth + 0 < 102', 100 ], [ '1%, LIMIT 100', 'hundredth < 10', 100 ])
{
	my ($name, $condition, $k) = (@$case, 10);
	for my $executor ('cpu', 'service')
	{
		my ($recall, $rows, $probes) =
		  split /\|/, value($node, "SET ivfpq.executor = '$executor'; SELECT * FROM recall(\$c\$$condition\$c\$, $k)");
		diag(sprintf('%-28s %-8s recall %.3f, %d rows pass, %d of %d lists',
			$name, $executor, $recall, $rows, $probes, $lists));
		cmp_ok($recall, '>=', 0.95, "$name, $executor");
	}
}
# True only for the farthest rows from each query.
my $farthest = value($node, <<'SQL');
SET enable_seqscan = off;
DO $$
DECLARE
	query record;
	found int[];
	exact int[];
	hits int := 0;
BEGIN
	FOR query IN SELECT * FROM queries LOOP
		UPDATE t SET k = 0 WHERE k = -1;
		CREATE TEMP TABLE far ON COMMIT DROP AS SELECT id FROM t ORDER BY (v <-> query.v) + 0 DESC LIMIT 40;
		UPDATE t SET k = -1 FROM far WHERE far.id = t.id;
		SELECT array_agg(id) INTO found FROM (SELECT id FROM t WHERE k = -1 ORDER BY v <-> query.v LIMIT 10) AS s;
		SELECT array_agg(id) INTO exact FROM (SELECT id FROM t WHERE k + 0 = -1 ORDER BY (v <-> query.v) + 0 LIMIT 10) AS s;
		hits := hits + (SELECT count(*) FROM unnest(found) AS f WHERE f = ANY (exact));
		DROP TABLE far;
	END LOOP;
	PERFORM set_config('test.hits', hits::text, false);
END
$$;
SELECT current_setting('test.hits')::float8 / 500;
SQL
diag(sprintf('%-28s recall %.3f', 'the 40 farthest rows', $farthest));
cmp_ok($farthest, '>=', 0.935, 'the 40 farthest rows of each query');

# Far away, codes hardly tell which rows are nearer: more of them are ranked.
value($node, <<'SQL');
CREATE TABLE distant (id int, v vector(32), side float8);
INSERT INTO distant SELECT i, v, v <-> vec(-1, 32) FROM (SELECT i, vec(i, 32) AS v FROM generate_series(1, 20000) AS i) AS s;
CREATE INDEX distant_v ON distant USING ivfpq (v, side) WITH (m = 8);
ANALYZE distant;
SELECT pgwarp_prewarm('distant_v');
SQL
for my $executor ('cpu', 'service')
{
	my $recall = value($node, "SET enable_seqscan = off; SET enable_bitmapscan = off; SET ivfpq.executor = '$executor';
		SELECT sum((SELECT count(*) FROM unnest(a.ids) AS f WHERE f = ANY (b.ids))) / sum(cardinality(b.ids))
		FROM generate_series(1, 40) AS q, LATERAL (SELECT vec(-1, 32) + vec(q, 32) * vec(0, 32) * ARRAY(SELECT 1e-4 FROM generate_series(1, 32))::vector AS v) AS at,
		LATERAL (SELECT percentile_cont(0.99 - 0.0002 * q) WITHIN GROUP (ORDER BY side) AS far FROM distant) AS f,
		LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM distant WHERE side > far ORDER BY v <-> at.v LIMIT 10) AS s) AS a,
		LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM distant WHERE side + 0 > far ORDER BY (v <-> at.v) + 0 LIMIT 10) AS s) AS b");
	diag(sprintf('%-28s %-8s recall %.3f', 'the farthest 1%', $executor, $recall));
	# 400 rows are wanted: 0.95, less what chance may do to so few. It was 0.57 with the curve's candidates.
	cmp_ok($recall, '>=', 0.92, "the farthest 1%, $executor");
}
value($node, 'DROP TABLE distant');

# Long arrays have nearly full signatures: most entries that seem to pass do not.
value($node, <<'SQL');
CREATE TABLE tagged (id int, v vector(16), tags int[]);
INSERT INTO tagged SELECT i, vec(i, 16), ARRAY(SELECT (hashint8extended(i * 100 + n, 3) & 1023)::int FROM generate_series(1, 40) AS n)
	FROM generate_series(1, 15000) AS i;
CREATE INDEX tagged_v ON tagged USING ivfpq (v, tags);
ANALYZE tagged;
SQL
for my $condition ("tags && '{5}'", "tags @> '{5}'", "tags && '{5,6,7,8,9}'", "tags @> '{5,6}'")
{
	my $recall = value($node, "SET enable_seqscan = off; SET enable_bitmapscan = off;
		SELECT sum((SELECT count(*) FROM unnest(a.ids) AS f WHERE f = ANY (b.ids))) / sum(cardinality(b.ids))
		FROM generate_series(1, 50) AS q,
		LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM tagged WHERE $condition ORDER BY v <-> vec(-q, 16) LIMIT 10) AS s) AS a,
		LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM tagged WHERE ($condition) IS TRUE
			ORDER BY (v <-> vec(-q, 16)) + 0 LIMIT 10) AS s) AS b");
	diag(sprintf('%-28s recall %.3f', $condition, $recall));
	cmp_ok($recall, '>=', 0.95, "long arrays: $condition");
}
value($node, 'DROP TABLE tagged');

# A filter whose share the plan knows takes one round, mostly: each walks the lists again.
value($node, <<'SQL');
CREATE TABLE planned (id int, v vector(16), tenth int);
INSERT INTO planned SELECT i, vec(i, 16), hashint4(i) & 7 FROM generate_series(1, 15000) AS i;
CREATE INDEX planned_v ON planned USING ivfpq (v);
ANALYZE planned;
CREATE FUNCTION rounds_of(query vector) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	PERFORM id FROM planned WHERE tenth = 3 ORDER BY v <-> query LIMIT 10;
	RETURN (SELECT rounds FROM ivfpq_last_scan());
END
$$;
SQL
cmp_ok(value($node, "SET enable_seqscan = off; SET ivfpq.executor = 'cpu';
	SELECT avg(rounds_of(vec(-q, 16))) FROM generate_series(1, 50) AS q"), '<', 1.3, 'a filter as planned: one round');
value($node, 'DROP TABLE planned');

# With a recall of 1 nothing is missing: also where a bound on the distance, or more candidates than
# memory holds, make a scan take another way.
value($node, 'CREATE TABLE u AS SELECT i AS id, vec(i, 16) AS v, hashint4(i) & 1023 AS a FROM generate_series(1, 6000) AS i;
	ALTER TABLE u ALTER v TYPE vector(16); CREATE INDEX u_v ON u USING ivfpq (v, a) WITH (lists = 60); ANALYZE u');
for my $case ([ 'a < 300', '' ], [ 'a < 300', 'SET ivfpq.candidates = 5000;' ],
	[ 'a < 300 AND v <-> vec(-q, 16) < 350', '' ], [ 'a < 50 AND v <-> vec(-q, 16) < 350', 'SET ivfpq.candidates = 5000;' ])
{
	my ($condition, $settings) = @$case;
	is(value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET work_mem = '64kB'; $settings
		SELECT count(*) FROM generate_series(1, 60) AS q, LATERAL (SELECT array_agg(d) AS d FROM
			(SELECT v <-> vec(-q, 16) AS d FROM u WHERE $condition ORDER BY v <-> vec(-q, 16) LIMIT 10) AS s) AS a,
		LATERAL (SELECT array_agg(d) AS d FROM (SELECT v <-> vec(-q, 16) AS d FROM u
			WHERE ($condition) IS TRUE ORDER BY (v <-> vec(-q, 16)) + 0 LIMIT 10) AS s) AS b
		WHERE a.d IS DISTINCT FROM b.d"), 0, "recall 1: $condition $settings");
}
value($node, 'DROP TABLE u');

# --- nothing passes, or the condition is large

my %exact;
sub rows_by_index
{
	my ($condition, $name, $settings) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# Few candidates by setting are not promised to be the nearest rows: then all rows are asked for.
	my $limit = ($settings // '') =~ /candidates/ ? 30000 : 3000;
	my $ask = "SELECT count(*), md5(coalesce(array_agg(id ORDER BY id), '{}')::text) FROM (SELECT id FROM t WHERE $condition
		ORDER BY v <-> place(-3, 5, 1) LIMIT $limit) AS s";
	my $all = "SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100000; ${\($settings // '')}";
	my $by_index = value($node, "SET enable_seqscan = off; $all $ask");
	$exact{$ask} //= value($node, "SET enable_indexscan = off; $ask");
	is($by_index, $exact{$ask}, "$name: $by_index");
	return $by_index;
}
like(rows_by_index("tenth > 5000", 'nothing passes'), qr/^0\|/, 'nothing');
like(rows_by_index("tenth = 5000000000", 'no value of the type'), qr/^0\|/, 'nothing');
like(rows_by_index("tenth < 5 AND tenth > 9", 'a contradiction'), qr/^0\|/, 'nothing');
like(rows_by_index("tenth = ANY ('{}'::int[])", 'among none'), qr/^0\|/, 'nothing');
for my $settings ('', "SET work_mem = '64kB';", 'SET ivfpq.candidates = 10;', "SET ivfpq.iterative_scan = 'relaxed_order';")
{
	rows_by_index('k IN (' . join(', ', map { $_ * 13 } 1 .. 1000) . ')', "1,000 values, $settings", $settings);
	rows_by_index('side = ANY (ARRAY(SELECT side FROM t WHERE id % 15 = 0))', "values of a subquery, $settings", $settings);
	rows_by_index(join(' AND ', map { "tenth >= $_ AND hundredth < 1000 + $_ AND side > $_ AND k <> $_" } 1 .. 6),
		"more than 16 conditions, $settings", $settings);
	rows_by_index('tenth > 10 AND tenth < 900 AND tenth >= 12 AND tenth <= 800 AND hundredth > 3 AND hundredth < 1000 AND
		hundredth >= 5 AND hundredth <= 999 AND side > 0 AND side < 1e9 AND side >= 1 AND side <= 1e8 AND k > 0 AND k < 29000
		AND k >= 5 AND thousandth IS NOT NULL AND thousandth < 500', "17 conditions, $settings", $settings);
}
# Keys that change in a nested loop.
for my $condition ('tenth = q.q', 'tenth BETWEEN q.q AND q.q + 3', 'tenth IN (q.q, q.q + 1, 1000 - q.q)',
	'tenth = ANY (ARRAY[q.q, 3])', 'tenth < q.q AND hundredth > 1000 - q.q')
{
	is(value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 5000;
		SELECT count(*) FROM queries AS q, LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM t WHERE $condition
			ORDER BY v <-> q.v LIMIT 3) AS s) AS a, LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM t
			WHERE ($condition) IS TRUE ORDER BY (v <-> q.v) + 0 LIMIT 3) AS s) AS b
		WHERE a.ids IS DISTINCT FROM b.ids"), 0, "keys of a nested loop: $condition");
}
indexes_are_sound($node);
$node->stop;
done_testing();
