# The target is kept where rows have near duplicates, where the LIMIT stands above what drops rows, and among dead row
# versions; and what an index expects of itself is what its searches find. Sets are those of
# test/include/recall_sets.sql; bench/golden measures the same on larger ones. Bars are the target less 0.01.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;
use RecallSets;

my $node = recall_node('recall_sets');
# Rows that pass nothing but a condition on "chance" are what joins with this table leave.
value($node, 'CREATE TABLE authors AS SELECT i AS id, i AS rank FROM generate_series(0, 9999) AS i;
	ALTER TABLE authors ADD PRIMARY KEY (id); ANALYZE authors');

# Near duplicates: entries of equal code distance count in the curve as scans order them.
make_set('duplicates', 20000);
make_index('plain');
find_truth('all', 'true');
for my $source (qw(pages mirror batch))
{
	is_at_least(recall_of('all', nearest('plain', 'true'), $sources{$source}), 0.94, "near duplicates, $source");
}
my $expected = value($node, "SELECT expected_recall FROM ivfpq_info('plain_v')");
my $measured = value($node, "SELECT ivfpq_recall('plain_v', 300)");
cmp_ok(abs($expected - $measured), '<=', 0.03,
	"near duplicates: rows have a recall of $measured where $expected is expected");
# Between two of these queries, the hundred nearest rows are copies of several rows, in several lists. The radius is no greater
# than a row's, as a row has twenty copies only; that the nearest list is as far as the radius tells these queries. Before it
# did, they had 0.74.
ask('between');
find_truth('between', 'true', 100);
for my $source (qw(pages mirror batch))
{
	is_at_least(recall_of('between', nearest('plain', 'true', 100), $sources{$source}), 0.86,
		"between near duplicates, $source");
}
# Codes err by more than the fifty copies of a row are apart. Queries that are no copies have the errors of codes at their own
# distance: with those of copies, 1,070 rows were ranked for one.
value($node, "SET client_min_messages = warning; SELECT setseed(0.5);
	CREATE TABLE copies AS WITH base AS MATERIALIZED (SELECT n, array_agg(100 * random()) AS v
			FROM generate_series(1, 400) AS n, generate_series(1, 32 + 0 * n) AS d GROUP BY n)
		SELECT (SELECT array_agg(x + 8 * random() ORDER BY d) FROM unnest(v) WITH ORDINALITY AS u(x, d) WHERE c > 0)::vector(32) AS v
		FROM base, generate_series(1, 50) AS c;
	CREATE TABLE others AS SELECT n AS id, array_agg(100 * random())::vector(32) AS v
		FROM generate_series(1, 100) AS n, generate_series(1, 32 + 0 * n) AS d GROUP BY n;
	CREATE INDEX ON copies USING ivfpq (v) WITH (refine = none, m = 8, lists = 20);
	CREATE FUNCTION ranked_rows(vector, OUT distance float8, OUT ranked bigint) LANGUAGE plpgsql AS \$\$
	BEGIN
		SELECT v <-> \$1 INTO distance FROM copies ORDER BY v <-> \$1 LIMIT 1;
		SELECT ranked_rows INTO ranked FROM ivfpq_last_scan();
	END \$\$");
my ($right, $ranked) = split /\|/, value($node, "SET enable_seqscan = off; $sources{pages}
	SELECT avg((distance <= d * 1.000001)::int), avg(ranked)::int FROM others, ranked_rows(v),
		LATERAL (SELECT min(c.v <-> others.v) AS d FROM copies AS c) AS truth");
is_at_least($right, 0.9, 'the nearest row of queries that are no copies');
cmp_ok($ranked, '<=', 300, "$ranked rows are ranked for it");

# LIMIT above what drops rows.
make_set('zipf', 20000);
make_index('plain');
for my $share (1000, 100)
{
	find_truth("chance $share", "chance < $share");
	my %shapes = (
		join => "SELECT r.v <-> q.v AS d FROM plain AS r JOIN authors AS a ON a.id = r.chance WHERE a.rank < $share
			ORDER BY r.v <-> q.v LIMIT 10",
		'semi-join' => "SELECT r.v <-> q.v AS d FROM plain AS r WHERE EXISTS
			(SELECT FROM authors AS a WHERE a.id = r.chance AND a.rank < $share) ORDER BY r.v <-> q.v LIMIT 10",
		'IN' => "SELECT r.v <-> q.v AS d FROM plain AS r WHERE chance IN
			(SELECT id FROM authors WHERE rank < $share) ORDER BY r.v <-> q.v LIMIT 10",
		'anti-join' => "SELECT r.v <-> q.v AS d FROM plain AS r WHERE NOT EXISTS
			(SELECT FROM authors AS a WHERE a.id = r.chance AND a.rank >= $share) ORDER BY r.v <-> q.v LIMIT 10",
		'OFFSET 0' => "SELECT d FROM (SELECT r.v <-> q.v AS d, chance FROM plain AS r ORDER BY r.v <-> q.v OFFSET 0) AS s
			WHERE chance < $share LIMIT 10",
		# Windows read all rows.
		$share == 1000 ? ('window' => "SELECT d FROM (SELECT r.v <-> q.v AS d, chance,
				row_number() OVER (ORDER BY r.v <-> q.v) AS n FROM plain AS r WHERE q.id % 10 = 0) AS s
			WHERE chance < $share ORDER BY n LIMIT 10") : ());
	for my $shape (sort keys %shapes)
	{
		# The last asks a tenth of the queries.
		my $name = "chance $share";
		if ($shape eq 'window')
		{
			$name = 'window';
			value($node, "INSERT INTO truth SELECT 'window', query, n, d FROM truth
				WHERE name = 'chance $share' AND query % 10 = 0");
		}
		for my $source (qw(pages mirror))
		{
			is_at_least(recall_of($name, scan($shapes{$shape}), $sources{$source}), 0.94,
				"$shape that leaves $share of 10000, $source");
		}
	}
}
# The rows that measure a thousand have the radius of all entries, as a search has: with that of their neighbors alone it
# is measured far beyond where a search stops (0.68).
find_truth('a thousand', 'true', 1000);
for my $source (qw(pages mirror batch))
{
	is_at_least(recall_of('a thousand', nearest('plain', 'true', 1000), $sources{$source}), 0.94, "LIMIT 1000, $source");
}
# A cursor that is read on has the rows that a LIMIT would have given.
value($node, "CREATE FUNCTION read_on(vector) RETURNS SETOF float8 LANGUAGE plpgsql AS \$\$
	DECLARE
		reading CURSOR FOR SELECT v <-> \$1 FROM plain ORDER BY v <-> \$1;
		d float8;
	BEGIN
		OPEN reading;
		FOR i IN 1 .. 300 LOOP FETCH reading INTO d; RETURN NEXT d; END LOOP;
		CLOSE reading;
	END \$\$");
value($node, "INSERT INTO truth SELECT 'cursor', q.id, 300, n.d FROM asked AS q,
	LATERAL (SELECT r.v <-> q.v AS d FROM recall.rows AS r ORDER BY d LIMIT 300) AS n WHERE q.id < 50");
is_at_least(recall_of('cursor', 'SELECT q.id AS query, d FROM asked AS q, LATERAL read_on(q.v) AS d WHERE q.id < 50',
		$sources{pages}), 0.94, 'the 300 first rows of a cursor');

# Coarse codes: the index expects to keep the target, or the build says that it does not.
find_truth('all', 'true');
my (undef, undef, $notices) = $node->psql('postgres',
	"DROP INDEX plain_v; CREATE INDEX plain_v ON plain USING ivfpq (v) WITH (m = 1, refine = none)");
$expected = value($node, "SELECT expected_recall FROM ivfpq_info('plain_v')");
my $drifts = value($node, "SELECT count(*) FROM ivfpq_drift WHERE indexname = 'plain_v'");
ok($expected >= 0.945 || ($notices =~ /NOTICE:.*recall/ && $drifts),
	"codes of one byte: $expected is expected, or a notice and a row of ivfpq_drift tell of it");
is_at_least(recall_of('all', nearest('plain', 'true'), $sources{pages}), 0.94, 'codes of one byte');
for my $settings ('', 'SET ivfpq.candidates = 10;', 'SET ivfpq.candidates = 300;')
{
	$expected = value($node, "$settings SELECT expected_recall FROM ivfpq_info('plain_v')");
	$measured = value($node, "$settings SELECT ivfpq_recall('plain_v', 300)");
	cmp_ok($measured, '>=', $expected - 0.03, "codes of one byte, '$settings': recall is $measured where $expected is expected");
}
# A sample that memory has cut is no reason for hope.
value($node, "SET client_min_messages = warning; SET maintenance_work_mem = '2MB'; REINDEX INDEX plain_v");
$expected = value($node, "SELECT expected_recall FROM ivfpq_info('plain_v')");
$measured = value($node, "SELECT ivfpq_recall('plain_v', 300)");
cmp_ok(abs($expected - $measured), '<=', 0.05, "built with 2 MB: recall is $measured where $expected is expected");

# Dead row versions.
make_set('gaussian', 20000);
make_index($_) for qw(plain dead);
find_truth('all', 'true');
for my $source (qw(pages mirror batch))
{
	my $before = recall_of('all', nearest('plain', 'true'), $sources{$source});
	my $after = recall_of('all', nearest('dead', 'true'), $sources{$source});
	cmp_ok($after, '>=', ($before < 0.95 ? $before : 0.95) - 0.01, "each row updated one and a half times, $source: $before becomes $after");
}
# The 1,000 rows nearest to each of eight queries are gone, for this transaction. Batches ask for each query 50 times, so
# that each of its rows comes 50 times. Eight queries are few, so the mean of three groups is judged.
my %gone;
for my $group (0 .. 2)
{
	my $chosen = "q.id >= 8 * $group AND q.id < 8 * $group + 8";
	value($node, "DROP TABLE IF EXISTS gone; CREATE TABLE gone AS SELECT DISTINCT n.id FROM asked AS q,
		LATERAL (SELECT id FROM recall.rows AS r ORDER BY r.v <-> q.v, id LIMIT 1000) AS n WHERE $chosen;
		INSERT INTO truth SELECT 'gone $group', q.id, 1, n.d FROM asked AS q,
			LATERAL (SELECT r.v <-> q.v AS d FROM recall.rows AS r WHERE id NOT IN (SELECT id FROM gone)
				ORDER BY d LIMIT 10) AS n WHERE $chosen;
		DROP TABLE IF EXISTS repeated;
		CREATE TABLE repeated AS SELECT q.id, q.v, i FROM asked AS q, generate_series(1, 50) AS i WHERE $chosen;
		ALTER TABLE repeated ADD number int GENERATED ALWAYS AS IDENTITY; ANALYZE repeated");
	my $delete = 'BEGIN; DELETE FROM plain WHERE id IN (SELECT id FROM gone);';
	for my $source (qw(pages mirror))
	{
		push @{ $gone{$source} }, recall_of("gone $group", nearest('plain', 'true') . " WHERE $chosen", "$sources{$source} $delete");
	}
	push @{ $gone{LATERAL} }, recall_of("gone $group", "SELECT q.id AS query, s.d FROM repeated AS q, LATERAL
			(SELECT r.v <-> q.v AS d FROM plain AS r ORDER BY r.v <-> q.v LIMIT 10) AS s WHERE q.i > 0 OFFSET 0",
		"$sources{batch} $delete") / 50;
	push @{ $gone{knn_join} }, recall_of("gone $group", "SELECT r.id AS query, j.distance AS d
			FROM knn_join('repeated', 'number', 'v', 'plain_v', 'id', 10) AS j JOIN repeated AS r ON r.number = j.query_key",
		"$sources{batch} $delete") / 50;
}
for my $shape (sort keys %gone)
{
	note("the nearest rows deleted, $shape: @{ $gone{$shape} }");
	my $mean = ($gone{$shape}[0] + $gone{$shape}[1] + $gone{$shape}[2]) / 3;
	# 24 queries have a standard error of 0.01.
	is_at_least($mean, 0.92, "the nearest rows deleted, $shape");
}

$node->stop;
done_testing();
