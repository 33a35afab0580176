# pg_dump and pg_restore, in every format and with several jobs: options, classes, expressions and
# predicates come back, and the indexes are built.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('dump');
my $folder = PostgreSQL::Test::Utils::tempdir();
value($node, 'CREATE TABLE t (id bigint, v vector(5))');
value($node, 'INSERT INTO t SELECT i, vec(i, 5) FROM generate_series(1, 2000) AS i');
value($node, 'CREATE INDEX t_l2 ON t USING ivfpq (v) WITH (lists = 12, m = 3)');
value($node, 'CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WHERE id > 500');
value($node, 'CREATE INDEX t_part ON t USING ivfpq ((subvector(v, 1, 2)::vector(2)) vector_ip_ops)');
value($node, 'CREATE UNLOGGED TABLE u (v vector(5))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v)');
value($node, 'CREATE TABLE p (id int, v vector(5)) PARTITION BY LIST (id)');
value($node, 'CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1)');
value($node, 'CREATE INDEX p_v ON p USING ivfpq (v) WITH (lists = 3)');

my $definitions = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname";
my $settings = "SELECT c.relname, i.trained, i.dims, i.metric, i.rows,
	CASE WHEN c.relname = 't_l2' THEN i.lists || ' ' || i.m END
	FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam, ivfpq_info(c.oid) AS i
	WHERE a.amname = 'ivfpq' AND c.relkind = 'i' ORDER BY c.relname";
for my $format ('plain', 'custom', 'directory')
{
	my $dump = "$folder/dump.$format";
	my $database = "restored_$format";
	my @server = ('--port=' . $node->port, '--host=' . $node->host);
	$node->command_ok([ 'pg_dump', @server, "--format=$format", "--file=$dump", 'postgres' ], "$format: dump");
	value($node, "CREATE DATABASE $database");
	$node->command_ok(
		$format eq 'plain'
		? [ 'psql', @server, '--quiet', '--set=ON_ERROR_STOP=1', "--file=$dump", $database ]
		: [ 'pg_restore', @server, '--exit-on-error', '--jobs=2', "--dbname=$database", $dump ],
		"$format: restore");
	is($node->safe_psql($database, $definitions), value($node, $definitions), 'the same definitions');
	is($node->safe_psql($database, $settings), value($node, $settings), 'the same indexes');
	is($node->safe_psql($database, "SET search_path = public, ivfpq_test;
		SELECT same_rows, each_once FROM compare_scan('t', 'v <-> vec(0, 5)')"), 't|t', 'that work');
	is($node->safe_psql($database, "SELECT count(*) FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam,
		ivfpq_check(c.oid, true) WHERE a.amname = 'ivfpq' AND c.relkind = 'i'"), 0, 'and are sound');
}

# The extension goes, and takes its indexes with it.
like(error_of($node, 'DROP EXTENSION pgwarp'), qr/other objects depend on it/, 'not by mistake');
$node->safe_psql('restored_plain', 'DROP EXTENSION pgwarp CASCADE');
is($node->safe_psql('restored_plain', "SELECT count(*) FROM pg_indexes WHERE schemaname = 'public'"), 0,
	'but if it must be');
$node->safe_psql('restored_plain', 'CREATE EXTENSION pgwarp');

indexes_are_sound($node);
$node->stop;
done_testing();
