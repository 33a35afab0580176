# Tables of graphs whose pages are written directly: there after a crash, on a standby, with wal_level = minimal,
# in a transaction with savepoints, as CREATE TABLE AS and ADD PRIMARY KEY would have left them.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $rows = 1500;

# Makes graphs of both forms, in transactions that end in all ways.
sub make_graphs
{
	my ($node) = @_;
	make_table($node, 't', 8, $rows);
	value($node, "CREATE EXTENSION amcheck; CREATE TABLE truth AS SELECT * FROM knn_graph('t', 'id', 'v', 6, 'exact')");
	# From the table's order and from another, in which sources do not ascend.
	value($node, "CREATE TABLE mixed AS SELECT * FROM t ORDER BY hashint8(id);
		CREATE TABLE mixed_truth AS SELECT * FROM knn_graph('mixed', 'id', 'v', 6, 'exact')");
	value($node, "SELECT knn_graph_create('plain', 't', 'id', 'v', 6, 'exact')");
	value($node, "SELECT knn_graph_create('ordered', 'mixed', 'id', 'v', 6, 'exact')");
	value($node, "SET maintenance_work_mem = '1MB'; SELECT knn_graph_create('parted', 'mixed', 'id', 'v', 6, 'exact')");
	value($node, "SELECT knn_graph_create('arrays', 't', 'id', 'v', 6, 'exact', compact => true)");
	value($node, "SELECT knn_graph_create('unlogged_graph', 't', 'id', 'v', 6, 'exact', unlogged => true)");
	# A checkpoint before the commit: recovery begins behind the pages' WAL.
	value($node, "BEGIN; SELECT knn_graph_create('late', 't', 'id', 'v', 6, 'exact'); CHECKPOINT; COMMIT");
	value($node, "BEGIN; SAVEPOINT a; SELECT knn_graph_create('saved', 't', 'id', 'v', 6, 'exact'); ROLLBACK TO a;
		SELECT knn_graph_create('saved', 't', 'id', 'v', 6, 'exact'); RELEASE a;
		SAVEPOINT b; DELETE FROM saved; ROLLBACK TO b; UPDATE saved SET distance = -1 WHERE src = 5 AND rank = 2;
		UPDATE saved AS s SET distance = t.distance FROM truth AS t WHERE s.src = 5 AND s.rank = 2 AND t.src = 5 AND t.rank = 2;
		COMMIT");
	value($node, "BEGIN; SELECT knn_graph_create('gone', 't', 'id', 'v', 6, 'exact'); ROLLBACK");
	# Enough edges for workers, the last pages of table and index not full.
	value($node, "CREATE TABLE many AS SELECT i AS id, vec(i, 8) AS v FROM generate_series(1, 20003) AS i;
		SET max_parallel_maintenance_workers = 0; SELECT knn_graph_create('alone', 'many', 'id', 'v', 10, 'exact')");
	value($node, 'CREATE TABLE many_edges AS SELECT ctid AS place, * FROM alone');
	# Of as many workers, one writes WAL ahead of the others.
	my (undef, undef, $messages) = $node->psql('postgres', "SET client_min_messages = debug1; SET max_parallel_maintenance_workers = 5;
		SELECT knn_graph_create('together', 'many', 'id', 'v', 10, 'exact')");
	like($messages, qr/[1-5] workers wrote pages of edges/, 'workers write a large graph');
	return;
}

# Edges that differ from the truth, both ways.
sub differences
{
	my ($node, $edges) = @_;
	# Neighbors as far as each other are in the order of the table.
	my $truth = $edges =~ /ordered|parted/ ? 'mixed_truth' : 'truth';
	return value($node, "SELECT (SELECT count(*) FROM ($edges EXCEPT ALL TABLE $truth) AS s) +
		(SELECT count(*) FROM (TABLE $truth EXCEPT ALL $edges) AS s)");
}

my @plain = qw(plain ordered parted late saved);
my $unnested = 'SELECT src, rank::int, dst, distance FROM arrays,
	ROWS FROM (unnest(neighbors), unnest(distances)) WITH ORDINALITY AS list (dst, distance, rank)';

sub are_whole
{
	my ($node, $when, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(value($node, 'SELECT count(*) FROM truth'), $rows * 6, "$when: all edges");
	is(differences($node, "TABLE $_"), 0, "$when: $_") for @plain;
	is(differences($node, $unnested), 0, "$when: compact");
	# By the index: the same edge for each key, and none twice.
	is(value($node, "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
		SELECT count(*) FROM generate_series(1, $rows) AS n, generate_series(1, 6) AS r
		JOIN LATERAL (SELECT FROM $_ WHERE src = n AND rank = r) AS e ON true"), $rows * 6, "$when: $_ by its key")
	  for @plain;
	is(value($node, "SELECT count(*) FROM together AS t FULL JOIN many_edges AS e ON t.ctid = e.place
		WHERE (t.src, t.rank, t.dst, t.distance) IS DISTINCT FROM (e.src, e.rank, e.dst, e.distance)"), 0,
		"$when: the same pages by workers");
	is(value($node, "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
		SELECT count(*) FROM many_edges AS e JOIN LATERAL (SELECT FROM together WHERE src = e.src AND rank = e.rank) AS t ON true"),
		200030, "$when: edges by workers by their key");
	return if $options{standby};
	for (@plain, 'together')
	{
		is(value($node, "SELECT bt_index_parent_check('${_}_pkey', true, true)"), '', "$when: index of $_ is sound");
		is(value($node, "SELECT count(*) FROM verify_heapam('$_')"), 0, "$when: pages of $_ are sound");
	}
	is(value($node, "SELECT to_regclass('gone') IS NULL"), 't', "$when: rolled back");
	return;
}

my $node = new_node('graph_pages', streaming => 1, initdb => ['--data-checksums']);
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('graph_pages_standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
make_graphs($node);
$node->wait_for_catchup($standby);
are_whole($standby, 'standby', standby => 1);
is(differences($node, 'TABLE unlogged_graph'), 0, 'unlogged');
crash($node);
are_whole($node, 'crash');
is(value($node, 'SELECT count(*) FROM unlogged_graph'), 0, 'an unlogged graph is empty after a crash');
# Other writers find nothing odd.
value($node, "DELETE FROM t WHERE id % 100 = 0; INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(10001, 10050) AS i");
is(value($node, "SELECT added, removed FROM knn_graph_append('$_', 't', 'id', 'v')"), '50|15', "append to $_")
  for qw(plain arrays);
is(value($node, "SELECT knn_graph_recall('$_', 't', 'id', 'v', 500)"), 1, "and all neighbors are there") for qw(plain arrays);
value($node, 'VACUUM (FREEZE) plain');
is(value($node, "SELECT bt_index_parent_check('plain_pkey', true, true)"), '', 'sound after changes');
$standby->stop;
# Its pages are in no WAL: the checkpoint of the shutdown syncs them.
value($node, "SELECT knn_graph_create('unlogged_again', 't', 'id', 'v', 6, 'exact', unlogged => true)");
$node->restart;
is(value($node, 'SELECT count(*) FROM unlogged_again'), ($rows + 35) * 6, 'an unlogged graph survives a restart');
$node->stop;

# Above wal_skip_threshold files are synced at commit, below it their pages are logged then.
my $minimal = new_node('graph_pages_minimal', conf => "wal_level = minimal\nmax_wal_senders = 0");
for my $skip ('0', '1GB')
{
	$minimal->append_conf('postgresql.conf', "wal_skip_threshold = $skip");
	$minimal->reload;
	make_graphs($minimal);
	crash($minimal);
	are_whole($minimal, "minimal, threshold $skip");
	value($minimal, 'DROP EXTENSION amcheck; DROP TABLE t, mixed, truth, mixed_truth, arrays, unlogged_graph, many, many_edges, alone, together, ' . join(', ', @plain));
}

# Where changes are decoded, rows are inserted one by one to be seen.
$minimal->append_conf('postgresql.conf', "wal_level = logical\nmax_wal_senders = 1\nmax_replication_slots = 1");
$minimal->restart;
make_table($minimal, 't', 8, 100);
value($minimal, "SELECT pg_create_logical_replication_slot('s', 'test_decoding')");
value($minimal, "SELECT knn_graph_create('decoded', 't', 'id', 'v', 6, 'exact')");
is(value($minimal, "SELECT count(*) FROM pg_logical_slot_get_changes('s', NULL, NULL)
	WHERE data LIKE 'table public.decoded: INSERT:%'"), 600, 'logical decoding sees the edges');
$minimal->stop;
done_testing();
