# The owner of a database creates the extensions, without being a superuser, and gets no more by it: what
# lies in the owner's schema does not take the place of what the scripts mean.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('trusted');
value($node, 'CREATE ROLE tenant LOGIN');
my $has_pgvector = value($node, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'");

sub as_tenant
{
	my ($database, $sql) = @_;
	my ($status, $out, $error) = $node->psql($database, $sql, extra_params => [ '-U', 'tenant' ], on_error_stop => 1);
	is($status, 0, "tenant: " . substr($sql =~ s/\s+/ /gr, 0, 60)) or diag($error);
	return $out;
}

# Everything that scripts and views might find in the schema in place of PostgreSQL's own. Whoever calls
# one of these as a superuser makes the tenant one.
my @bait = (
	'format(text, name)', 'format(text, text)', 'format(text, text, text)', 'format(text, name, name)',
	'format(text, text, text, text)', 'format(text, text, text, text, text)', 'format(text, text, text, text, text, text)',
	'format(text, text, text, text, name, text, text)', 'format(text, name, text)',
	'format(text, text, text, text[])', 'format(text, bigint, text, text, text)', 'format(text, VARIADIC text[])',
	'string_agg(text)', 'unnest(text)', 'current_schema(int DEFAULT 1)', 'coalesce(name)', 'pg_relation_filenode(oid)',
	'pg_relation_filenode(regclass)', 'hashtext(varchar)', 'text(name)');
my $bait = join('', map { <<"SQL" } @bait) . join('', map { <<"SQL" } ([ 'text', 'text' ], [ 'text', 'name' ], [ 'name', 'text' ], [ 'oid', 'oid' ], [ 'float8', 'bigint' ], [ 'bigint', 'bigint' ], [ 'name', 'name' ], [ 'int2', 'int4' ]));
CREATE FUNCTION bait.$_ RETURNS text LANGUAGE plpgsql AS 'BEGIN EXECUTE \$\$ALTER ROLE tenant SUPERUSER\$\$; RETURN NULL; END';
SQL
CREATE FUNCTION bait.pick($_->[0], $_->[1]) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN EXECUTE \$\$ALTER ROLE tenant SUPERUSER\$\$; RETURN true; END';
CREATE OPERATOR bait.= (LEFTARG = $_->[0], RIGHTARG = $_->[1], FUNCTION = bait.pick);
CREATE OPERATOR bait.<> (LEFTARG = $_->[0], RIGHTARG = $_->[1], FUNCTION = bait.pick);
CREATE OPERATOR bait.|| (LEFTARG = $_->[0], RIGHTARG = $_->[1], FUNCTION = bait.pick);
CREATE OPERATOR bait./ (LEFTARG = $_->[0], RIGHTARG = $_->[1], FUNCTION = bait.pick);
CREATE OPERATOR bait.< (LEFTARG = $_->[0], RIGHTARG = $_->[1], FUNCTION = bait.pick);
SQL
my $use = "CREATE TABLE items (id int, v %s.vector(3));
	INSERT INTO items SELECT i, ARRAY[i %% 7, i %% 11, i %% 13]::%s.vector FROM generate_series(1, 1200) AS i;
	CREATE INDEX items_v ON items USING ivfpq (v bait.vector_l2_ops, id)";

for my $case (0 .. ($has_pgvector ? 2 : 0))
{
	my $what = ('own types', 'pgvector', 'an update')[$case];
	my $database = "tenant_$case";
	value($node, "CREATE DATABASE $database OWNER tenant");
	my $schema = $case == 1 ? 'v' : 'bait';
	$node->safe_psql($database, 'CREATE SCHEMA v; GRANT USAGE ON SCHEMA v TO tenant; CREATE EXTENSION vector SCHEMA v') if $case == 1;
	$node->safe_psql($database, "CREATE SCHEMA bait; GRANT ALL ON SCHEMA bait TO tenant; CREATE EXTENSION pgwarp SCHEMA bait VERSION '0.1.0'")
	  if $case == 2;
	as_tenant($database, ($case == 2 ? '' : 'CREATE SCHEMA bait; ') . ($case == 2 ? $bait : $bait . ($case == 1 ?
		'CREATE DOMAIN bait.vector AS text; CREATE FUNCTION bait.l2(v.vector, v.vector) RETURNS float8 LANGUAGE sql AS $$SELECT 0.0$$;
		CREATE OPERATOR bait.<-> (LEFTARG = v.vector, RIGHTARG = v.vector, FUNCTION = bait.l2)' : '')));
	if ($case == 2)
	{
		$node->safe_psql($database, 'ALTER EXTENSION pgwarp UPDATE');
	}
	else
	{
		as_tenant($database, 'CREATE EXTENSION pgwarp SCHEMA bait');
	}
	is($node->safe_psql($database, "SELECT count(*) FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
		WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND p.proowner <> 10
			AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')"), 0, "$what: functions are not the tenant's");
	# Whatever a superuser's view, function, operator or class is made of, none of it is the tenant's. (A view
	# that has no rows calls nothing.)
	is($node->safe_psql($database, "SELECT string_agg(pg_describe_object(classid, objid, objsubid) || ' on ' ||
			pg_describe_object(refclassid, refobjid, 0), ', ')
		FROM pg_depend LEFT JOIN pg_proc AS f ON classid = 'pg_proc'::regclass AND objid = f.oid
			LEFT JOIN pg_operator AS o ON classid = 'pg_operator'::regclass AND objid = o.oid
		WHERE deptype = 'n' AND coalesce(f.proowner, o.oprowner, 10) = 10
			AND (refclassid = 'pg_proc'::regclass AND refobjid IN (SELECT oid FROM pg_proc WHERE proowner <> 10)
				OR refclassid = 'pg_operator'::regclass AND refobjid IN (SELECT oid FROM pg_operator WHERE oprowner <> 10))"),
		'', "$what: nothing is made of what is the tenant's");
	as_tenant($database, sprintf($use, $schema, $schema)) if $case != 2;
	# Views, as a superuser sees them, and as one who has the tenant's schema first.
	$node->safe_psql($database, "SET search_path = $_; SELECT * FROM bait.pg_stat_pgwarp; SELECT * FROM bait.ivfpq_drift;
		SELECT * FROM bait.pg_stat_progress_knn_graph") for 'pg_catalog', 'bait';
	is(value($node, "SELECT rolsuper FROM pg_roles WHERE rolname = 'tenant'"), 'f', "$what: the tenant is no superuser");
	next if $case == 2;
	my $distance = "v OPERATOR($schema.<->) '[1,2,3]'::$schema.vector";
	my $query = "SELECT array_agg(round(d::numeric, 4)) FROM (SELECT $distance AS d FROM items ORDER BY $distance LIMIT 5) AS r";
	is(as_tenant($database, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; $query"),
		as_tenant($database, "SET enable_indexscan = off; $query"), "$what: searches");
	# Members are a superuser's: the extension's owner cannot exchange them.
	my ($status, $out, $error) = $node->psql($database, 'ALTER EXTENSION pgwarp DROP FUNCTION bait.pgwarp_version()', extra_params => [ '-U', 'tenant' ]);
	like($error, qr/must be owner of function/, "$what: members stay");
	($status, $out, $error) = $node->psql($database, 'SELECT bait.pg_stat_pgwarp_reset()', extra_params => [ '-U', 'tenant' ]);
	like($error, qr/permission denied for function pg_stat_pgwarp_reset/, "$what: counters are not the tenant's to reset");
	as_tenant($database, 'DROP EXTENSION pgwarp CASCADE');
}

# --- the first version is a superuser's: its view finds an operator of the tenant's schema

value($node, 'CREATE DATABASE tenant_first OWNER tenant');
as_tenant('tenant_first', "CREATE SCHEMA bait; $bait");
my ($status, $out, $error) = $node->psql('tenant_first', "CREATE EXTENSION pgwarp SCHEMA bait VERSION '0.1.0'",
	extra_params => [ '-U', 'tenant' ]);
like($error, qr/permission denied to create extension "pgwarp"/, 'version 0.1.0');

# --- types that the tenant makes under the names of ours and pgvector's

SKIP:
{
	skip 'neither pgvector nor its stand-in is installed', 9 if !$has_pgvector;

	# The owner of an extension adds types to it: they are not cast to vectors. The bytes of a range are
	# not those of a vector, and would be read far beyond their end.
	value($node, 'CREATE DATABASE tenant_types OWNER tenant');
	$node->safe_psql('tenant_types', 'CREATE EXTENSION vector');
	as_tenant('tenant_types', 'CREATE EXTENSION pgwarp; CREATE SCHEMA fake; CREATE TYPE fake.vector AS RANGE (subtype = bigint);
		CREATE TYPE fake.halfvec AS ENUM (); ALTER EXTENSION pgwarp ADD TYPE fake.vector; ALTER EXTENSION pgwarp ADD TYPE fake.halfvec');
	($status, $out, $error) = $node->psql('tenant_types', 'CREATE EXTENSION pgwarp_pgvector', extra_params => [ '-U', 'tenant' ]);
	like($error, qr/pgwarp has no types of its own in this database/, 'types added to pgwarp');
	value($node, 'CREATE DATABASE tenant_more OWNER tenant');
	as_tenant('tenant_more', 'CREATE EXTENSION pgwarp; CREATE SCHEMA v; CREATE SCHEMA fake; CREATE DOMAIN fake.vector AS bigint;
		CREATE TYPE fake.halfvec AS RANGE (subtype = bigint); ALTER EXTENSION pgwarp ADD DOMAIN fake.vector;
		ALTER EXTENSION pgwarp ADD TYPE fake.halfvec');
	$node->safe_psql('tenant_more', 'CREATE EXTENSION vector SCHEMA v');
	as_tenant('tenant_more', 'CREATE EXTENSION pgwarp_pgvector');
	is($node->safe_psql('tenant_more', "SELECT string_agg(proname || ' ' || proargtypes[0]::regtype || ' ' || prorettype::regtype, ', '
			ORDER BY proname, proargtypes[0]::regtype::text)
		FROM pg_proc WHERE proname IN ('pgwarp_to_pgvector', 'pgwarp_from_pgvector')"),
		'pgwarp_from_pgvector v.halfvec halfvec, pgwarp_from_pgvector v.vector vector, '
		  . 'pgwarp_to_pgvector halfvec v.halfvec, pgwarp_to_pgvector vector v.vector', 'casts are of our types and pgvector\'s');

	# A pgvector without halfvec, and a type of the tenant's under its name.
	skip 'there is no version that is too old', 2
	  if value($node, "SELECT count(*) FROM pg_available_extension_versions WHERE name = 'vector' AND version = '0.6.2'") eq '0';
	value($node, 'CREATE DATABASE tenant_old OWNER tenant');
	as_tenant('tenant_old', "CREATE SCHEMA v; CREATE EXTENSION vector SCHEMA v VERSION '0.6.2'; CREATE DOMAIN v.halfvec AS v.vector;
		CREATE FUNCTION v.far(v.halfvec, v.halfvec) RETURNS float8 LANGUAGE sql AS 'SELECT 0::float8'"
		  . join('', map { "; CREATE OPERATOR v.$_ (LEFTARG = v.halfvec, RIGHTARG = v.halfvec, FUNCTION = v.far)" } '<->', '<#>', '<=>'));
	($status, $out, $error) = $node->psql('tenant_old', 'CREATE EXTENSION pgwarp', extra_params => [ '-U', 'tenant' ]);
	like($error, qr/pgvector 0\.6\.2 is too old for pgwarp/, 'a domain in place of halfvec');
}

$node->stop;
done_testing();
