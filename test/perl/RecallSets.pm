# Recall on the sets of test/include/recall_sets.sql: a set of rows with queries, indexes on it, the true neighbors, and
# what answers have of these.
package RecallSets;
use strict;
use warnings;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

our @EXPORT = qw(recall_node make_set ask make_index find_truth recall_of scan nearest is_at_least %sources);

# 200 queries at a target of 0.95 have a standard error of recall@10 below 0.006.
my $queries = 200;
my $node;

sub recall_node
{
	my ($name) = @_;
	$node = new_node($name, service => 1,
		conf => "maintenance_work_mem = 128MB\nivfpq.audit_every = 0\nmax_parallel_workers_per_gather = 0");
	value($node, slurp_file('test/include/recall_sets.sql'));
	return $node;
}

sub make_set
{
	my ($set, $rows) = @_;
	value($node, "SET client_min_messages = warning;
		SELECT recall.make_source('$set', $rows, $queries, 32); SELECT recall.describe();
		DROP TABLE IF EXISTS truth; CREATE TABLE truth (name text, query int, n int, d float8)");
	ask('held_out');
	return;
}

# Queries of another kind (recall.describe()).
sub ask
{
	my ($kind) = @_;
	value($node, "SET client_min_messages = warning; DROP TABLE IF EXISTS asked;
		CREATE TABLE asked AS SELECT * FROM recall.queries WHERE kind = '$kind' ORDER BY id; ANALYZE asked");
	return;
}

sub make_index
{
	my ($state) = @_;
	value($node, "CALL recall.make_table('$state', 'vector_l2_ops', '$state')");
	return;
}

# The nearest rows of each query among those that pass, ten or `limit`; `condition` is about row r and query q.
sub find_truth
{
	my ($name, $condition, $limit) = @_;
	$limit //= 10;
	value($node, "INSERT INTO truth SELECT '$name', q.id, row_number() OVER (PARTITION BY q.id ORDER BY n.d), n.d
		FROM asked AS q, LATERAL (SELECT r.v <-> q.v AS d FROM recall.rows AS r WHERE $condition ORDER BY d LIMIT $limit) AS n");
	return;
}

# The recall of answers (query, d): a row counts if it is as near as the last true one.
sub recall_of
{
	my ($name, $answers, $settings) = @_;
	$settings //= '';
	return value($node, "SET enable_seqscan = off; SET enable_sort = off; $settings
		WITH far AS (SELECT query, max(d) AS d, count(*) AS n FROM truth WHERE name = '$name' GROUP BY query),
			found AS MATERIALIZED ($answers)
		SELECT round(avg(hits)::numeric, 4) FROM (
			SELECT count(*) FILTER (WHERE found.d <= far.d) / far.n::float8 AS hits
			FROM far LEFT JOIN found USING (query) GROUP BY far.query, far.n) AS s");
}

# A query of its own for each of the queries, as no join in batches sees it.
sub scan
{
	my ($from) = @_;
	return "SELECT q.id AS query, s.d FROM asked AS q, LATERAL ($from) AS s";
}
our %sources = (pages => "SET ivfpq.executor = cpu; SET ivfpq.enable_batched_join = off;",
	mirror => "SET ivfpq.executor = service; SET ivfpq.enable_batched_join = off;",
	batch => "SET ivfpq.executor = cpu;");

sub is_at_least
{
	my ($recall, $least, $name) = @_;
	cmp_ok($recall, '>=', $least, "$name: recall is $recall");
	return;
}

sub nearest
{
	my ($table, $condition, $limit) = @_;
	$limit //= 10;
	return scan("SELECT r.v <-> q.v AS d FROM $table AS r WHERE $condition ORDER BY r.v <-> q.v LIMIT $limit");
}

1;
