# pgwarp in a database that has pgvector: its types are used, nothing is made twice, and that stays right
# over the life of the database. On the pgvector that is installed, or on the stand-in of test/pgvector.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('pgvector', conf => "shared_preload_libraries = ''");
my $found = value($node, "SELECT default_version || ' ' || comment FROM pg_available_extensions WHERE name = 'vector'");
plan skip_all => 'neither pgvector nor its stand-in is installed' if $found eq '';
my $real = $found !~ /stand-in/;
diag('extension vector is ' . ($real ? "pgvector $found" : "a stand-in, $found"));

my $folder = PostgreSQL::Test::Utils::tempdir();
my @server = ('--port=' . $node->port, '--host=' . $node->host);

sub psql
{
	my ($database, $sql) = @_;
	return $node->safe_psql($database, $sql);
}
sub error_in
{
	my ($database, $sql) = @_;
	my ($status, $out, $error) = $node->psql($database, $sql);
	isnt($status, 0, "refused: $sql");
	return $error;
}
sub create { my ($database) = @_; return value($node, "CREATE DATABASE $database"); }

# Which type the classes are on, what depends on what, and the types that pgwarp made.
my $binding = "SELECT c.opcname, t.typnamespace::regnamespace || '.' || t.typname
		FROM pg_opclass AS c JOIN pg_type AS t ON t.oid = c.opcintype JOIN pg_am AS a ON a.oid = c.opcmethod
		WHERE a.amname = 'ivfpq' AND c.opcname ~ '^(half)?vec(tor)?_' ORDER BY c.opcname";
my $depends = "SELECT string_agg(pg_describe_object(refclassid, refobjid, 0), ', ') FROM pg_depend
		WHERE classid = 'pg_extension'::regclass AND deptype = 'n' AND refclassid = 'pg_extension'::regclass
			AND objid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')";
# Not the row types of views, which are members, too, from 17 on.
my $made = "SELECT count(*) FROM pg_depend JOIN pg_type AS t ON t.oid = objid
	WHERE classid = 'pg_type'::regclass AND deptype = 'e' AND t.typtype = 'b' AND t.typcategory <> 'A'
		AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')";
sub bound_to
{
	my ($database, $schema, $what) = @_;
	my @classes;
	for my $type (qw(halfvec vector))
	{
		push @classes, "${type}_${_}_ops|$schema.$type" for qw(cosine ip l2);
	}
	is(psql($database, $binding), join("\n", @classes), "$what: classes are on types of $schema");
	return;
}

# A table of vectors whose distances from a query are known, and its index.
my $rows = 1100;
sub make_items
{
	my ($database, $schema, $pgwarp) = @_;
	psql($database, <<"SQL");
CREATE TABLE items (id int PRIMARY KEY, embedding $schema.vector(4), half $schema.halfvec(4));
INSERT INTO items (id, embedding, half)
SELECT i, a::$schema.vector, a::$schema.halfvec FROM (SELECT i, ARRAY[i % 37, i % 41, i % 43, i % 11] AS a FROM generate_series(1, $rows) AS i) AS s;
CREATE INDEX items_l2 ON items USING ivfpq (embedding $pgwarp.vector_l2_ops);
CREATE INDEX items_cosine ON items USING ivfpq (embedding $pgwarp.vector_cosine_ops);
CREATE INDEX items_ip ON items USING ivfpq (embedding $pgwarp.vector_ip_ops, id);
CREATE INDEX items_half_l2 ON items USING ivfpq (half $pgwarp.halfvec_l2_ops);
CREATE INDEX items_half_cosine ON items USING ivfpq (half $pgwarp.halfvec_cosine_ops);
CREATE INDEX items_half_ip ON items USING ivfpq (half $pgwarp.halfvec_ip_ops, id);
CREATE INDEX items_expression ON items USING ivfpq ((embedding::$schema.halfvec(4)) $pgwarp.halfvec_l2_ops);
SQL
	return;
}

