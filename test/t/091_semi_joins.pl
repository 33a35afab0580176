# Semi-joins on a column of the index: the other side's keys become a condition of the scan, and the rows are those that a
# sequential scan finds.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('semi_joins', conf => "max_parallel_workers_per_gather = 0\n");
value($node, "CREATE TABLE docs AS SELECT i AS id, nullif(hashint8extended(i, 3) & 255, 255)::int AS doc_group,
	'g' || (hashint8extended(i, 3) & 255) AS name, vec(i, 16, $seed)::vector(16) AS v FROM generate_series(1, 20000) AS i");
value($node, 'CREATE INDEX docs_v ON docs USING ivfpq (v, doc_group, name)');
# User 1 sees one group in a hundred, 2 one in five, 3 all, 4 none, 5 null.
value($node, "CREATE TABLE acl AS SELECT u AS user_id, g AS doc_group, 'g' || g AS name FROM generate_series(0, 300) AS g,
	LATERAL (SELECT unnest(ARRAY[1, 2, 3]) AS u) AS s WHERE u = 3 OR g % (ARRAY[100, 5])[u] = 1;
	INSERT INTO acl SELECT * FROM acl WHERE user_id < 3; INSERT INTO acl VALUES (5, NULL, NULL), (2, NULL, NULL)");
value($node, 'CREATE TABLE rights (user_id int, doc_group int, PRIMARY KEY (user_id, doc_group));
	INSERT INTO rights SELECT DISTINCT user_id, doc_group FROM acl WHERE doc_group IS NOT NULL');
value($node, 'VACUUM ANALYZE docs; VACUUM ANALYZE acl; VACUUM ANALYZE rights');

my $exact = 'SET ivfpq.target_recall = 1;';
my $none = 'SET enable_indexscan = off; SET enable_bitmapscan = off;';
my $only = 'SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_nestloop = off; SET enable_sort = off; SET enable_seqscan = off;';
my $plan_of = sub { my ($query, $settings) = @_; return value($node, ($settings // $only) . " EXPLAIN (COSTS OFF) $query"); };
my $same = sub {
	my ($query, $name, $role) = @_;
	$role = $role ? "SET ROLE $role;" : '';
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($plan_of->($query, "$role $only"), qr/Ivfpq Semi Join/, "$name: the plan");
	is(value($node, "$role $exact $only $query"), value($node, "$role $none $query"), "$name: the rows");
};
my $order = 'ORDER BY v <-> vec(7, 16, 77), id';
my $nearest = 'ORDER BY v <-> vec(7, 16, 77)';
for my $user (1 .. 5)
{
	$same->("SELECT id FROM docs WHERE EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND user_id = $user) $nearest LIMIT 10",
		"user $user");
}
my $exists = 'EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND user_id = 2)';
$same->("SELECT id, v <-> vec(7, 16, 77) AS d, name FROM docs WHERE $exists $order LIMIT 10 OFFSET 3", 'expressions');
$same->("SELECT id FROM docs WHERE doc_group IN (SELECT doc_group FROM acl WHERE user_id = 1) $nearest LIMIT 30", 'IN');
$same->("SELECT id FROM docs WHERE name IN (SELECT name FROM acl WHERE user_id = 2) $nearest LIMIT 30", 'text');
$same->("SELECT id FROM docs WHERE $exists AND id % 3 = 0 $nearest LIMIT 10", 'another condition');
$same->("SELECT id FROM docs WHERE $exists AND name <> 'g6' $nearest LIMIT 10", 'a condition in the index');
$same->("SELECT id FROM docs WHERE EXISTS (SELECT FROM rights WHERE rights.doc_group = docs.doc_group AND user_id = 2) $nearest LIMIT 10",
	'unique keys');
$same->("SELECT id FROM docs WHERE EXISTS (SELECT FROM acl JOIN rights USING (user_id) WHERE acl.doc_group = docs.doc_group
	AND user_id = 2 AND rights.doc_group = 6) $nearest LIMIT 10", 'a join on the other side');
$same->("SELECT count(*), sum(id) FROM (SELECT id FROM docs WHERE $exists $nearest) AS s", 'all rows');
$same->("SELECT sum(u * s.id) FROM generate_series(1, 5) AS u CROSS JOIN LATERAL (SELECT id FROM docs
	WHERE EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND user_id = u) $nearest LIMIT 7) AS s", 'rescans')
	for 1;

# A prepared statement, and the keys of its own snapshot.
my $prepared = "SET plan_cache_mode = force_generic_plan; PREPARE p(int, int) AS SELECT id FROM docs
	WHERE EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND user_id = \$1) $nearest LIMIT \$2";
my $run = 'EXECUTE p(1, 5); EXECUTE p(2, 9); EXECUTE p(4, 5); EXECUTE p(3, 2)';
is(value($node, "$exact $only $prepared; $run"), value($node, "$none $prepared; $run"), 'a generic plan');
my ($reader) = session($node);
$reader->query_safe("$exact $only BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
my $query = "SELECT id FROM docs WHERE $exists $nearest LIMIT 10";
my $before = $reader->query_safe($query);
value($node, 'BEGIN; CREATE TABLE kept AS SELECT * FROM acl; DELETE FROM acl WHERE user_id = 2 AND doc_group % 2 = 0; COMMIT');
is($reader->query_safe($query), $before, 'an older snapshot has its keys');
$reader->quit;
$same->($query, 'fewer keys');
value($node, 'TRUNCATE acl; INSERT INTO acl SELECT * FROM kept; ANALYZE acl');

# What is no such join, or would not be the same.
for my $other ('NOT EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND user_id = 2)',
	'EXISTS (SELECT FROM acl WHERE acl.doc_group < docs.doc_group AND user_id = 1)',
	'EXISTS (SELECT FROM acl WHERE acl.doc_group::bigint = docs.doc_group AND user_id = 2)',
	'EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND acl.user_id < docs.id)',
	'EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.id AND user_id = 2)',
	'EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group + 1 AND user_id = 2)',
	"EXISTS (SELECT FROM acl WHERE acl.name = docs.name COLLATE \"C\" AND user_id = 2)")
{
	my $query = "SELECT id FROM docs WHERE $other $nearest LIMIT 10";
	unlike($plan_of->($query), qr/Semi Join\)/, "$other: no such plan");
	is(value($node, "$exact $only $query"), value($node, "$none $query"), "$other: the rows");
}
unlike($plan_of->("SELECT docs.id FROM docs JOIN acl USING (doc_group) WHERE user_id = 2 $nearest LIMIT 10"), qr/Semi Join\)/, 'a join that repeats rows');
unlike($plan_of->("$query FOR UPDATE"), qr/Semi Join\)/, 'FOR UPDATE');
is(value($node, "$exact $only SELECT id FROM ($query FOR UPDATE) AS s"), value($node, "$none SELECT id FROM ($query FOR UPDATE) AS s"),
	'its rows');

# Policies of both sides.
value($node, "CREATE ROLE reader; GRANT SELECT ON docs, acl TO reader; GRANT USAGE ON SCHEMA ivfpq_test TO reader;
	ALTER TABLE acl ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON acl USING (user_id < 3);
	ALTER TABLE docs ENABLE ROW LEVEL SECURITY; CREATE POLICY even ON docs USING (id % 2 = 0)");
$same->("SELECT id FROM docs WHERE EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND user_id = $_) $nearest LIMIT 10",
	"policies, user $_", 'reader') for 2, 3;
value($node, 'ALTER TABLE acl DISABLE ROW LEVEL SECURITY; ALTER TABLE docs DISABLE ROW LEVEL SECURITY');

# The planner's own choice, and its recall.
my $hits = 0;
for my $user (1, 2)
{
	my $of_user = "docs WHERE EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group AND user_id = $user)";
	like($plan_of->("SELECT id FROM $of_user $nearest LIMIT 10", ''), qr/Ivfpq Semi Join/, "user $user: chosen") if $user == 1;
	for my $i (1 .. 20)
	{
		my $query = "SELECT id FROM $of_user ORDER BY v <-> vec($i, 16, 77) LIMIT 10";
		my %found = map { $_ => 1 } split /\n/, value($node, "$only $query");
		is(keys %found, 10, "user $user, query $i: as many rows as are wanted");
		$hits += grep { $found{$_} } split /\n/, value($node, "$none $query");
	}
}
cmp_ok($hits / 400, '>=', 0.935, 'recall');
like(value($node, "$only EXPLAIN (ANALYZE, TIMING OFF) $query"), qr/Column: doc_group.*Keys: \d+/s, 'EXPLAIN');
indexes_are_sound($node);
$node->stop;
done_testing();
