# Scans that have conditions of other indexes by a bitmap: what they return is what a sequential scan finds, in each of the
# scan's ways, and whatever becomes of the rows, the plan, and the table.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('bitmap_conditions', conf => "max_parallel_workers_per_gather = 0\n");
my $rows = 20000;
# A table whose columns hold conditions of several shares: doc and tags by chance, words and at along the vector.
my $make = sub {
	my ($table, $count, $options) = @_;
	value($node, "CREATE TABLE $table (id int, doc jsonb, tags int[], words tsvector, at timestamp, note text, v vector(16))
		$options");
	value($node, "INSERT INTO $table SELECT i, jsonb_build_object('tags', t.tags), ARRAY(SELECT x::int FROM unnest(t.tags) AS x),
		array_to_string(ARRAY(SELECT 'w' || s FROM unnest(ARRAY[500, 100, 10, 1]) AS s WHERE a.along < s), ' ')::tsvector,
		timestamp '2020-01-01' + a.along * interval '1 hour', repeat('first', 60), v
		FROM (SELECT i, vec(i, 16, $seed) AS v, (hashint8extended(i, 5) & 1023) * 1000 / 1024 AS chance
			FROM generate_series(1, $count) AS i) AS r,
		LATERAL (SELECT ((v::real[])[1] * 3.9 + (hashint8extended(i, 6) & 3))::int AS along) AS a,
		LATERAL (SELECT ARRAY(SELECT s::text FROM unnest(ARRAY[500, 100, 10, 1]) AS s WHERE chance < s) AS tags) AS t");
};
my $index = sub {
	my ($table) = @_;
	value($node, "CREATE INDEX ${table}_$_ ON $table USING gin ($_)") for qw(doc tags words);
	value($node, "CREATE INDEX ${table}_at ON $table (at); CREATE INDEX ${table}_id ON $table USING brin (id) WITH (pages_per_range = 4)");
};
$make->('t', $rows, 'WITH (fillfactor = 40)');
$index->('t');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v); VACUUM ANALYZE t');

# What searches with a condition find: whether the plan has the custom scan, whether they have as many rows as there are, up to
# the limit, each once and passing, and their recall.
my $functions = <<'SQL';
CREATE FUNCTION look(relation text, condition text, k int DEFAULT 10, seeds int4range DEFAULT '[1,21)',
	OUT custom bool, OUT whole bool, OUT recall float8) LANGUAGE plpgsql AS $$
DECLARE
	query text := format('SELECT id FROM %s WHERE %s ORDER BY v <-> $1 LIMIT %s', relation, condition, k);
	q vector;
	found int[];
	exact float8[];
	good int;
	hits float8 := 0;
	wanted float8 := 0;
BEGIN
	whole := true;
	FOR i IN lower(seeds) .. upper(seeds) - 1 LOOP
		q := vec(i, 16, 77);
		EXECUTE format('SELECT ARRAY(%s)', query) INTO found USING q;
		EXECUTE format('SELECT ARRAY(SELECT d FROM (SELECT (v <-> $1) + 0 AS d FROM %s WHERE %s) AS s ORDER BY d LIMIT %s)',
			relation, condition, k) INTO exact USING q;
		EXECUTE format('SELECT count(DISTINCT id) FROM %s WHERE id = ANY ($1) AND %s AND v <-> $2 <= $3', relation, condition)
			INTO good USING found, q, exact[cardinality(exact)];
		hits := hits + good;
		wanted := wanted + cardinality(exact);
		whole := whole AND cardinality(found) = cardinality(exact)
			AND (SELECT count(DISTINCT x) FROM unnest(found) AS x) = cardinality(found);
	END LOOP;
	EXECUTE format('SELECT scans_of(%L)', replace(query, '$1', quote_literal(q))) INTO query;
	custom := query LIKE '%Custom Scan%';
	recall := CASE WHEN wanted = 0 THEN 1 ELSE hits / wanted END;
END $$;
-- What EXPLAIN ANALYZE says of the custom scan.
CREATE FUNCTION said(query text, word text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
		IF line ~ word THEN RETURN trim(regexp_replace(line, '^.*' || word || ': ', '')); END IF;
	END LOOP;
	RETURN NULL;
END $$;
SQL
value($node, $functions);

# Prices that make the planner choose each of the ways for nearly every bitmap.
my %ways = (
	'the planner\'s' => '',
	lists => 'SET cpu_tuple_cost = 5; SET enable_seqscan = off; SET enable_sort = off;',
	ranked => 'SET random_page_cost = 0.001; SET seq_page_cost = 0.001; SET cpu_tuple_cost = 0; SET cpu_index_tuple_cost = 0.1; SET enable_sort = off; SET enable_seqscan = off;');
my $finds = sub {
	my ($settings, $condition, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $table = $options{table} // 't';
	my ($custom, $whole, $recall) = split /\|/, value($node,
		"$settings SELECT * FROM look('$table', \$\$$condition\$\$, " . ($options{k} // 10) . ')');
	is($custom, 't', "$name: by a bitmap") if $options{custom};
	is($whole, 't', "$name: all rows that are wanted");
	cmp_ok($recall, '>=', 0.935, "$name: recall");
};
my $way_of = sub {
	my ($settings, $condition, $table) = @_;
	return value($node, "$settings SELECT said(\$\$SELECT id FROM " . ($table // 't') . " WHERE $condition
		ORDER BY v <-> vec(3, 16, 77) LIMIT 10\$\$, 'Searched')");
};

my %conditions = (
	(map { ("jsonb $_" => "doc \@> '{\"tags\": [\"$_\"]}'", "array $_" => "tags \@> '{$_}'", "words $_" => "words \@\@ 'w$_'",
		"time $_" => "at < timestamp '2020-01-01' + interval '$_ hours'") } 500, 100, 10, 1),
	'both' => "doc \@> '{\"tags\": [\"100\"]}' AND words \@\@ 'w100'",
	'either' => "tags \@> '{10}' OR words \@\@ 'w10'",
	'block ranges' => 'id BETWEEN 1000 AND 1200',
	'and more' => "tags \@> '{100}' AND id % 3 = 0");
for my $way (sort keys %ways)
{
	$finds->($ways{$way}, $conditions{$_}, "$_, way $way", custom => $way eq 'lists' && !/500/) for sort keys %conditions;
}
is($way_of->($ways{lists}, $conditions{'jsonb 100'}), 'lists for bitmap rows', 'a way');
# Rows without a vector have no place in the order of an index, which refuses this condition: so must its scans with bitmaps.
for my $settings ('', $ways{lists}, $ways{ranked}, 'SET enable_seqscan = off; SET enable_sort = off;')
{
	is(value($node, "$settings SELECT count(*) FROM (SELECT id FROM t WHERE v IS NULL AND tags \@> '{100}'
		ORDER BY v <-> vec(3, 16, 77) LIMIT 10) AS s"), 0, "rows without a vector: '$settings'");
}
unlike(value($node, "SELECT scans_of(\$\$SELECT id FROM t WHERE $conditions{'jsonb 1'} ORDER BY v <-> vec(3, 16, 77) LIMIT 10\$\$)"), qr/Custom/,
	'few rows: a sort takes less time than finding the borders of the ways');
is($way_of->($ways{ranked}, $conditions{$_}), 'bitmap rows', "another way, $_") for 'jsonb 10', 'block ranges';
$finds->($ways{lists}, 'id < 0 AND ' . $conditions{'jsonb 10'}, 'no row passes');
$finds->($ways{lists}, "tags \@> '{7}'", 'an empty bitmap');
$finds->("$ways{lists} SET ivfpq.target_recall = 1;", $conditions{'jsonb 10'}, 'an exact search');
$finds->($ways{lists}, $conditions{'jsonb 10'}, 'a LIMIT beyond the rows', k => 1000);
for my $setting (qw(enable_bitmapscan enable_indexscan))
{
	is(value($node, "$ways{lists} SET $setting = off; SELECT custom FROM look('t', \$\$$conditions{'jsonb 10'}\$\$, 10, '[1,2)')"),
		'f', "$setting is honored");
}
my ($last) = value($node, "$ways{lists} SELECT id FROM t WHERE $conditions{'jsonb 10'} ORDER BY v <-> vec(3, 16, 77) LIMIT 1;
	SELECT ivfpq_last_scan()::text") =~ /(\(.*\))/;
like($last, qr/rows of a bitmap/, 'the last scan tells');

# Without statistics, the planner takes every condition for a rare one: the scan sees how many rows there are.
value($node, 'CREATE TABLE blind AS TABLE t; ALTER TABLE blind ALTER tags SET STATISTICS 0');
value($node, 'CREATE INDEX ON blind USING gin (tags); CREATE INDEX ON blind USING ivfpq (v); VACUUM ANALYZE blind');
like($way_of->('SET enable_sort = off;', "tags \@> '{500}'", 'blind'), qr/all rows/, 'half of the rows pass: the plain scan');
$finds->('SET enable_sort = off;', "tags \@> '{500}'", 'half of the rows pass', table => 'blind');

# A filter has the scan visit more rows than the wanted ones are among, as codes err. It visits few more than a scan for that many
# rows, and its price has about as many: here nothing else costs anything.
value($node, "CREATE TABLE coarse AS SELECT id, tags, v FROM t; CREATE INDEX ON coarse USING ivfpq (v) WITH (m = 4); VACUUM ANALYZE coarse");
value($node, <<'SQL');
CREATE FUNCTION visits(condition text, k int) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	visits float8 := 0;
BEGIN
	FOR i IN 1 .. 20 LOOP
		EXECUTE format('SELECT count(*) FROM (SELECT id FROM coarse WHERE %s ORDER BY v <-> vec(%s, 16, 77) LIMIT %s) AS s', condition, i, k);
		visits := visits + (SELECT candidates FROM ivfpq_last_scan());
	END LOOP;
	RETURN visits / 20;
END $$;
CREATE FUNCTION priced(condition text, k int) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	SET LOCAL cpu_tuple_cost = 1; SET LOCAL cpu_index_tuple_cost = 0; SET LOCAL cpu_operator_cost = 0;
	SET LOCAL random_page_cost = 0; SET LOCAL seq_page_cost = 0;
	EXECUTE format('EXPLAIN (FORMAT JSON) SELECT id FROM coarse WHERE %s ORDER BY v <-> vec(1, 16, 77) LIMIT %s', condition, k) INTO plan;
	RETURN (plan->0->'Plan'->>'Total Cost')::float8 / 2;
END $$;
SQL
for my $share (100, 10)
{
	my ($plain, $visits, $priced) = split /\|/, value($node, "SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off;
		SELECT visits('true', 10000 / $share), visits('tags \@> ''{$share}''', 10), priced('tags \@> ''{$share}''', 10)");
	cmp_ok($visits, '<', 1.32 * $plain, "$share: a filter visits few more rows");
	cmp_ok($priced, '>', 0.75 * $visits, "$share: its price has as many");
	cmp_ok($priced, '<', 1.33 * $visits, "$share: and no more");
}

# The set of rows takes memory for what the bitmap has, however large the table is.
value($node, "CREATE TABLE wide (id int, tags int[], pad text, v vector(16)) WITH (fillfactor = 10);
	ALTER TABLE wide ALTER pad SET STORAGE PLAIN; INSERT INTO wide SELECT id, CASE WHEN id % 2000 = 7 THEN '{3,5}' WHEN id % 2 = 0 THEN '{5}'
		ELSE '{}' END::int[], repeat('wide', 200), v FROM t WHERE id <= 6000; CREATE INDEX ON wide USING gin (tags);
	CREATE INDEX ON wide USING ivfpq (v); VACUUM ANALYZE wide");
for my $way (qw(lists ranked))
{
	my @used = map { value($node, "$ways{$way} BEGIN; DECLARE c CURSOR FOR SELECT id FROM wide WHERE tags \@> '{$_}' ORDER BY v <-> vec(3, 16, 77);
		FETCH 1 FROM c; SELECT 'used', sum(used_bytes) FROM pg_backend_memory_contexts WHERE name = 'ivfpq bitmap scan'") =~ /used\|(\d+)/ } 3, 5;
	cmp_ok($used[0], '<', 1500, "a set of three rows, $way");
	cmp_ok($used[1], '>', 100000, "a set of many, $way") if $way eq 'lists';
	$finds->($ways{$way}, "tags \@> '{$_}'", "a set of rows far apart, $_, $way", table => 'wide') for 3, 5;
}

# Lossy pages.
my $lossy = "SET work_mem = '64kB'; $ways{lists}";
like(value($node, "$lossy SELECT said(\$\$SELECT id FROM t WHERE tags \@> '{100}' ORDER BY v <-> vec(3, 16, 77) LIMIT 10\$\$,
	'Lossy Heap Blocks')"), qr/^[1-9]/, 'the bitmap has lossy pages');
$finds->($lossy, "tags \@> '{$_}'", "lossy pages, $_") for 500, 100, 10;
$finds->("SET work_mem = '64kB'; $ways{ranked}", "tags \@> '{100}'", 'lossy pages, ranked');

# Rescans: by the condition, by the vector, by both.
for my $inner ("tags \@> ARRAY[o.tag] ORDER BY v <-> vec(o.q, 16, 77)", "tags \@> '{10}' ORDER BY v <-> vec(o.q, 16, 77)",
	"tags \@> ARRAY[o.tag] ORDER BY v <-> vec(3, 16, 77)")
{
	my $query = "SELECT count(*), sum(s.id::bigint * o.q) FROM (SELECT q, (ARRAY[500, 100, 10, 1, 7])[1 + q % 5] AS tag
		FROM generate_series(1, 40) AS q) AS o CROSS JOIN LATERAL (SELECT id FROM t WHERE $inner, id LIMIT 8) AS s";
	is(value($node, "$ways{lists} SET ivfpq.target_recall = 1; $query"), value($node, "SET enable_indexscan = off; $query"),
		"rescans: $inner");
}
# Joins in batches take the place of such scans where these are the cheapest for one row.
my $asked = '(SELECT q, vec(q, 16, 77) AS v FROM generate_series(1, 40) AS q) AS o';
my $join = sub {
	my ($table) = @_;
	return "SELECT count(*), sum(s.id::bigint * o.q) FROM $asked CROSS JOIN LATERAL
		(SELECT id FROM $table WHERE tags \@> '{100}' ORDER BY v <-> o.v LIMIT 8) AS s";
};
my $exact = 'SET ivfpq.target_recall = 1; SET enable_seqscan = off; SET enable_sort = off;';
like(value($node, "$exact SET ivfpq.enable_batched_join = off; EXPLAIN " . $join->('t')), qr/Ivfpq Bitmap/, 'a join by bitmaps');
like(value($node, "$exact EXPLAIN " . $join->('t')), qr/Ivfpq Batch/, 'a join in batches, for less');
is(value($node, "$exact " . $join->('t')), value($node, 'SET enable_indexscan = off; ' . $join->('t')), 'its rows');
# Prepared statements.
my $run = join '; ', map { "EXECUTE p('{$_}', vec($_, 16, 77), 9)" } 500, 100, 10, 1, 7, 100;
my $prepared = "SET ivfpq.target_recall = 1; SET plan_cache_mode = force_generic_plan;
	PREPARE p(int[], vector, int) AS SELECT id FROM t WHERE tags \@> \$1 ORDER BY v <-> \$2, id LIMIT \$3";
is(value($node, "$ways{lists} $prepared; $run"), value($node, "SET enable_indexscan = off; $prepared; $run"), 'a generic plan');

# A cursor goes on beyond what it has searched for, to the end, and is updatable.
my $all = value($node, "SELECT count(*) FROM t WHERE tags \@> '{100}'");
my $cursor = "BEGIN; DECLARE c CURSOR FOR SELECT id FROM t WHERE tags \@> '{100}' ORDER BY v <-> vec(5, 16, 77)";
for my $way (qw(lists ranked))
{
	my @ids = split /\n/, value($node, "$ways{$way} $cursor; FETCH 5 FROM c; FETCH 500 FROM c; FETCH ALL FROM c");
	my %once = map { $_ => 1 } @ids;
	is(@ids, $all, "a cursor, $way: all rows");
	is(keys %once, $all, "a cursor, $way: each once");
}
is(value($node, "$ways{lists} $cursor; FETCH 2 FROM c; UPDATE t SET note = 'here' WHERE CURRENT OF c; SELECT note FROM t
	WHERE note = 'here'; ROLLBACK") =~ /here/, 1, 'WHERE CURRENT OF');

# Another index: partial, with attributes, on rows that are not trained, with a policy, in partitions.
value($node, 'DROP INDEX t_v; CREATE INDEX t_v ON t USING ivfpq (v) WHERE id % 2 = 0; ANALYZE t');
$finds->($ways{$_}, "tags \@> '{100}' AND id % 2 = 0", "a partial index, way $_") for sort keys %ways;
value($node, 'DROP INDEX t_v; CREATE INDEX t_v ON t USING ivfpq (v, at); ANALYZE t');
$finds->($ways{$_}, "tags \@> '{100}' AND at < '2020-01-05'", "with an attribute, way $_") for sort keys %ways;
value($node, 'DROP INDEX t_v; CREATE INDEX t_v ON t USING ivfpq (v) WITH (bits = 4)');
$finds->($ways{$_}, "tags \@> '{100}'", "codes of four bits, way $_") for sort keys %ways;

# Rows that were changed, with and without HOT, and that are dead.
value($node, 'UPDATE t SET note = \'changed\' WHERE id % 3 = 0; UPDATE t SET tags = tags || 10 WHERE id % 7 = 0;
	UPDATE t SET tags = \'{}\' WHERE id % 11 = 0; DELETE FROM t WHERE id % 13 = 0; UPDATE t SET note = \'again\' WHERE id % 5 = 0');
$finds->($ways{$_}, "tags \@> '{10}'", "changed rows, way $_") for sort keys %ways;
vacuum_all($node, 't');
$finds->($ways{$_}, "tags \@> '{10}'", "vacuumed rows, way $_") for sort keys %ways;

$make->('small', 300, '');
$index->('small');
value($node, 'CREATE INDEX small_v ON small USING ivfpq (v); ANALYZE small');
$finds->($ways{$_}, "tags \@> '{100}'", "an index that is not trained, way $_") for sort keys %ways;
# Vectors whose squares overflow have no code.
value($node, "INSERT INTO t SELECT -i, NULL, '{10}', NULL, NULL, NULL, array_fill((1e20 * i)::real, ARRAY[16])::vector
	FROM generate_series(1, 20) AS i; INSERT INTO t SELECT -100 - i, NULL, '{10}', NULL, NULL, NULL, NULL FROM generate_series(1, 5) AS i");
is(value($node, "$ways{$_} SELECT count(*) FROM (SELECT id FROM t WHERE tags \@> '{10}' ORDER BY v <-> vec(2, 16, 77) LIMIT 100000) AS s
	WHERE id BETWEEN -100 AND 0"), 20, "rows without a code, way $_") for sort keys %ways;

value($node, "CREATE ROLE reader; GRANT SELECT ON t TO reader; GRANT USAGE ON SCHEMA ivfpq_test TO reader;
	CREATE FUNCTION tells(id int) RETURNS bool LANGUAGE plpgsql COST 0.0001 AS \$\$ BEGIN
		IF id % 4 <> 0 THEN RAISE EXCEPTION 'a row of another'; END IF; RETURN true; END \$\$;
	ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON t USING (id % 4 = 0 AND tags \@> '{100}')");
for my $way (sort keys %ways)
{
	my $query = "SELECT id FROM t WHERE words \@\@ 'w100' AND tells(id) ORDER BY v <-> vec(4, 16, 77), id LIMIT 10";
	is(value($node, "$ways{$way} SET ivfpq.target_recall = 1; SET ROLE reader; $query"),
		value($node, "SELECT id FROM t WHERE words \@\@ 'w100' AND id % 4 = 0 AND tags \@> '{100}'
			ORDER BY (v <-> vec(4, 16, 77)) + 0, id LIMIT 10"), "a policy, way $way");
}
value($node, 'ALTER TABLE t DISABLE ROW LEVEL SECURITY');

value($node, 'CREATE TABLE parts (LIKE t) PARTITION BY RANGE (id)');
value($node, "CREATE TABLE parts$_ PARTITION OF parts FOR VALUES FROM (" . ($_ * 5000) . ') TO (' . ($_ * 5000 + 5000) . ')') for 0 .. 3;
value($node, 'INSERT INTO parts SELECT * FROM t WHERE id BETWEEN 0 AND 19999; CREATE INDEX ON parts USING gin (tags);
	CREATE INDEX ON parts USING ivfpq (v); VACUUM ANALYZE parts');
$finds->($ways{$_}, "tags \@> '{100}'", "partitions, way $_", table => 'parts') for sort keys %ways;

like(value($node, "$exact EXPLAIN " . $join->('parts')), qr/Ivfpq Batch/, 'a join with partitions in batches');
is(value($node, "$exact " . $join->('parts')), value($node, 'SET enable_indexscan = off; ' . $join->('parts')), 'its rows');

# FOR UPDATE: rows that change while the scan waits for them are checked again.
value($node, 'CREATE TABLE l AS SELECT * FROM t WHERE id > 0; CREATE INDEX ON l USING gin (tags); CREATE INDEX ON l USING ivfpq (v);
	VACUUM ANALYZE l');
for my $way (sort keys %ways)
{
	my $search = "SELECT id FROM l WHERE tags \@> '{100}' ORDER BY v <-> vec(6, 16, 77) LIMIT 4";
	my @before = split /\n/, value($node, "$ways{$way} $search");
	my ($changer, $reader) = (session($node), session($node));
	$changer->query_safe("BEGIN; UPDATE l SET tags = '{}' WHERE id = $before[1]; UPDATE l SET note = 'new' WHERE id = $before[2]");
	$reader->query_safe($ways{$way}) if $ways{$way};
	start($reader, "$search FOR UPDATE");
	wait_until($node, "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FOR UPDATE%')");
	$changer->query_safe('COMMIT');
	my ($found) = finish($reader);
	my @found = split /\n/, $found;
	is(join(',', @found[0 .. 1]), "$before[0],$before[2]", "FOR UPDATE, way $way: the row that no longer passes is left out");
	is(@found, 4, "FOR UPDATE, way $way: another takes its place");
	$_->quit for $changer, $reader;
}

# Writers and VACUUM beside: with one snapshot, the rows are those that a sequential scan finds.
value($node, "CREATE PROCEDURE write(rounds int) LANGUAGE plpgsql AS \$\$ BEGIN
	FOR i IN 1 .. rounds LOOP
		UPDATE l SET tags = CASE WHEN tags \@> '{10}' THEN '{}' ELSE tags || 10 END WHERE id % 97 = i % 97;
		DELETE FROM l WHERE id % 89 = i % 89 AND id < 15000;
		INSERT INTO l SELECT i * 1000 + id, doc, tags, words, at, note, vec(i * 1000 + id, 16, 5) FROM l WHERE id % 53 = i % 53 LIMIT 50;
		COMMIT;
	END LOOP; END \$\$");
my ($writer, $cleaner) = (session($node), session($node));
start($writer, 'CALL write(60)');
start($cleaner, "VACUUM (INDEX_CLEANUP ON) l;\n" x 8);
my $same = 0;
for my $i (1 .. 30)
{
	my $way = (sort keys %ways)[$i % 2];
	my $query = "WHERE tags \@> '{10}' ORDER BY v <-> vec($i, 16, 77), id LIMIT 30";
	my @found = split /\n/, value($node, "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL ivfpq.target_recall = 1; $ways{$way}
		SELECT string_agg(id::text, ',') FROM (SELECT id FROM l $query) AS s; SET LOCAL enable_indexscan = off;
		SELECT string_agg(id::text, ',') FROM (SELECT id FROM l $query) AS s; COMMIT");
	$same += $found[0] eq $found[1];
}
is($same, 30, 'writers and VACUUM beside: the same rows');
for my $session ($writer, $cleaner)
{
	my (undef, $complaints) = finish($session);
	is($complaints, '', 'no errors');
	$session->quit;
}
indexes_are_sound($node);
$node->stop;

# With a service, which does not answer these scans.
$node = new_node('bitmap_conditions_served', service => 1);
value($node, $functions);
$make->('t', $rows, '');
$index->('t');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v); VACUUM ANALYZE t');
for my $executor (qw(auto service))
{
	$finds->("$ways{$_} SET ivfpq.executor = $executor;", "tags \@> '{10}'", "executor $executor, way $_") for sort keys %ways;
}
like(value($node, "$ways{lists} SET ivfpq.executor = auto; SELECT id FROM t WHERE tags \@> '{10}' ORDER BY v <-> vec(3, 16, 77) LIMIT 1;
	SELECT ivfpq_last_scan()::text"), qr/rows of a bitmap/, 'the last scan tells why');
$node->stop;
done_testing();
