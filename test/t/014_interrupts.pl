# Interrupts that are no cancels neither stop a build, nor keep it from ending, nor change what it
# makes: reloaded settings, connection checks, other sessions' invalidations.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('interrupts',
	conf => "maintenance_work_mem = 256MB\nmax_parallel_maintenance_workers = 0");
make_table($node, 't', 128, 12000);
value($node, 'CREATE EXTENSION pageinspect');
my $quiet = elapsed(sub {
	value($node, 'CREATE INDEX t_quiet ON t USING ivfpq (v) WITH (lists = 500)') });
my $wanted = value($node, "SELECT digest('t_quiet')");

my $build = session($node);
# Many lists make for long work here, and a notice each time.
$build->query_safe('SET client_min_messages = error');
my $build_with = sub {
	my ($name, $during) = @_;
	my $time = elapsed(sub {
		start($build, "CREATE INDEX t_$name ON t USING ivfpq (v) WITH (lists = 500)");
		$during->() while value($node, "SELECT count(*) FROM pg_stat_activity
			WHERE state = 'active' AND query LIKE 'CREATE INDEX t\\_$name%'");
		my (undef, $complaints) = finish($build);
		is($complaints, '', "$name: the build ends well");
	});
	# A step of training that starts again for each interrupt never ends.
	cmp_ok($time, '<', 10 * $quiet + 10, "$name: in about the time it takes");
	is(value($node, "SELECT digest('t_$name')"), $wanted, "$name: the index is the same");
	value($node, "DROP INDEX t_$name");
	return;
};

$build->query_safe("SET client_connection_check_interval = '1ms'");
$build_with->('checks', sub { });
$build->query_safe('RESET client_connection_check_interval');
my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
$build_with->('reloads', sub { kill 'HUP', $postmaster });
my $other = session($node);
$build_with->('catalogs', sub {
	$other->query_safe("DO \$\$ BEGIN FOR i IN 1 .. 500 LOOP EXECUTE
		'CREATE TEMPORARY TABLE x (a int) ON COMMIT DROP; DROP TABLE x'; END LOOP; END \$\$") });

# VACUUM trains just as calmly.
value($node, 'CREATE TABLE u (id bigint, v vector(128))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 500)');
value($node, 'INSERT INTO u SELECT * FROM t');
$build->query_safe("SET client_connection_check_interval = '1ms'");
start($build, 'VACUUM u');
kill 'HUP', $postmaster while value($node, "SELECT count(*) FROM pg_stat_activity
	WHERE state = 'active' AND query LIKE 'VACUUM u%'");
my (undef, $complaints) = finish($build);
is($complaints, '', 'VACUUM ends well');
is(value($node, "SELECT trained FROM ivfpq_info('u_v')"), 't', 'and has trained the index');

$_->quit for $build, $other;
indexes_are_sound($node);
$node->stop;
done_testing();
