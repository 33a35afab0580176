# Partitions that the service searches as one: rows come in order, each once, whatever the plan does with them; few are
# visited beside those that LIMIT takes, and no others are returned.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my ($parts, $rows) = (8, 12000);
my $node = new_node('partitions_joint', service => 1, conf => "max_connections = 40\nwork_mem = 16MB\nautovacuum = off\njit = off");

# By hash; and by place, so that one partition has nearly all near rows. A partition of either is too small for lists, another
# has no rows.
my @tables = ('plain', 'refined', 'plain_places', 'refined_places');
for my $table (@tables)
{
	my $by = $table =~ /places/ ? 'LIST (part)' : 'LIST (spread)';
	value($node, "CREATE TABLE $table (id int, v vector(6), part int, spread int, note int DEFAULT 0) PARTITION BY $by");
	value($node, "CREATE TABLE ${table}_$_ PARTITION OF $table FOR VALUES IN ($_)") for 0 .. $parts + 1;
	value($node, "INSERT INTO $table SELECT i, v, ntile($parts) OVER (ORDER BY (v::real[])[1]) - 1, i % $parts FROM
		(SELECT i, vec(i, 6, $seed) AS v FROM generate_series(1, $rows) AS i) AS s;
		INSERT INTO $table SELECT i, vec(i, 6, $seed), $parts, $parts FROM generate_series($rows + 1, $rows + 300) AS i");
	my $refine = $table =~ /refined/ ? 'int8' : 'none';
	value($node, "SET client_min_messages = warning; CREATE INDEX ON $table USING ivfpq (v) WITH (lists = 8, m = 6, refine = $refine)");
}
value($node, 'VACUUM ANALYZE');
value($node, "CREATE TABLE kept AS SELECT i AS id FROM generate_series(1, 20000, 19) AS i; ALTER TABLE kept ADD PRIMARY KEY (id); ANALYZE kept");
wait_until($node, 'serves FROM pgwarp_service()');
sub prewarm
{
	value($node, "SELECT pgwarp_prewarm('${_}_v_idx')") for @tables;
	return;
}
prewarm();

# Runs a query of $1 by the index, and exactly: how many rows there are, how many of the exact ones are missing, and what is
# wrong with the others.
value($node, <<'SQL');
CREATE FUNCTION compare(query text, t text, queries int, OUT wrong int, OUT missing int, OUT rows int) LANGUAGE plpgsql AS $$
DECLARE
	q vector;
	ids int[];
	found float8[];
	exact float8[];
	real_rows bigint;
BEGIN
	wrong := 0; missing := 0; rows := 0;
	FOR n IN 1 .. queries LOOP
		q := vec(n, 6, 77);
		PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true);
		EXECUTE format('SELECT array_agg(id), array_agg(d) FROM (%s) AS s', query) INTO ids, found USING q;
		PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true), set_config('enable_indexscan', 'off', true);
		EXECUTE format('SELECT array_agg(d) FROM (%s) AS s', query) INTO exact USING q;
		EXECUTE format('SELECT count(*) FROM unnest($2, $3) AS f(id, d) JOIN %I AS t ON t.id = f.id AND t.v <-> $1 = f.d', t)
			INTO real_rows USING q, ids, found;
		PERFORM set_config('enable_indexscan', 'on', true);
		wrong := wrong + (coalesce(cardinality(ids), 0) <> coalesce(cardinality(exact), 0))::int
			+ (real_rows <> cardinality(ids))::int
			+ ((SELECT count(DISTINCT i) FROM unnest(ids) AS i) <> cardinality(ids))::int
			+ (found <> (SELECT array_agg(d ORDER BY d) FROM unnest(found) AS d))::int;
		missing := missing + (SELECT count(*) FROM (SELECT unnest(exact) EXCEPT ALL SELECT unnest(found)) AS m);
		rows := rows + coalesce(cardinality(ids), 0);
	END LOOP;
