# Pages that are not in shared buffers: scans, batches, samples and builds name those that they will read ahead of
# time, and find the same, however far ahead that is.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
# A hundred and twenty-eight buffers: nothing stays.
my $node = new_node('read_ahead', conf => "shared_buffers = 1MB\nmaintenance_work_mem = 64MB");
my $pages = value($node, <<"SQL");
CREATE TABLE rows_of (id int, v vector(64), i int);
INSERT INTO rows_of SELECT n, vec($seed + n, 64), n % 10 FROM generate_series(1, 12000) AS n;
CREATE INDEX rows_v ON rows_of USING ivfpq (v, i) WITH (lists = 60, m = 16);
-- Lists whose pages are apart, and pages that come back.
INSERT INTO rows_of SELECT n, vec($seed + n, 64), n % 10 FROM generate_series(12001, 16000) AS n;
DELETE FROM rows_of WHERE id % 7 = 0;
VACUUM (INDEX_CLEANUP ON) rows_of;
INSERT INTO rows_of SELECT n, vec($seed + n, 64), n % 10 FROM generate_series(16001, 18000) AS n;
ANALYZE rows_of;
SELECT least(pg_relation_size('rows_of'), 10 * pg_relation_size('rows_v')) / 8192;
SQL
cmp_ok($pages, '>', 500, 'more pages than buffers');

# What searches find and how much they look at; one condition in three.
my $searches = q{SELECT string_agg(found, ' ') FROM generate_series(1, 25) AS q, LATERAL (SELECT string_agg(id::text, ',') AS found FROM
	(SELECT id FROM rows_of %s ORDER BY v <-> vec(-q, 64) LIMIT 8) AS s) AS f; SELECT candidates, probes FROM ivfpq_last_scan()};
my $batch = "SELECT string_agg(k.query || ':' || r.id, ',' ORDER BY k.query, k.rank)
	FROM knn_search('rows_v', (SELECT array_agg(vec(-q, 64)) FROM generate_series(1, 40) AS q), 5) AS k JOIN rows_of AS r ON r.ctid = k.ctid";
my ($plain, @others) = map { value($node, "SET effective_io_concurrency = $_; $batch") } 0, 1, 64;
like($plain, qr/^1:\d+,.*40:\d+$/, 'a batch of queries');
is($_, $plain, 'reads ahead') for @others;
for my $where ('', 'WHERE i < 3', 'WHERE id % 3 = 0')
{
	my %found;
	for my $ahead (0, 1, 16, 1000)
	{
		$found{$ahead} = value($node, "SET enable_seqscan = off; SET ivfpq.executor = 'cpu'; SET effective_io_concurrency = $ahead;" . sprintf($searches, $where));
	}
	is($found{$_}, $found{0}, "'$where' with $_ pages ahead, seed $seed") for 1, 16, 1000;
	is(value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET effective_io_concurrency = 16;
		SELECT array_agg(d) FROM (SELECT v <-> vec(-3, 64) AS d FROM rows_of $where ORDER BY 1 LIMIT 200) AS s"),
		value($node, "SET enable_indexscan = off; SELECT array_agg(d) FROM (SELECT v <-> vec(-3, 64) AS d FROM rows_of $where ORDER BY 1 LIMIT 200) AS s"),
		"'$where': all that there is");
}

# The same seed gives the same sample, and so the same index.
for my $table ('rows_of', 'temporary')
{
	my @made = map { value($node, "CREATE TEMP TABLE temporary AS SELECT * FROM rows_of; SET maintenance_io_concurrency = $_;
		SET enable_seqscan = off; BEGIN; DROP INDEX rows_v; CREATE INDEX made ON $table USING ivfpq (v) WITH (lists = 30, m = 16);
		SELECT rows, lists FROM ivfpq_info('made');
		SELECT string_agg(id::text, ',') FROM (SELECT id FROM $table ORDER BY v <-> vec(-5, 64) LIMIT 60) AS s;
		SELECT candidates, probes FROM ivfpq_last_scan(); ROLLBACK") } 0, 1, 100;
	like($made[0], qr/^\d+\|30\n[\d,]+\n\d+\|\d+$/, "an index of $table");
	is($made[$_], $made[0], "and the same again ($_)") for 1, 2;
}
indexes_are_sound($node);
$node->stop;
done_testing();
