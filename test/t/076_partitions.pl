# A search of a partitioned table: its scans share the work, wherever the nearest rows lie, and return them in
# order, none lost and none twice.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $rows = 6000;
my $node = new_node('partitions', service => 1);
value($node, "CREATE TABLE one AS SELECT i AS id, vec(i, 10, $seed) AS v, i % 7 AS kind, 0 AS place FROM generate_series(1, $rows) AS i");
# Clusters of vectors, and which one a row is in: partitions by it have all near rows together.
value($node, "CREATE TABLE centers AS SELECT array_agg(centroid ORDER BY cluster) AS c FROM kmeans('one', 'v', 6, seed => 3);
	UPDATE one SET place = kmeans_assign(v, (SELECT c FROM centers)); VACUUM one");
value($node, "CREATE TABLE q AS SELECT i AS id, vec(i, 10, $seed + 1) AS v FROM generate_series(1, 12) AS i;
	INSERT INTO q SELECT id + 1000, v FROM one WHERE id % (${\int($rows / 8)}) = 7");
my %parts = (
	by_hash => 'HASH (id)', by_place => 'LIST (place)', lopsided => 'RANGE (id)', nested => 'LIST (kind)', one_has_all => 'RANGE (id)');
value($node, "CREATE TABLE $_ (id int, v vector(10), kind int, place int) PARTITION BY $parts{$_}") for keys %parts;
value($node, "CREATE TABLE by_hash_$_ PARTITION OF by_hash FOR VALUES WITH (MODULUS 5, REMAINDER $_)") for 0 .. 4;
value($node, "CREATE TABLE by_place_$_ PARTITION OF by_place FOR VALUES IN ($_)") for 1 .. 6;
# One large, one that is too small for a model, one that is empty, one without vectors, one without an index.
value($node, "CREATE TABLE lopsided_large PARTITION OF lopsided FOR VALUES FROM (0) TO (4000);
	CREATE TABLE lopsided_small PARTITION OF lopsided FOR VALUES FROM (4000) TO (4300);
	CREATE TABLE lopsided_other PARTITION OF lopsided FOR VALUES FROM (4300) TO (100000);
	CREATE TABLE lopsided_empty PARTITION OF lopsided FOR VALUES FROM (100000) TO (200000);
	CREATE TABLE lopsided_null PARTITION OF lopsided DEFAULT;
	INSERT INTO lopsided SELECT 300000 + i, NULL, 0, 0 FROM generate_series(1, 100) AS i;
	CREATE TABLE nested_0 PARTITION OF nested FOR VALUES IN (0, 1, 2) PARTITION BY HASH (id);
	CREATE TABLE nested_00 PARTITION OF nested_0 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE nested_01 PARTITION OF nested_0 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	CREATE TABLE nested_1 PARTITION OF nested DEFAULT;
	CREATE TABLE one_has_all_1 PARTITION OF one_has_all FOR VALUES FROM (0) TO (50000);
	CREATE TABLE one_has_all_2 PARTITION OF one_has_all FOR VALUES FROM (50000) TO (100000);
	CREATE TABLE one_has_all_3 PARTITION OF one_has_all FOR VALUES FROM (100000) TO (200000)");
value($node, "INSERT INTO $_ SELECT id, v, kind, place FROM one") for keys %parts;
# Rows that are far from all queries, and as many as the others: the planner expects the nearest everywhere.
value($node, "INSERT INTO one_has_all SELECT 50000 + id, ARRAY(SELECT 100 + unnest(v::real[]))::vector, kind, place FROM one WHERE id < 4500;
	INSERT INTO one_has_all SELECT 100000 + id, ARRAY(SELECT -100 + unnest(v::real[]))::vector, kind, place FROM one WHERE id < 4500");
value($node, "CREATE INDEX ON $_ USING ivfpq (v, kind)") for keys %parts;
value($node, 'VACUUM ANALYZE');
value($node, "CREATE TABLE refined (LIKE by_place) PARTITION BY LIST (place)");
value($node, "CREATE TABLE refined_$_ PARTITION OF refined FOR VALUES IN ($_)") for 1 .. 6;
value($node, "INSERT INTO refined SELECT id, v, kind, place FROM one; CREATE INDEX ON refined USING ivfpq (v) WITH (refine = int8); VACUUM ANALYZE refined");
value($node, 'CREATE TABLE seen AS SELECT id FROM one WHERE id % 10 <> 3; ANALYZE seen');
# A partition whose index has lists, and rows that wait: VACUUM could not see them when it trained the index.
value($node, "CREATE TABLE waiting (id int, v vector(10)) PARTITION BY RANGE (id);
	CREATE TABLE waiting_1 PARTITION OF waiting FOR VALUES FROM (0) TO (100000);
	CREATE TABLE waiting_2 PARTITION OF waiting FOR VALUES FROM (100000) TO (200000);
	INSERT INTO waiting SELECT i, vec(i, 10, $seed) FROM generate_series(100001, 112000) AS i;
	CREATE INDEX ON waiting USING ivfpq (v); INSERT INTO waiting SELECT i, vec(i, 10, $seed) FROM generate_series(1, 11000) AS i");
my $writer = session($node);
$writer->query_safe("BEGIN; INSERT INTO waiting SELECT 50000 + i, (ARRAY_FILL(500::real + i / 1000.0::real, ARRAY[10]))::vector FROM generate_series(1, 300) AS i");
value($node, 'VACUUM waiting_1; ANALYZE waiting_2');
is(value($node, "SELECT lists > 0 FROM ivfpq_info('waiting_1_v_idx')"), 't', 'VACUUM has trained the index');
$writer->query_safe('COMMIT');
$writer->quit;
# The rows of a query, beside the exact ones: recall, and whether they are in order, without duplicates, with the
# distance that they say.
value($node, <<'SQL');
CREATE FUNCTION found(t text, query vector, k int, condition text, start int) RETURNS TABLE (n bigint, id int, d float8) LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT row_number() OVER (), s.* FROM (SELECT id, v <-> $1 FROM %I WHERE %s ORDER BY v <-> $1 LIMIT %s OFFSET %s) AS s',
		t, condition, k, start) USING query;
END$$;
CREATE FUNCTION look(t text, k int, condition text DEFAULT 'true', start int DEFAULT 0, OUT recall numeric, OUT ordered boolean, OUT same boolean,
	OUT rows bigint, OUT once boolean) LANGUAGE plpgsql AS $$
BEGIN
CREATE TEMP TABLE f AS SELECT q.id AS query, f.* FROM q, found(t, q.v, k, condition, start) AS f;
	PERFORM set_config('enable_indexscan', 'off', true);
	EXECUTE format('CREATE TEMP TABLE e AS SELECT q.id AS query, s.* FROM q, LATERAL
		(SELECT id, v <-> q.v AS d FROM %I WHERE %s ORDER BY d LIMIT %s OFFSET %s) AS s', t, condition, k, start);
	PERFORM set_config('enable_indexscan', 'on', true);
	SELECT round(count(*) FILTER (WHERE f.d <= (SELECT max(d) FROM e WHERE e.query = f.query))::numeric / (SELECT count(*) FROM e), 3),
		count(*), count(*) = count(DISTINCT (query, f.id)) INTO recall, rows, once FROM f;
	SELECT coalesce(bool_and(d >= before), true) INTO ordered FROM (SELECT d, lag(d) OVER (PARTITION BY query ORDER BY n) AS before FROM f) AS s;
	EXECUTE format('SELECT bool_and(f.d = o.v <-> q.v) FROM f JOIN q ON q.id = f.query JOIN %I AS o ON o.id = f.id', t) INTO same;
	DROP TABLE f, e;
END$$;
SQL
my $queries = value($node, 'SELECT count(*) FROM q');
for my $service (0, 1)
{
	my $how = $service ? 'service' : 'pages';
	value($node, 'ALTER DATABASE postgres SET ivfpq.executor = ' . ($service ? 'auto' : 'cpu'));
	value($node, "SELECT pgwarp_prewarm((t || '_v_kind_idx')::regclass) FROM unnest(ARRAY['by_hash', 'by_place', 'lopsided', 'nested', 'one_has_all']) AS t") if $service;
	for my $table (sort keys %parts)
	{
		like(value($node, "SET enable_seqscan = off; EXPLAIN SELECT id FROM $table ORDER BY v <-> (SELECT v FROM q LIMIT 1) LIMIT 10"), qr/Merge Append.*Index Scan/s,
			"$how, $table: the plan merges scans of the index");
		for my $k (10, 100)
		{
			my ($recall, @facts) = split /\|/, value($node, "SET enable_seqscan = off; SELECT * FROM look('$table', $k)");
			cmp_ok($recall, '>=', 0.93, "$how, $table, LIMIT $k: recall");
			is("@facts", "t t ${\($k * $queries)} t", "$how, $table, LIMIT $k: in order, once, with their distances");
		}
	}
	for my $case ([ 'by_hash', 10, 'kind = 3', 0 ], [ 'by_place', 10, 'kind = 3', 0 ], [ 'by_hash', 10, 'id % 5 = 1', 0 ],
		[ 'by_place', 20, 'id % 5 = 1', 0 ], [ 'by_place', 10, 'true', 25 ], [ 'one_has_all', 10, 'kind = 3', 5 ],
		[ 'nested', 10, 'kind IN (1, 2)', 0 ], [ 'lopsided', 10, 'id > 3500', 0 ])
	{
		my ($table, $k, $condition, $start) = @$case;
		my ($recall, @facts) = split /\|/, value($node, "SET enable_seqscan = off; SELECT * FROM look('$table', $k, '$condition', $start)");
		cmp_ok($recall, '>=', 0.9, "$how, $table, $condition, OFFSET $start: recall");
		is("@facts", "t t ${\($k * $queries)} t", "$how, $table, $condition: in order, once");
	}

	# In a LATERAL join scans begin again for each query; they find what a query alone finds.
	my $lateral = 'SELECT q.id AS query, s.id FROM q, LATERAL
		(SELECT id FROM by_place ORDER BY by_place.v <-> q.v LIMIT 10) AS s';
	is(value($node, "SET enable_seqscan = off; SET ivfpq.enable_batched_join = off; SELECT count(*) FROM ($lateral
		EXCEPT SELECT q.id, f.id FROM q, found('by_place', q.v, 10, 'true', 0) AS f) AS other"), 0, "$how: the same in a LATERAL join");
	# A batch of them may choose other candidates: as many of the nearest.
	my %nearest = map { $_ => 1 } split /\n/, value($node, "SET enable_indexscan = off; $lateral");
	my %batched = map { $_ => 1 } split /\n/, value($node, "SET enable_seqscan = off; $lateral");
	is(scalar(keys %batched), 10 * $queries, "$how: LIMIT of each query of a LATERAL join, no row twice");
	cmp_ok(scalar(grep { $nearest{$_} } keys %batched), '>=', 0.93 * 10 * $queries, "$how: recall of a LATERAL join");
	# Partitions that a parameter excludes while the query runs: the rows of the others, as a sort finds them.
	my $excluded = "SET plan_cache_mode = force_generic_plan;
		PREPARE p(int, vector) AS SELECT id, place FROM by_place WHERE place >= \$1 ORDER BY v <-> \$2 LIMIT 50;
		EXECUTE p(4, vec(1, 10)); EXECUTE p(6, vec(1, 10)); EXECUTE p(7, vec(1, 10))";
	my %exact = map { $_ => 1 } split /\n/, value($node, "SET enable_indexscan = off; $excluded");
	my @found = split /\n/, value($node, "SET enable_seqscan = off; $excluded");
	is(scalar(@found), 100, "$how: excluded partitions: as many rows as there are");
	cmp_ok(scalar(grep { $exact{$_} } @found), '>=', 93, "$how: excluded partitions: the nearest of the others");

	# All rows, once each, beyond what was searched for together.
	for my $mode ('relaxed_order', 'strict_order')
	{
		my $all = value($node, "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.iterative_scan = $mode; BEGIN;
			DECLARE c CURSOR FOR SELECT id, v <-> vec(3, 10, $seed) AS d FROM by_place ORDER BY v <-> vec(3, 10, $seed) FETCH FIRST 6000 ROWS ONLY;
			FETCH 15 FROM c; FETCH ALL FROM c; COMMIT");
		my @found = map { [ split /\|/ ] } split /\n/, $all;
		my %ids = map { $_->[0] => 1 } @found;
		is(scalar(keys %ids), scalar(@found), "$how, $mode: no row twice");
		is(scalar(@found), $rows, "$how, $mode: all rows") if $mode eq 'relaxed_order';
		my $disordered = grep { $found[$_][1] < $found[ $_ - 1 ][1] } 1 .. $#found;
		is($disordered, 0, "$how, $mode: in order") if $mode eq 'strict_order';
	}
	is(value($node, "SET enable_seqscan = off; SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM by_hash ORDER BY v <-> vec(3, 10) LIMIT 5500) AS s"),
		'5500|5500', "$how: many rows");
	is(value($node, "SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM by_hash ORDER BY v <-> vec(3, 10) LIMIT 0) AS s"), 0, "$how: none");
	# Scans that refine candidates, wherever the nearest rows lie.
	for my $k (10, 100)
	{
		my ($recall, @facts) = split /\|/, value($node, "SET enable_seqscan = off; SELECT * FROM look('refined', $k)");
		cmp_ok($recall, '>=', 0.93, "$how, refined, LIMIT $k: recall");
		is("@facts", "t t ${\($k * $queries)} t", "$how, refined, LIMIT $k: in order, once");
	}
	# Filters that scans do not check, of which most rows fail.
	for my $table ('by_hash', 'by_place')
	{
		my ($recall, @facts) = split /\|/, value($node, "SET enable_seqscan = off; SELECT * FROM look('$table', 10, 'id NOT IN (SELECT id FROM seen)')");
		cmp_ok($recall, '>=', 0.9, "$how, $table, a subplan: recall");
		is("@facts[1 .. 3]", "t ${\(10 * $queries)} t", "$how, $table, a subplan: as many rows, once");
	}
	my ($some) = (split /\|/, value($node, "SET enable_seqscan = off; SET ivfpq.iterative_scan = off; SELECT * FROM look('by_hash', 10, 'id % 20 = 1')"))[3];
	cmp_ok($some, '>=', 5 * $queries, "$how, without iterative scans: rows that pass a filter");
	# A cursor goes on by another executor.
	my @both = map { (split /\|/)[0] } split /\n/, value($node, "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;
		SET ivfpq.executor = cpu; CREATE TEMP TABLE few AS SELECT id FROM one WHERE id % 4 = 0; CREATE INDEX ON few (id); ANALYZE few; BEGIN;
		DECLARE c CURSOR FOR SELECT p.id FROM by_place AS p JOIN few USING (id) ORDER BY p.v <-> vec(3, 10, $seed) LIMIT 200;
		FETCH 1 FROM c; SET LOCAL ivfpq.executor = auto; FETCH ALL FROM c; COMMIT");
	my %once = map { $_ => 1 } @both;
	is(join(' ', scalar(@both), scalar(keys %once)), '200 200', "$how: no row twice where the executor changes");
	is(value($node, "SET enable_seqscan = off; SELECT count(*), count(DISTINCT id) FROM
		(SELECT id FROM waiting ORDER BY v <-> (ARRAY_FILL(500::real, ARRAY[10]))::vector LIMIT 200) AS s WHERE id BETWEEN 50001 AND 50300"),
		'200|200', "$how: rows that wait beside lists");
	# Rows of equal distance.
	is(value($node, "SET enable_seqscan = off; BEGIN; INSERT INTO by_place SELECT 500000 + i, vec(9, 10, $seed), 0, 1 + i % 6 FROM generate_series(1, 60) AS i;
		SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM by_place ORDER BY v <-> vec(9, 10, $seed) FETCH FIRST 40 ROWS WITH TIES) AS s; ROLLBACK"),
		'61|61', "$how: ties of all partitions");
	# Scans that an error ends return their memory, which the next ones use.
	is(value($node, <<"SQL"), "t\n10", "$how: after errors: as much memory as before, and all rows");
SET enable_seqscan = off;
DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP
	BEGIN PERFORM 1 / (id - id) FROM (SELECT id FROM by_place ORDER BY v <-> vec(3, 10, $seed) LIMIT 10) AS s; EXCEPTION WHEN division_by_zero THEN NULL; END;
END LOOP; END \$\$;
SELECT count(*) <= 12 FROM pg_backend_memory_contexts WHERE name = 'ivfpq scan';
SELECT count(DISTINCT id) FROM (SELECT id FROM by_place ORDER BY v <-> vec(3, 10, $seed) LIMIT 10) AS s;
SQL
	# A target of one is exact, each partition by itself.
	is(value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SELECT recall, ordered FROM look('by_place', 20)"), '1.000|t', "$how: exact");
}
indexes_are_sound($node);
$node->stop;
done_testing();
