# Entries that move from the pending list to lists while a batch of queries runs are found once.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('batch_races');
value($node, 'CREATE TABLE t (id bigint, v vector(6)); CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 30, m = 1, refine = int8);
	INSERT INTO t SELECT i, vec(i, 6) FROM generate_series(1, 12000) AS i');
my ($keeper, $writer, $batch) = map { session($node) } 1 .. 3;

# VACUUM trains the index, and leaves rows pending that it does not see.
$writer->query('BEGIN');
$writer->query('INSERT INTO t SELECT i, vec(i, 6) FROM generate_series(12001, 15000) AS i');
value($node, 'VACUUM t');
$writer->query('COMMIT');
is(value($node, "SELECT lists, pending_rows, curve_queries > 0 FROM ivfpq_info('t_v')"), '30|3000|t', 'trained, with rows pending');

# A batch that has read the pending list, another VACUUM that moves its entries, and the batch goes on.
my $search = "SELECT count(*), count(DISTINCT (query, ctid)), count(DISTINCT query), sum((distance < 0)::int) FROM
	knn_search('t_v', (SELECT array_agg(vec(-i, 6)) FROM generate_series(1, 100) AS i), 20)";
$batch->query("SET pgwarp.debug_pause = 'batch'");
$keeper->query('SELECT pg_advisory_lock(23, 0)');
start($batch, $search);
wait_until($node, "count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
value($node, 'VACUUM t');
is(value($node, "SELECT lists, pending_rows FROM ivfpq_info('t_v')"), '30|0', 'all rows have moved');
$keeper->query('SELECT pg_advisory_unlock(23, 0)');
is((finish($batch))[0], '2000|2000|100|0', 'each row once');
is(value($node, $search), '2000|2000|100|0', 'as without the race');

# The same in partitions that are searched as one.
value($node, 'CREATE TABLE p (id bigint, v vector(6)) PARTITION BY HASH (id); CREATE INDEX p_v ON p USING ivfpq (v) WITH (lists = 30, m = 1, refine = int8);
	CREATE TABLE p_0 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE p_1 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	INSERT INTO p SELECT i, vec(i, 6) FROM generate_series(1, 24000) AS i');
$writer->query('BEGIN');
$writer->query('INSERT INTO p SELECT i, vec(i, 6) FROM generate_series(24001, 30000) AS i');
value($node, 'VACUUM p_0, p_1');
$writer->query('COMMIT');
my $state = "SELECT sum(lists), sum(pending_rows) FROM (VALUES ('p_0_v_idx'), ('p_1_v_idx')) AS i(i), ivfpq_info(i::regclass)";
is(value($node, $state), '60|6000', 'partitions are trained, with rows pending');
$search =~ s/t_v/p_v/;
$search =~ s/query, ctid/query, tableoid, ctid/;
$keeper->query('SELECT pg_advisory_lock(23, 0)');
start($batch, $search);
wait_until($node, "count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
value($node, 'VACUUM p_0, p_1');
is(value($node, $state), '60|0', 'all rows of partitions have moved');
$keeper->query('SELECT pg_advisory_unlock(23, 0)');
is((finish($batch))[0], '2000|2000|100|0', 'each row of partitions once');
is(value($node, $search), '2000|2000|100|0', 'as without the race');
$_->quit for $keeper, $writer, $batch;
indexes_are_sound($node);
$node->stop;
done_testing();
