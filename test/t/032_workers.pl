# How many processes build an index: the table's size decides, TOAST included, and the table's owner
# has the last word. However many they are, they make the same index.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('workers', conf => "log_min_messages = debug1\nmaintenance_work_mem = 256MB
min_parallel_table_scan_size = 1MB");
value($node, 'CREATE TABLE t (id int, v vector(600))');
value($node, 'ALTER TABLE t ALTER v SET STORAGE EXTERNAL');
# Vectors that are close to each other in fours: which rows a model was trained with shows in its pages.
value($node, 'INSERT INTO t SELECT i, array_agg(sin(i / 4 * 7 + d) + random() / 100 ORDER BY d)::float4[]::vector
	FROM generate_series(1, 2000) AS i, generate_series(1, 600) AS d GROUP BY i');
my $workers = sub {
	my ($setting) = @_;
	value($node, "ALTER TABLE t $setting");
	my $offset = -s $node->logfile;
	value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 4, m = 4); DROP INDEX t_v');
	my $log = slurp_file($node->logfile, $offset);
	return scalar(() = $log =~ /starting background worker process "parallel worker/g);
};
# For the sample, which lies in TOAST, and for encoding.
is($workers->('RESET (parallel_workers)'), 2 + 2, 'a large TOAST table brings workers');
is($workers->('SET (parallel_workers = 1)'), 1 + 1, 'as many as one asks for');
is($workers->('SET (parallel_workers = 0)'), 0, 'or none');

value($node, 'CREATE EXTENSION pageinspect');
# All but the metapage, which has a random number.
my $pages = sub {
	return value($node, "SELECT count(*) || ' pages, ' || md5(string_agg(md5(substr(page, 11)), '' ORDER BY block))
		FROM (SELECT block, get_raw_page('t_v', block::int) AS page
			FROM generate_series(1, pg_relation_size('t_v') / 8192 - 1) AS block) AS p");
};
foreach my $storage (qw(EXTERNAL EXTENDED)) {
	value($node, "ALTER TABLE t ALTER v SET STORAGE $storage; UPDATE t SET v = v + array_fill(0, ARRAY[600])::vector;
		VACUUM FULL t");
	my %made;
	foreach my $build ([0, ''], [1, ''], [2, 'CONCURRENTLY']) {
		my ($count, $concurrently) = @$build;
		value($node, "ALTER TABLE t SET (parallel_workers = $count)");
		value($node, "CREATE INDEX $concurrently t_v ON t USING ivfpq (v) WITH (lists = 4, m = 4)");
		indexes_are_sound($node);
		push @{ $made{ $pages->() } }, "$count $concurrently";
		value($node, 'DROP INDEX t_v');
	}
	is(scalar(keys %made), 1, "$storage: the same index, by any number of readers");
	diag(explain(\%made)) if keys %made > 1;
}
$node->stop;
done_testing();
