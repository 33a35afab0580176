# Attributes after a crash in the middle of inserts and of VACUUM, on a standby, in unlogged tables, and
# in a dump.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqAttributes;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('attributes_crash', streaming => 1, conf => "restart_after_crash = on
wal_consistency_checking = 'generic'\nshared_buffers = 4MB\nwal_keep_size = 1GB");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
prepare_items($node, 2500);
value($node, "CREATE INDEX items_v ON items USING ivfpq ($columns) WITH (lists = 15, m = 4)");
# Untrained, and unlogged.
value($node, "CREATE TABLE few (LIKE items); ALTER TABLE few ALTER x SET STORAGE EXTERNAL;
	CREATE INDEX few_v ON few USING ivfpq ($columns); INSERT INTO few SELECT * FROM items LIMIT 500");
value($node, "CREATE UNLOGGED TABLE u (LIKE items); INSERT INTO u SELECT * FROM items;
	CREATE INDEX u_v ON u USING ivfpq ($columns) WITH (lists = 5)");

# --- cut short

my $next = 10000;
for my $way ('crash', 'kill', 'crash')
{
	value($node, 'CHECKPOINT') if $way eq 'kill';
	my $writer = session($node);
	my $pid = $writer->query_safe('SELECT pg_backend_pid()');
	$writer->query_safe("INSERT INTO $_ SELECT r.* FROM generate_series($next, $next + 99) AS i, item(i) AS r")
	  for 'items', 'few';
	$writer->query_safe("UPDATE $_ SET i = i + 1, x = 'x' || id % 4 WHERE id % 9 = $next % 9") for 'items', 'few';
	start($writer, "BEGIN; INSERT INTO items SELECT r.* FROM generate_series(-100000, -1) AS i, item(i) AS r");
	usleep(50_000 + int(rand(300_000)));
	$way eq 'kill' ? kill_backend($node, $pid) : crash($node);
	$writer->{run}->kill_kill;
	$next += 100;
	items_agree($node, $seed + $next, "$way among inserts", count => 20);
	items_agree($node, $seed + $next, 'untrained', relation => 'few', count => 20);
	is(value($node, "SELECT count(*) FROM items WHERE id < 0"), 0, 'nothing of what was not committed');

	value($node, 'DELETE FROM items WHERE id % 7 = ' . $next / 100 % 7);
	my $vacuum = session($node);
	$vacuum->query_safe("SET vacuum_cost_delay = '1ms'; SET vacuum_cost_limit = 5");
	$pid = $vacuum->query_safe('SELECT pg_backend_pid()');
	start($vacuum, 'VACUUM (INDEX_CLEANUP ON) items');
	for (1 .. 200)
	{
		my $phase = value($node, "SELECT coalesce((SELECT phase FROM pg_stat_progress_vacuum WHERE pid = $pid), 'none')");
		last if $phase eq 'vacuuming indexes' || $phase eq 'none';
	}
	usleep(int(rand(50_000)));
	$way eq 'kill' ? kill_backend($node, $pid) : crash($node);
	$vacuum->{run}->kill_kill;
	items_agree($node, $seed + $next, "$way in VACUUM", count => 20);
	vacuum_all($node, 'items');
	items_agree($node, $seed + $next, 'the next one', count => 20);
	is(value($node, 'SELECT count(*) FROM u'), 0, 'an unlogged table is empty');
	value($node, "INSERT INTO u SELECT r.* FROM generate_series(1, 300) AS i, item(i) AS r");
	items_agree($node, $seed, 'and takes rows', relation => 'u', count => 10);
	indexes_are_sound($node);
}

# --- the standby

$node->wait_for_catchup($standby);
items_agree($standby, $seed, 'on the standby');
items_agree($standby, $seed, 'untrained', relation => 'few', count => 20);
value($node, "UPDATE items SET (i, b, x, tags) = (SELECT r.i, r.b, r.x, r.tags FROM item(items.id, 9) AS r) WHERE id % 4 = 0");
vacuum_all($node, 'items');
$node->wait_for_catchup($standby);
items_agree($standby, $seed + 1, 'after changes');
is(value($standby, "SELECT count(*) FROM ivfpq_check('items_v', true)"), 0, 'sound');

# --- a dump

my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
my @server = ('--port=' . $node->port, '--host=' . $node->host);
value($node, "CREATE INDEX items_e ON items USING ivfpq (v vector_cosine_ops, (upper(x)), f float4_ops) WITH (lists = 4) WHERE b");
$node->command_ok([ 'pg_dump', @server, '--format=custom', "--file=$dump", 'postgres' ], 'dump');
value($node, 'CREATE DATABASE restored');
$node->command_ok([ 'pg_restore', @server, '--exit-on-error', '--dbname=restored', $dump ], 'restore');
my $definitions = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname";
is($node->safe_psql('restored', $definitions), value($node, $definitions), 'the same definitions');
is($node->safe_psql('restored', "SET search_path = public, ivfpq_test; DO 'BEGIN PERFORM setseed(0.5); END';
	SELECT d FROM (SELECT differs('items', 'v IS NOT NULL AND ' || random_condition(), vec(-n, 8), n) AS d
		FROM generate_series(1, 20) AS n) AS s WHERE d IS NOT NULL"), '', 'the same rows');

indexes_are_sound($node);
$standby->stop;
$node->stop;
done_testing();