# Each operator: by its index, the rows of an exact search. Nothing of either extension is in search_path.
sub searches_right
{
	my ($database, $schema, $pgwarp, $what) = @_;
	my @classes = ([ '<->', 'l2', 'L2' ], [ '<#>', 'ip', 'inner product' ], [ '<=>', 'cosine', 'cosine' ]);
	my (@names, @exact, @by_index);
	for my $class ((map { [ @$_, 'embedding', 'vector' ] } @classes),
		(map { [ $_->[0], "half_$_->[1]", "$_->[2] of halves", 'half', 'halfvec' ] } @classes),
		[ '<->', 'expression', 'L2 of an expression', "(embedding::$schema.halfvec(4))", 'halfvec' ])
	{
		my ($operator, $index, $name, $column, $type) = @$class;
		my $distance = "$column OPERATOR($schema.$operator) '[3,20,7,5]'::$schema.$type";
		my $query = "SELECT array_agg(d ORDER BY d) FROM (SELECT round(($distance)::numeric, 5) AS d FROM items
			ORDER BY $distance LIMIT 20) AS r";
		push @names, [ $name, $index ];
		push @exact, $query;
		push @by_index, "\\echo next\nEXPLAIN (COSTS OFF) $query;\n$query";
	}
	my $settings = 'SET search_path = pg_catalog, public; SET ivfpq.target_recall = 1';
	my @sorted = split /\n/, psql($database, join(";\n", "$settings; SET enable_indexscan = off", @exact));
	my (undef, @searched) = split /^next\n/m, psql($database, join(";\n", "$settings; SET enable_seqscan = off; SET enable_sort = off", @by_index));
	for my $i (0 .. $#names)
	{
		my ($name, $index) = @{ $names[$i] };
		is(($searched[$i] =~ /^(\{.*\})$/m)[0], $sorted[$i], "$what: rows by $name");
		like($searched[$i], qr/Index Scan using items_$index /, 'by the index');
	}
	is(psql($database, "SELECT string_agg(problem, ', ') FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam,
		$pgwarp.ivfpq_check(c.oid, true) WHERE a.amname = 'ivfpq'"), '', "$what: indexes are sound");
	return;
}

# --- in one schema, and in two of their own

create('one');
psql('one', 'CREATE EXTENSION vector; CREATE EXTENSION pgwarp');
bound_to('one', 'public', 'one schema');
is(psql('one', $depends), 'extension vector', 'the extension depends on pgvector');
is(psql('one', $made), 0, 'and makes no type');
make_items('one', 'public', 'public');
searches_right('one', 'public', 'public', 'one schema');

create('two');
psql('two', 'CREATE SCHEMA "The Vectors"; CREATE SCHEMA warp;
	CREATE EXTENSION vector SCHEMA "The Vectors"; CREATE EXTENSION pgwarp SCHEMA warp');
bound_to('two', '"The Vectors"', 'two schemas');
make_items('two', '"The Vectors"', 'warp');
searches_right('two', '"The Vectors"', 'warp', 'two schemas');

# --- functions take its type

my $path = 'SET search_path = pg_catalog';
is(psql('two', qq($path; SELECT array_agg(size ORDER BY cluster) IS NOT NULL, sum(size), pg_typeof(min(centroid::text)::"The Vectors".vector)
	FROM warp.kmeans('public.items', 'embedding', 3))), qq(t|$rows|"The Vectors".vector), 'kmeans');
is(psql('two', qq($path; SELECT warp.kmeans_assign('[1,0,0,0]'::"The Vectors".vector,
	ARRAY['[9,9,9,9]', '[1,1,0,0]']::"The Vectors".vector[]))), 2, 'kmeans_assign');
is(psql('two', qq($path; SELECT count(*), count(DISTINCT query), min(distance) FROM warp.knn_search('public.items_l2',
	ARRAY['[1,1,1,1]', '[2,2,2,2]']::"The Vectors".vector[], 3))), '6|2|0', 'knn_search');
is(psql('two', qq($path; SELECT count(*), count(DISTINCT query), min(distance) FROM warp.knn_search('public.items_half_l2',
	ARRAY['[1,1,1,1]', '[2,2,2,2]']::"The Vectors".halfvec[], 3))), '6|2|0', 'knn_search by halves');
is(psql('two', qq($path; SELECT count(*), count(DISTINCT query), min(distance) FROM warp.knn_search('public.items_half_l2',
	'{"[1,1,1,1]","[2,2,2,2]"}', 3))), '6|2|0', 'knn_search by text');
is(psql('two', qq($path; SELECT warp.kmeans_assign('[1,0,0,0]'::"The Vectors".halfvec,
		ARRAY['[9,9,9,9]', '[1,1,0,0]']::"The Vectors".vector[]),
	warp.kmeans_assign('[1,0,0,0]'::"The Vectors".halfvec, ARRAY['[9,9,9,9]', '[1,1,0,0]']::"The Vectors".halfvec[]),
	warp.kmeans_assign('[1,0,0,0]', ARRAY['[9,9,9,9]', '[1,1,0,0]']::"The Vectors".vector[]))), '2|2|2', 'kmeans_assign of halves');
is(psql('two', qq($path; SELECT sum(size) FROM warp.kmeans('public.items', 'half', 3))), $rows, 'kmeans of halves');
is(psql('two', qq($path; SELECT count(*), sum(distance) FROM warp.knn_join('public.items', 'id', 'embedding',
	'public.items_l2', 'id', 1))), "$rows|0", 'knn_join');
is(psql('two', qq($path; SELECT count(*) FROM warp.knn_graph('public.items', 'id', 'embedding', 4))), 4 * $rows, 'knn_graph');
cmp_ok(psql('two', qq($path; SELECT warp.ivfpq_recall('public.items_l2'))), '>', 0.8, 'ivfpq_recall');
is(psql('two', qq($path; SELECT count(DISTINCT quantizer) > 1 FROM warp.ivfpq_compare('public.items', 'embedding', 4))), 't', 'ivfpq_compare');
like(error_in('two', qq($path; SELECT warp.knn_search('public.items_l2', ARRAY['[1,2]']::"The Vectors".vector[], 3))),
	qr/different vector dimensions 2 and 4/, 'dimensions are checked');

# --- an index beside what is there: nothing is rewritten, CONCURRENTLY, inserts and VACUUM

create('beside');
psql('beside', "CREATE EXTENSION vector; CREATE TABLE items (id int, embedding vector(4), half halfvec(4));
	INSERT INTO items SELECT i, a::vector, a::halfvec
	FROM (SELECT i, ARRAY[i % 37, i % 41, i % 43, i % 11] AS a FROM generate_series(1, $rows) AS i) AS s");
psql('beside', 'CREATE INDEX items_hnsw ON items USING hnsw (embedding vector_l2_ops)') if $real;
my $file = psql('beside', "SELECT pg_relation_filenode('items')");
psql('beside', 'CREATE EXTENSION pgwarp');
psql('beside', 'CREATE INDEX CONCURRENTLY items_l2 ON items USING ivfpq (embedding vector_l2_ops)');
psql('beside', "CREATE INDEX items_cosine ON items USING ivfpq (embedding vector_cosine_ops);
	CREATE INDEX items_ip ON items USING ivfpq (embedding vector_ip_ops);
	CREATE INDEX items_half_l2 ON items USING ivfpq (half halfvec_l2_ops);
	CREATE INDEX items_half_cosine ON items USING ivfpq (half halfvec_cosine_ops);
	CREATE INDEX items_half_ip ON items USING ivfpq (half halfvec_ip_ops);
	CREATE INDEX items_expression ON items USING ivfpq ((embedding::halfvec(4)) halfvec_l2_ops)");
is(psql('beside', "SELECT pg_relation_filenode('items')"), $file, 'the table is where it was');
psql('beside', "INSERT INTO items SELECT i, a::vector, a::halfvec
	FROM (SELECT i, ARRAY[i % 31, i % 29, i % 7, 2] AS a FROM generate_series(5001, 5300) AS i) AS s;
	DELETE FROM items WHERE id % 5 = 0; UPDATE items SET embedding = '[3,20,7,6]', half = '[3,20,7,6]' WHERE id = 77");
psql('beside', 'VACUUM (INDEX_CLEANUP ON) items');
psql('beside', 'DROP INDEX items_hnsw') if $real;
searches_right('beside', 'public', 'public', 'changes');

# --- values in TOAST: a scan lends pgvector's functions what it has read, and distances stay pgvector's,
# bit by bit

psql('beside', "SET client_min_messages = warning; CREATE TABLE long (id int, v vector(700), h halfvec(1400));
	INSERT INTO long SELECT i, v::vector, (v || v)::halfvec
	FROM (SELECT i, array_agg(((i * 7919 + k * k * 31) % 1009) / 100.0 ORDER BY k) AS v
		FROM generate_series(1, 1050) AS i, generate_series(1, 700) AS k GROUP BY i) AS s;
	CREATE INDEX ON long USING ivfpq (v vector_l2_ops); CREATE INDEX ON long USING ivfpq (v vector_cosine_ops);
	CREATE INDEX ON long USING ivfpq (h halfvec_l2_ops)");
is(psql('beside', "SELECT pg_relation_size(reltoastrelid) > 1000000 FROM pg_class WHERE relname = 'long'"), 't', 'values are in TOAST');
my $vector = "(SELECT v FROM long WHERE id = 7)";
my $half = "(SELECT h FROM long WHERE id = 7)";
for my $search ([ 'v', '<->', $vector ], [ 'v', '<=>', $vector ], [ 'h', '<->', $half ])
{
	my ($column, $operator, $query) = @$search;
	for my $condition ('true', "$column $operator $query < " . ($operator eq '<=>' ? 0.3 : 120))
	{
		# All digits; a generic plan, and the constant in each of its forms.
		my $rows = "SELECT md5(string_agg(concat_ws(' ', id, d, e, twice), ',' ORDER BY d, id)), count(*)
			FROM (SELECT id, $column $operator $query AS d, $query $operator $column AS e, ($column $operator $column) * 2 AS twice
				FROM long WHERE $condition ORDER BY $column $operator $query) AS r";
		my $exact = psql('beside', "SET enable_indexscan = off; $rows");
		is(psql('beside', "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.target_recall = 1; $rows"), $exact,
			"$column $operator where $condition: the same distances");
		# Code that JIT compiled calls pgvector's functions itself.
		is(psql('beside', "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.target_recall = 1; SET jit = on;
			SET jit_above_cost = 0; $rows"), $exact, 'the same by JIT');
	}
	my $nearest = "PREPARE n AS SELECT round(d::numeric, 4) FROM
		(SELECT $column $operator \$1 AS d FROM long ORDER BY $column $operator \$1 LIMIT 7) AS r; ";
	my $execute = join(' ', map { "SELECT ${column}::text AS q FROM long WHERE id = $_ \\gset\nEXECUTE n(:'q');\n" } 3, 900, 3);
	is(psql('beside', "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET plan_cache_mode = force_generic_plan; $nearest$execute"),
		psql('beside', "SET enable_indexscan = off; $nearest$execute"), "$column $operator: prepared");
}

# Without finer codes, a search reads the values of all its rows: its buffers are the same with more distances to show.
sub buffers
{
	my ($columns) = @_;
	my $query = psql('beside', 'SELECT v FROM long WHERE id = 7');
	my $plan = psql('beside', "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.candidates = 100; SET pgwarp.debug_refine = off;
		EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) SELECT id $columns FROM long AS l ORDER BY v <-> '$query' LIMIT 50");
	my ($hit) = $plan =~ /Limit.*?Buffers: shared hit=(\d+)/s;
	return $hit // $plan;
}
buffers('');
is(buffers(', v <-> v AS a, v <=> v AS b, v <#> v AS c, v <+> v AS d'), buffers(''), 'values are read once');

# --- dump and restore: pgvector comes first, though its name sorts behind

for my $from (qw(one two))
{
	$node->command_ok([ 'pg_dump', @server, '--format=custom', "--file=$folder/$from", $from ], "$from: dump");
	create("${from}_again");
	# What is searched afterwards is the second one.
	$node->command_ok([ 'pg_restore', @server, '--exit-on-error', '--jobs=2', $from eq 'one' ? '--schema-only' : (), "--dbname=${from}_again",
			"$folder/$from" ], "$from: restore");
	is(psql("${from}_again", $binding), psql($from, $binding), "$from: bound as before");
	is(psql("${from}_again", $depends), 'extension vector', "$from: and dependent");
}
searches_right('two_again', '"The Vectors"', 'warp', 'restored');

# A dump of a pgvector database where only pgwarp is, and the other way round: where their schemas are
# the same, columns take the type that is there.
my $plain = "$folder/one.sql";
$node->command_ok([ 'pg_dump', @server, "--file=$plain", 'one' ], 'plain dump');
my $text = slurp_file($plain) =~ s/^(CREATE|COMMENT ON) EXTENSION.* vector .*$//mgr;
create('without');
append_to_file("$folder/without.sql", $text);
$node->command_ok([ 'psql', @server, '--quiet', '--set=ON_ERROR_STOP=1', "--file=$folder/without.sql", 'without' ],
	'without pgvector');
cmp_ok(psql('without', $made), '>', 0, 'pgwarp has its own types there');
searches_right('without', 'public', 'public', 'without pgvector');
$node->command_ok([ 'pg_dump', @server, "--file=$folder/own.sql", 'without' ], 'dump of own types');
create('has_pgvector');
psql('has_pgvector', 'CREATE EXTENSION vector');
$node->command_ok([ 'psql', @server, '--quiet', '--set=ON_ERROR_STOP=1', "--file=$folder/own.sql", 'has_pgvector' ],
	'into a database that has pgvector');
bound_to('has_pgvector', 'public', 'with pgvector');
searches_right('has_pgvector', 'public', 'public', 'with pgvector');

# --- other schemas, later

psql('two', 'CREATE SCHEMA elsewhere; ALTER EXTENSION vector SET SCHEMA elsewhere; ALTER EXTENSION pgwarp SET SCHEMA public');
bound_to('two', 'elsewhere', 'moved');
searches_right('two', 'elsewhere', 'public', 'moved');
psql('two', "INSERT INTO items VALUES (9999, '[3,20,7,5]', '[3,20,7,5]')");
searches_right('two', 'elsewhere', 'public', 'after an insert');
psql('two', 'REINDEX TABLE items');
searches_right('two', 'elsewhere', 'public', 'after REINDEX');

# --- dropping

like(error_in('one', 'DROP EXTENSION vector'),
	qr/cannot drop extension vector because other objects depend on it\n.*extension pgwarp depends on extension vector/s,
	'it names pgwarp');
psql('one', 'DROP EXTENSION pgwarp CASCADE');
is(psql('one', "SELECT count(*) FROM items WHERE vector_dims(embedding) = 4"), $rows, 'without pgwarp, columns stay');
psql('one', 'CREATE EXTENSION pgwarp; DROP EXTENSION vector CASCADE');
is(psql('one', "SELECT count(*) FROM pg_extension WHERE extname IN ('vector', 'pgwarp')"), 0, 'CASCADE drops both');
psql('one', 'CREATE EXTENSION pgwarp');
cmp_ok(psql('one', $made), '>', 0, 'a new one makes its own types');

# --- versions of pgvector

my $versions = value($node, "SELECT string_agg(version, ' ' ORDER BY version) FROM pg_available_extension_versions
	WHERE name = 'vector'");
create('older');
SKIP:
{
	skip 'there is no older version to install', 17 if $versions !~ /0\.7\.\d/ || $found =~ /^0\.7/;
	my ($seventh) = $versions =~ /(0\.7\.\d)/;
	psql('older', "CREATE EXTENSION vector VERSION '$seventh'; CREATE EXTENSION pgwarp");
	make_items('older', 'public', 'public');
	psql('older', 'ALTER EXTENSION vector UPDATE');
	isnt(psql('older', "SELECT extversion FROM pg_extension WHERE extname = 'vector'"), $seventh, 'pgvector is newer now');
	searches_right('older', 'public', 'public', 'after its update');
	is(psql('older', $depends), 'extension vector', 'still dependent');
}
SKIP:
{
	skip 'there is no version that is too old', 4 if $real;
	create('too_old');
	psql('too_old', "CREATE EXTENSION vector VERSION '0.6.2'");
	my $error = error_in('too_old', 'CREATE EXTENSION pgwarp');
	like($error, qr/ERROR:  pgvector 0\.6\.2 is too old for pgwarp\nDETAIL:  pgwarp uses the types of pgvector 0\.7\.0 or later\.\nHINT:  .*ALTER EXTENSION vector UPDATE/,
		'an old pgvector');
	psql('too_old', 'ALTER EXTENSION vector UPDATE; CREATE EXTENSION pgwarp');
	bound_to('too_old', 'public', 'updated');
}

# --- our own type first

create('own');
psql('own', 'CREATE EXTENSION pgwarp');
bound_to('own', 'public', 'own type');
like(error_in('own', 'CREATE EXTENSION vector'), qr/type "vector" already exists/, 'pgvector in the same schema');
psql('own', 'CREATE SCHEMA other; CREATE EXTENSION vector SCHEMA other');
bound_to('own', 'public', 'pgvector in another');
is(psql('own', $depends), '', 'and nothing depends on it');
SKIP:
{
	# pg_dump calls a cast by the names of its types, without their schemas, and asserts from 19 on that no two casts
	# have the same name.
	skip 'pg_dump of 19 with assertions fails on casts of types of one name in two schemas', 3
	  if server_version() >= 19 && value($node, 'SHOW debug_assertions') eq 'on';
	$node->command_ok([ 'pg_dump', @server, '--format=custom', "--file=$folder/own", 'own' ], 'dump of both types');
	create('own_again');
	$node->command_ok([ 'pg_restore', @server, '--exit-on-error', "--dbname=own_again", "$folder/own" ], 'restore');
	bound_to('own_again', 'public', 'restored');
}

# A foreign type of the name is no reason to fail, nor is it taken.
create('foreign_type');
psql('foreign_type', "CREATE SCHEMA v; CREATE EXTENSION vector SCHEMA v; CREATE DOMAIN vector AS text;
	CREATE FUNCTION public.format(text, name) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE ''captured''; END';
	CREATE EXTENSION pgwarp");
bound_to('foreign_type', 'v', 'a domain of the same name');
make_items('foreign_type', 'v', 'public');
searches_right('foreign_type', 'v', 'public', 'a domain of the same name');

# The function of the script is for scripts.
psql('own', "CREATE FUNCTION bind() RETURNS name AS '\$libdir/pgwarp', 'pgwarp_bind_types' LANGUAGE C");
like(error_in('own', 'SELECT bind()'), qr/can only be called by the script of an extension/, 'outside a script');

$node->stop;
done_testing();
