# An index of a table that grows: VACUUM makes new lists, or measures recall again, so that searches
# find what was asked for, and ivfpq_info expects what they find.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('growth');

# Clusters that run into each other. Queries are rows that no table has.
value($node, <<'SQL');
CREATE TABLE center AS SELECT i AS id, vec(i, 16, 5) AS v FROM generate_series(0, 399) AS i;
CREATE FUNCTION rows_of(first int, last int) RETURNS TABLE (id int, v vector) LANGUAGE sql AS $$
	SELECT i, c.v + vec(i, 16, 6) FROM generate_series(first, last) AS i JOIN center AS c ON c.id = i % 400
$$;
CREATE FUNCTION recall_of(relation text, operator text) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	asked record;
	farthest float8;
	found int;
	hits int := 0;
BEGIN
	FOR asked IN SELECT * FROM rows_of(90001, 90300) LOOP
		SET LOCAL enable_indexscan = off;
		SET LOCAL enable_seqscan = on;
		EXECUTE format('SELECT max(d) FROM (SELECT v %s $1 AS d FROM %s ORDER BY 1 LIMIT 10) AS n', operator, relation)
			INTO farthest USING asked.v;
		SET LOCAL enable_seqscan = off;
		SET LOCAL enable_indexscan = on;
		EXECUTE format('SELECT count(*) FROM (SELECT v %s $1 AS d FROM %s ORDER BY v %1$s $1 LIMIT 10) AS n WHERE d <= $2',
			operator, relation) INTO found USING asked.v, farthest;
		hits := hits + found;
	END LOOP;
	RETURN hits / 3000.0;
END
$$;
SQL

for my $case (['l2', '<->', 'vector_l2_ops'], ['ip', '<#>', 'vector_ip_ops'])
{
	my ($table, $operator, $class) = @$case;
	value($node, "CREATE TABLE $table (id int PRIMARY KEY, v vector(16))");
	value($node, "INSERT INTO $table SELECT * FROM rows_of(1, 2000)");
	value($node, "CREATE INDEX ${table}_v ON $table USING ivfpq (v $class)");
	value($node, "INSERT INTO $table SELECT * FROM rows_of(2001, 40000)");
	note("before: " . value($node, "SELECT recall_of('$table', '$operator')"));
	value($node, "VACUUM $table");
	my $recall = value($node, "SELECT recall_of('$table', '$operator')");
	my ($expected, $target, $lists, $probes) = split /\|/,
	  value($node, "SELECT expected_recall, target_recall, lists, probes FROM ivfpq_info('${table}_v')");
	note("after: $recall, expected: $expected; $probes of $lists lists");
	is($lists, 350, 'lists are those of a fresh index');
	cmp_ok($recall, '>=', $target - 0.015, "$table: recall is as asked for after 38,000 rows more");
	# Codes miss hardly any of these rows, which the expectation allows for.
	cmp_ok(abs($recall - $expected), '<=', 0.03, 'and as expected');
	compares($node, $table, "v $operator '[" . join(',', 1 .. 16) . "]'", 'every row is found once');
}

# --- when recall is measured again

my $log;
my $measures = sub {
	my ($times, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$log = -s $node->logfile;
	vacuum_all($node, 'l2');
	my $words = slurp_file($node->logfile, $log);
	my @found = $words =~ /recall of index "l2_v" was measured/g;
	is(scalar @found, $times, $name);
};
value($node, 'INSERT INTO l2 SELECT * FROM rows_of(40001, 47000)');
$measures->(0, 'rows that are less than a fifth more');
value($node, 'UPDATE l2 SET id = -id, v = v WHERE id % 40 = 0');
$measures->(1, 'with rows that were removed they are more');
value($node, 'DELETE FROM l2 WHERE id % 8 = 1');
$measures->(0, 'less than a fifth removed');
value($node, 'DELETE FROM l2 WHERE id % 8 = 2');
$measures->(1, 'more than that in two VACUUMs');
$measures->(0, 'once is enough');
value($node, "CREATE TABLE asked AS SELECT * FROM rows_of(80001, 80200); SELECT count(*) FROM ivfpq_learn('l2_v', 'asked', 'v')");
value($node, 'INSERT INTO l2 SELECT * FROM rows_of(50001, 70000)');
$measures->(0, 'what queries have taught stays');
is(value($node, "SELECT curve_source FROM ivfpq_info('l2_v')"), 'queries', 'and is from queries');

indexes_are_sound($node);
$node->stop;
done_testing();