END$$;
SQL
sub searches
{
	my ($table) = @_;
	return split /\|/, value($node, "SELECT coalesce(sum(cpu_searches), 0), coalesce(sum(service_searches), 0), coalesce(sum(fallbacks), 0),
		coalesce(sum(ranked_rows), 0) FROM pg_stat_pgwarp WHERE tablename ~ '^${table}_[0-9]+\$'");
}
my $queries = 9;
sub finds
{
	my ($how, $table, $k, $query, %more) = @_;
	value($node, 'SELECT pg_stat_pgwarp_reset()');
	my ($wrong, $missing, $found) = split /\|/,
		value($node, "SET ivfpq.executor = ${\($more{executor} // 'service')}; SET ivfpq.target_recall = 0.99; ${\($more{set} // '')}; SELECT * FROM compare(\$q\$$query\$q\$, '$table', $queries)");
	is($wrong, 0, "$how, $table: rows in order, each once");
	is($found, $queries * $k, "$how, $table: as many as are wanted") if $k > 0;
	cmp_ok($missing, '<=', 3 + 0.06 * $found, "$how, $table: the nearest ones");
	return;
}
# Rows come in other ways where a plan asks in another; these are the same to what is searched, and what has changed there.
my %shapes = (
	'OFFSET' => [ 10, "SELECT id, v <-> \$1 AS d FROM %1\$s ORDER BY v <-> \$1 LIMIT 10 OFFSET 7" ],
	# Each row is computed above the Merge Append.
	'computed later' => [ 10, "SELECT id, d FROM (SELECT id, v <-> \$1 AS d, pg_sleep(0) FROM %1\$s ORDER BY v <-> \$1 LIMIT 10) AS s" ],
	# More rows than LIMIT are read.
	'ties' => [ 0, "SELECT id, v <-> \$1 AS d FROM %1\$s ORDER BY v <-> \$1 FETCH FIRST 10 ROWS WITH TIES" ],
	'LIMIT 1' => [ 1, "SELECT id, v <-> \$1 AS d FROM %1\$s ORDER BY v <-> \$1 LIMIT 1" ]);
sub all_find
{
	my ($how, %more) = @_;
	for my $table (@tables)
	{
		my $near = "SELECT id, v <-> \$1 AS d FROM $table";
		finds("$how, LIMIT $_", $table, $_, "$near ORDER BY v <-> \$1 LIMIT $_", %more) for 10, 150;
		finds("$how, filtered", $table, 10, "$near WHERE id % 5 = 3 ORDER BY v <-> \$1 LIMIT 10", %more);
		next unless $more{shapes};
		finds("$how, $_", $table, $shapes{$_}[0], sprintf($shapes{$_}[1], $table), %more) for sort keys %shapes;
	}
	return;
}
all_find('resident', shapes => 1);
for my $table (@tables)
{
	value($node, 'SELECT pg_stat_pgwarp_reset()');
	finds('counted', $table, 10, "SELECT id, v <-> \$1 AS d FROM $table ORDER BY v <-> \$1 LIMIT 10");
	my ($cpu, $served, $fallbacks, $ranked) = searches($table);
	# The service has none of the two indexes without lists.
	is("$cpu $fallbacks", "${\(2 * $queries)} 0", "$table: all partitions with lists by the service");
	cmp_ok($served, '>=', $queries * $parts, "$table: each of them");
	my $rows_without_lists = 300;
	my $most = $table =~ /refined/ ? 25 : 300;
	cmp_ok($ranked / $queries - $rows_without_lists, '<=', $most, "$table: few rows are visited beside those that LIMIT takes");
	my $plan = "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.executor = service; EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off)
		SELECT id FROM $table ORDER BY v <-> vec(1, 6, 77) LIMIT 10";
	my $returned = 0;
	my $explained = value($node, $plan);
	$returned += $1 while $explained =~ /Index Scan using \S+ on \S+ \S*\s*\(actual rows=(\d+)/g;
	is($returned, 10, "$table: no partition returns a row that LIMIT does not take");
}

is(value($node, "SET enable_seqscan = off; SET ivfpq.executor = service; SELECT count(*) FROM (SELECT id FROM plain_$parts ORDER BY v <-> vec(1, 6, 77) LIMIT 3) AS s;
	SELECT path, reason FROM ivfpq_last_scan()"), "3\ncpu|the index is not trained yet", 'why the service was not used for an index without lists');

# Plans that read more rows than LIMIT says: all that there are, each once.
for my $table (@tables)
{
	my $plan = 'SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.executor = service; SET enable_memoize = off; SET enable_material = off';
	my $join = "SELECT t.id FROM $table AS t JOIN kept USING (id) ORDER BY t.v <-> vec(3, 6, 77) LIMIT";
	is(value($node, "$plan; SELECT count(*), count(DISTINCT id) FROM ($join 20) AS s"), '20|20', "$table: a join that drops most rows");
	my $all = value($node, "SELECT count(*) FROM $table JOIN kept USING (id)");
	is(value($node, "$plan; SELECT count(*), count(DISTINCT id) FROM ($join 100000) AS s"), "$all|$all", "$table: the same to its end");
	# Rows are locked, and the cursor goes on.
	is(value($node, "$plan; BEGIN; DECLARE c CURSOR FOR SELECT id FROM $table ORDER BY v <-> vec(3, 6, 77) LIMIT 40 FOR UPDATE;
		CREATE TEMP TABLE got AS SELECT 0 AS id WHERE false;
		DO \$\$ DECLARE c refcursor := 'c'; i int; BEGIN LOOP FETCH c INTO i; EXIT WHEN NOT FOUND; INSERT INTO got VALUES (i); END LOOP; END\$\$;
		SELECT count(*), count(DISTINCT id) FROM got; COMMIT"), '40|40', "$table: a cursor over locked rows");
	my $lateral = "SELECT q, s.id FROM generate_series(1, 6) AS q, LATERAL (SELECT id FROM $table ORDER BY v <-> vec(q, 6, 77) LIMIT 12) AS s";
	is(value($node, "$plan; SELECT count(*), count(DISTINCT (q, id)) FROM ($lateral) AS s"), '72|72', "$table: a search for each row");
	is(value($node, "$plan; SELECT count(*) FROM ($lateral) AS s WHERE id = ANY (ARRAY(SELECT id FROM $table ORDER BY v <-> vec(s.q, 6, 77) LIMIT 12))"), 72,
		"$table: the same rows as each by itself");
}

# Rows that wait, rows of lists that have grown, rows that are gone, and copies of rows.
for my $table (@tables)
{
	value($node, "DELETE FROM $table WHERE id % 3 = 0 AND id <= $rows;
		INSERT INTO $table SELECT id + 100000, v, part, spread FROM $table WHERE id % 40 = 1;
		INSERT INTO $table SELECT i, vec(i, 6, $seed), i % $parts, i % $parts FROM generate_series(30000, 30400) AS i;
		UPDATE $table SET note = 1 WHERE id % 10 = 2");
}
all_find('changed', shapes => 1);
all_find('changed, by the CPU', executor => 'cpu');
all_find('changed, in strict order', set => 'SET ivfpq.iterative_scan = strict_order');
value($node, 'VACUUM');
all_find('vacuumed');
prewarm();
all_find('brought again');
indexes_are_sound($node);
done_testing();
