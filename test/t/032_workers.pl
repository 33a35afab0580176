# How many processes build an index: the table's size decides, TOAST included, and the table's owner
# has the last word.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('workers', conf => "log_min_messages = debug1\nmaintenance_work_mem = 256MB
min_parallel_table_scan_size = 1MB");
value($node, 'CREATE TABLE t (id int, v vector(600))');
value($node, 'ALTER TABLE t ALTER v SET STORAGE EXTERNAL');
value($node, 'INSERT INTO t SELECT i, array_fill(i, ARRAY[600])::vector FROM generate_series(1, 2000) AS i');
my $workers = sub {
	my ($setting) = @_;
	value($node, "ALTER TABLE t $setting");
	my $offset = -s $node->logfile;
	value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 4, m = 4); DROP INDEX t_v');
	my $log = slurp_file($node->logfile, $offset);
	return scalar(() = $log =~ /starting background worker process "parallel worker/g);
};
is($workers->('RESET (parallel_workers)'), 2, 'a large TOAST table brings workers');
is($workers->('SET (parallel_workers = 1)'), 1, 'as many as one asks for');
is($workers->('SET (parallel_workers = 0)'), 0, 'or none');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 4, m = 4)');
indexes_are_sound($node);
$node->stop;
done_testing();
