# pg_upgrade, from a server to another of the same version: extensions come with what they depend on, and
# index files work where they are copied to.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Catalog;
use IvfpqTest;

my $old = new_node('old');
my $has_pgvector = value($old, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'");
my %extensions = (own => 'CREATE EXTENSION pgwarp SCHEMA public');
$extensions{pgvector} = 'CREATE SCHEMA v; CREATE EXTENSION vector SCHEMA v; CREATE EXTENSION pgwarp SCHEMA public' if $has_pgvector;
my %schema = (own => 'public', pgvector => 'v');
for my $database (sort keys %extensions)
{
	value($old, "CREATE DATABASE $database");
	$old->safe_psql($database, "$extensions{$database};
		CREATE TABLE items (id int, v $schema{$database}.vector(3));
		INSERT INTO items SELECT i, ARRAY[i % 31, i % 37, i % 41]::$schema{$database}.vector FROM generate_series(1, 2000) AS i;
		CREATE INDEX items_v ON items USING ivfpq (v vector_l2_ops, id)");
}
my $found = sub {
	my ($node, $database) = @_;
	my $distance = "v OPERATOR($schema{$database}.<->) '[3,4,5]'";
	return $node->safe_psql($database, "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.probes = 1000; SET ivfpq.candidates = 5000;
		SELECT array_agg(id ORDER BY d, id) FROM (SELECT id, $distance AS d FROM items ORDER BY $distance) AS r");
};
my $depends = "SELECT string_agg(pg_describe_object(refclassid, refobjid, 0), ', ') FROM pg_depend
	WHERE classid = 'pg_extension'::regclass AND deptype = 'n' AND refclassid = 'pg_extension'::regclass
		AND objid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')";
my %before = map { $_ => $found->($old, $_) } keys %extensions;
my %catalog = map { $_ => catalog_of($old, $_, 'pgwarp') } keys %extensions;
$old->stop;

my $new = PostgreSQL::Test::Cluster->new('new');
$new->init;
my $bin = $old->config_data('--bindir');
my $folder = PostgreSQL::Test::Utils::tempdir();
chdir($folder) or die $!;
command_ok([ 'pg_upgrade', '--no-sync', '--old-datadir', $old->data_dir, '--new-datadir', $new->data_dir, '--old-bindir', $bin,
	'--new-bindir', $bin, '--socketdir', $new->host, '--old-port', $old->port, '--new-port', $new->port ], 'pg_upgrade');
$new->start;
for my $database (sort keys %extensions)
{
	is($found->($new, $database), $before{$database}, "$database: the rows of before, by the index");
	is(catalog_of($new, $database, 'pgwarp'), $catalog{$database}, "$database: the catalog of before");
	is($new->safe_psql($database, $depends), $database eq 'pgvector' ? 'extension vector' : '', "$database: what it depends on");
	$new->safe_psql($database, "INSERT INTO items SELECT id + 5000, v FROM items WHERE id % 9 = 0; DELETE FROM items WHERE id % 4 = 0");
	$new->safe_psql($database, 'VACUUM (INDEX_CLEANUP ON) items');
	is($new->safe_psql($database, "SELECT count(*) FROM ivfpq_check('items_v', true)"), 0, "$database: it is sound after changes");
}
$new->stop;
done_testing();
