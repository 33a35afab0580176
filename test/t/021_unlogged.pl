# Unlogged tables: after a clean shutdown as they were, after a crash empty, with an index that works;
# on a standby out of reach, with an error that says so.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('unlogged', streaming => 1);
make_table($node, 'u', 8, 3000, kind => 'UNLOGGED');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 10, m = 3)');
value($node, 'CREATE INDEX u_cosine ON u USING ivfpq (v vector_cosine_ops)');
make_table($node, 't', 8, 2000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 10)');

$node->restart;
compares($node, 'u', 'v <-> vec(0, 8)', 'as it was after a restart');
is(value($node, "SELECT trained FROM ivfpq_info('u_v')"), 't', 'and trained');

for my $round (1 .. 2)
{
	crash($node);
	is(value($node, 'SELECT count(*) FROM u'), 0, "empty after crash $round");
	is(value($node, "SELECT trained, dims, metric, rows, pages FROM ivfpq_info('u_cosine')"),
		'f|8|cosine|0|1', 'with an empty index');
	is(value($node, "SET enable_seqscan = off;
		SELECT count(*) FROM (SELECT id FROM u ORDER BY v <-> vec(0, 8)) AS s"), 0, 'that can be searched');
	value($node, 'INSERT INTO u SELECT i, vec(i, 8) FROM generate_series(1, 11000) AS i');
	compares($node, 'u', 'v <-> vec(0, 8)', 'and filled');
	compares($node, 'u', 'v <=> vec(0, 8)', 'also by cosine');
	value($node, 'VACUUM u');
	is(value($node, "SELECT trained, lists, m FROM ivfpq_info('u_v')"), 't|10|3',
		'and trains itself as it was told when it was made');
	compares($node, 'u', 'v <-> vec(0, 8)', 'with every row');
	compares($node, 't', 'v <-> vec(0, 8)', 'a logged table keeps its rows');
}

# From logged to unlogged and back, with a crash behind each.
value($node, 'ALTER TABLE t SET UNLOGGED');
crash($node);
is(value($node, "SELECT count(*) FROM t"), 0, 'set unlogged');
value($node, 'INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(1, 2000) AS i');
value($node, 'ALTER TABLE t SET LOGGED');
crash($node);
compares($node, 't', 'v <-> vec(0, 8)', 'set logged');
is(value($node, 'SELECT count(*) FROM t'), 2000, 'with all rows');

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
compares($standby, 't', 'v <-> vec(0, 8)', 'on a standby');
for my $statement ("SELECT * FROM ivfpq_info('u_v')", "SELECT * FROM ivfpq_check('u_v')",
	"SELECT ivfpq_recall('u_v')", "SELECT * FROM ivfpq_recall_curve('u_v')",
	'SELECT id FROM u ORDER BY v <-> vec(0, 8) LIMIT 1')
{
	like(error_of($standby, $statement),
		qr/cannot access temporary or unlogged relations during recovery/, $statement);
}
$standby->promote;
wait_until($standby, 'NOT pg_is_in_recovery()');
is(value($standby, 'SELECT count(*) FROM u'), 0, 'empty after promotion');
value($standby, 'INSERT INTO u SELECT i, vec(i, 8) FROM generate_series(1, 100) AS i');
compares($standby, 'u', 'v <-> vec(0, 8)', 'and usable');

indexes_are_sound($standby, 'sound on the promoted standby');
$standby->stop;
indexes_are_sound($node);
$node->stop;
done_testing();
