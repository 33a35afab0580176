# pg_upgrade: extensions come with what they depend on, and index files work where they are copied or linked
# to. From a server of the same version, and from the one that PGWARP_OLD_SERVER names, if any: the folder
# above its programs, with pgwarp installed there.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Catalog;
use IvfpqTest;

my $schema_of = { own => 'public', pgvector => 'v' };
my $all_rows = 'SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.probes = 1000; SET ivfpq.candidates = 5000;';

sub found
{
	my ($node, $database) = @_;
	my $distance = "v OPERATOR($schema_of->{$database}.<->) '[3,4,5]'";
	return join "\n", map
	{
		$node->safe_psql($database, "$all_rows SELECT array_agg(id ORDER BY d, id) FROM
			(SELECT id, $distance AS d FROM $_ ORDER BY $distance) AS r")
	} 'items', 'few';
}

my $depends = "SELECT string_agg(pg_describe_object(refclassid, refobjid, 0), ', ') FROM pg_depend
	WHERE classid = 'pg_extension'::regclass AND deptype = 'n' AND refclassid = 'pg_extension'::regclass
		AND objid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')";

# Old server, null for one of the tests' version; arguments of pg_upgrade
sub upgrade
{
	my ($server, @mode) = @_;
	my $name = join ' ', 'from ' . server_version($server), @mode;
	# Both without checksums, which 18 has by default and 15 does not.
	my $old = new_node('old', checksums => 0, server => $server);
	my $has_pgvector = value($old, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'");
	my %extensions = (own => 'CREATE EXTENSION pgwarp SCHEMA public');
	$extensions{pgvector} = 'CREATE SCHEMA v; CREATE EXTENSION vector SCHEMA v; CREATE EXTENSION pgwarp SCHEMA public' if $has_pgvector;
	for my $database (sort keys %extensions)
	{
		my $type = "$schema_of->{$database}.vector";
		value($old, "CREATE DATABASE $database");
		$old->safe_psql($database, "$extensions{$database};
			CREATE TABLE items (id int, v $type(3));
			INSERT INTO items SELECT i, ARRAY[i % 31, i % 37, i % 41]::$type FROM generate_series(1, 2000) AS i;
			CREATE INDEX items_v ON items USING ivfpq (v vector_l2_ops, id);
			DELETE FROM items WHERE id % 10 = 1;
			CREATE TABLE few (id int, v $type(3));
			SET client_min_messages = warning;
			CREATE INDEX few_v ON few USING ivfpq (v vector_l2_ops);
			INSERT INTO few SELECT * FROM items WHERE id < 30");
		$old->safe_psql($database, 'VACUUM (INDEX_CLEANUP ON) items');
	}
	my %before = map { $_ => found($old, $_) } keys %extensions;
	$old->stop;

	my $new = PostgreSQL::Test::Cluster->new('new');
	$new->init(extra => [ server_version() >= 18 ? '--no-data-checksums' : () ]);
	my $folder = PostgreSQL::Test::Utils::tempdir();
	chomp(my $bin = `pg_config --bindir`);
	my $old_bin = $server ? "$server/bin" : $bin;
	my @quick = server_version() >= 15 ? '--no-sync' : ();
	my $result = system('env', '-C', $folder, 'pg_upgrade', @quick, @mode, '--old-datadir', $old->data_dir, '--new-datadir',
		$new->data_dir, '--old-bindir', $old_bin, '--new-bindir', $bin, '--socketdir', $folder, '--old-port', $old->port,
		'--new-port', $new->port);
	is($result, 0, "$name: pg_upgrade") or return;
	$new->start;
	for my $database (sort keys %extensions)
	{
		is(found($new, $database), $before{$database}, "$name, $database: the rows of before, by the index");
		like($new->safe_psql($database, "SET enable_seqscan = off; EXPLAIN (COSTS OFF) SELECT id FROM items
			ORDER BY v OPERATOR($schema_of->{$database}.<->) '[3,4,5]' LIMIT 5"), qr/Index Scan using items_v/, "$name, $database: indeed");
		$new->safe_psql('postgres', "CREATE DATABASE fresh_$database");
		$new->safe_psql("fresh_$database", $extensions{$database});
		is(catalog_of($new, $database, 'pgwarp'), catalog_of($new, "fresh_$database", 'pgwarp'), "$name, $database: the catalog of a new extension");
		is($new->safe_psql($database, $depends), $database eq 'pgvector' ? 'extension vector' : '', "$name, $database: what it depends on");
		my $file = $new->data_dir . '/' . $new->safe_psql($database, "SELECT pg_relation_filepath('items_v')");
		is((stat $file)[3], "@mode" eq '--link' ? 2 : 1, "$name, $database: links to the index's file");
		$new->safe_psql($database, "INSERT INTO items SELECT id + 5000, v FROM items WHERE id % 9 = 0; DELETE FROM items WHERE id % 4 = 0;
			INSERT INTO few SELECT id + 5000, v FROM items WHERE id < 100");
		$new->safe_psql($database, 'VACUUM (INDEX_CLEANUP ON) items');
		my $exact = $new->safe_psql($database, 'SELECT count(*) FROM items');
		is($new->safe_psql($database, "$all_rows SELECT count(DISTINCT id) FROM (SELECT id FROM items
			ORDER BY v OPERATOR($schema_of->{$database}.<->) '[3,4,5]') AS r"), $exact, "$name, $database: every row after changes");
		is($new->safe_psql($database, "SELECT string_agg(problem, ', ') FROM unnest('{items_v,few_v}'::regclass[]) AS i, ivfpq_check(i, true)"),
			'', "$name, $database: the indexes are sound");
		$new->safe_psql($database, 'REINDEX INDEX CONCURRENTLY items_v');
		is($new->safe_psql($database, "SELECT count(*) FROM ivfpq_check('items_v', true)"), 0, "$name, $database: built again");
	}
	$new->stop;
	$_->clean_node for $old, $new;
	return;
}

for my $server (undef, $ENV{PGWARP_OLD_SERVER} || ())
{
	upgrade($server);
	upgrade($server, '--link');
}
done_testing();
