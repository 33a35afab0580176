# An index with attributes is the same however it is built: by one process or several, in memory or in
# files, on the CPU or a device. And it has the attributes of every row.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqAttributes;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('attributes_build', service => 1,
	conf => "maintenance_work_mem = 64MB\nmin_parallel_table_scan_size = 64kB");
my $host = ($ENV{PGWARP_TEST_DEVICES} // 'host') =~ /^host/;
prepare_items($node, 6000);
value($node, 'UPDATE items SET v = NULL WHERE id % 500 = 0; DELETE FROM items WHERE id % 500 = 1; ANALYZE items');
value($node, 'CREATE EXTENSION pageinspect');

for my $options ('lists = 30, m = 4', 'lists = 9, bits = 4, m = 2')
{
	my $digest;
	# Little memory comes with a sample of fewer rows, so with another model.
	for my $way ([ 'cpu', 0 ], [ 'cpu', 2 ], [ 'gpu', 0 ], [ 'gpu', 2 ])
	{
		my ($executor, $workers) = @$way;
		my $words;
		value($node, "ALTER TABLE items SET (parallel_workers = $workers)");
		$node->psql('postgres', "SET client_min_messages = debug1; SET pgwarp.build_executor = '$executor';
			SET max_parallel_maintenance_workers = $workers;
			CREATE INDEX items_v ON items USING ivfpq ($columns) WITH ($options)", stderr => \$words, on_error_die => 1);
		like($words, $executor eq 'cpu' ? qr/rows in [\d.]+ s on cpu/ : qr/rows in [\d.]+ s on (?!cpu)/,
			"$options, $executor, $workers workers");
		my $now = value($node, "SELECT digest('items_v')");
		$digest //= $now;
		is($now, $digest, 'the same index') if $host;
		items_agree($node, $seed + $workers, 'conditions', count => 15);
		value($node, 'DROP INDEX items_v') unless $workers && $executor eq 'gpu';
	}
	indexes_are_sound($node);
	value($node, 'DROP INDEX items_v');
}

# Entries that do not fit memory are sorted in files. Long codes, so that they are many bytes.
value($node, 'CREATE TABLE wide AS SELECT i.id, i.v, i.i, i.x, i.tags, vec(i.id, 48) AS w FROM items AS i;
	ALTER TABLE wide ALTER w TYPE vector(48)');
my $spilled = 'ON wide USING ivfpq (w, i, x, tags) WITH (lists = 10, m = 48)';
my %digests;
for my $memory ('1MB', '64MB')
{
	for my $way ([ 'cpu', 0 ], [ 'cpu', 2 ], [ 'gpu', 0 ], [ 'gpu', 2 ])
	{
		my ($executor, $workers) = @$way;
		value($node, "ALTER TABLE wide SET (parallel_workers = $workers)");
		my ($files) = value($node, "SELECT temp_files FROM pg_stat_database WHERE datname = 'postgres'");
		value($node, "SET pgwarp.build_executor = '$executor'; SET maintenance_work_mem = '$memory';
			SET max_parallel_maintenance_workers = $workers; CREATE INDEX wide_w $spilled");
		my $now = value($node, "SELECT digest('wide_w')");
		$digests{$memory} //= $now;
		is($now, $digests{$memory}, "$memory, $executor, $workers workers: the same index") if $host;
		my $wrong = value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100000;
			SELECT count(*), count(DISTINCT id), bool_and(i = 7 AND x = 'x3'), (SELECT count(*) FROM wide WHERE i + 0 = 7
				AND x || '' = 'x3' AND w IS NOT NULL) FROM (SELECT * FROM wide WHERE i = 7 AND x = 'x3'
				ORDER BY w <-> vec(-1, 48)) AS s");
		like($wrong, qr/^([1-9]\d*)\|\1\|t\|\1$/, 'with its attributes');
		value($node, 'DROP INDEX wide_w') unless $memory eq '64MB' && $executor eq 'gpu' && $workers;
	}
}
indexes_are_sound($node);

# Codes that leave no room for attributes.
value($node, 'CREATE TABLE long (v vector(8200), a bigint, b bigint, c bigint, d text)');
like(error_of($node, 'CREATE INDEX ON long USING ivfpq (v, a, b, c, d) WITH (m = 8111)'),
	qr/an entry of the index does not fit a page.*m is 8111, attributes take 29 bytes more, and a page has room for 8139/s,
	'an entry fits a page');
is(error_of($node, 'SET client_min_messages = error; CREATE INDEX ON long USING ivfpq (v, a, b, c, d) WITH (m = 8110)'), '',
	'or just so');
$node->stop;
done_testing();
