# A column changes from our own type to pgvector's and back, and its table is not written again.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('move');
plan skip_all => 'neither pgvector nor its stand-in is installed'
  if value($node, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'") eq '0';
sub psql { my ($database, $sql) = @_; return $node->safe_psql($database, $sql); }
sub error_in
{
	my ($database, $sql) = @_;
	my ($status, $out, $error) = $node->psql($database, $sql);
	isnt($status, 0, "refused: $sql");
	return $error;
}
sub file_of { my ($database) = @_; return psql($database, "SELECT pg_relation_filenode('items')"); }
# The rows, and what both types make of them.
my $content = 'SELECT md5(string_agg(concat_ws($$ $$, id, embedding, half), $$,$$ ORDER BY id)) FROM items';
my $nearest = "SELECT array_agg(id) FROM (SELECT id FROM items ORDER BY embedding <-> '[3,20,7,5]', id LIMIT 5) AS r";
# Not the row types of views, which are members, too, from 17 on.
my $made = "SELECT count(*) FROM pg_depend JOIN pg_type AS t ON t.oid = objid
	WHERE classid = 'pg_type'::regclass AND deptype = 'e' AND t.typtype = 'b' AND t.typcategory <> 'A'
		AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')";

# --- from our own type to pgvector's, as docs/coming-from-pgvector.md says

value($node, 'CREATE DATABASE moves');
psql('moves', "CREATE EXTENSION pgwarp;
	CREATE TABLE items (id int, embedding vector(4), long vector, half halfvec(4));
	INSERT INTO items SELECT i, ARRAY[i % 37, i % 41, i % 43, i % 11]::vector,
		array_fill(i, ARRAY[3000])::vector, ARRAY[i % 37, i % 41, i % 43, i % 11]::halfvec FROM generate_series(1, 1500) AS i;
	INSERT INTO items VALUES (0, NULL, NULL, NULL);
	CREATE INDEX items_embedding_idx ON items USING ivfpq (embedding)");
my ($before, $rows, $found) = (file_of('moves'), psql('moves', $content), psql('moves', $nearest));

psql('moves', 'CREATE SCHEMA pgvector; CREATE EXTENSION vector SCHEMA pgvector');
like(error_in('moves', 'ALTER TABLE items ALTER embedding TYPE pgvector.vector(4)'),
	qr/cannot be cast automatically to type pgvector\.vector/, 'no cast by itself');
psql('moves', 'CREATE EXTENSION pgwarp_pgvector');
like(error_in('moves', 'ALTER TABLE items ALTER embedding TYPE pgvector.vector(4)'),
	qr/data type pgvector\.vector has no default operator class for access method "ivfpq"/, 'the index must go first');
psql('moves', 'DROP INDEX items_embedding_idx;
	ALTER TABLE items ALTER embedding TYPE pgvector.vector(4), ALTER long TYPE pgvector.vector,
	ALTER half TYPE pgvector.halfvec(4)');
is(file_of('moves'), $before, 'the table is where it was');
is(psql('moves', "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'items'::regclass AND attname = 'embedding'"),
	'pgvector.vector(4)', 'the type is pgvector\'s, with its dimensions');
psql('moves', 'DROP EXTENSION pgwarp_pgvector; DROP EXTENSION pgwarp; ALTER EXTENSION vector SET SCHEMA public; CREATE EXTENSION pgwarp');
is(psql('moves', $made), 0, 'pgwarp uses pgvector\'s types');
psql('moves', 'CREATE INDEX items_embedding_idx ON items USING ivfpq (embedding)');
is(psql('moves', $content), $rows, 'the same rows');
is(psql('moves', $nearest), $found, 'found by the new index');
is(psql('moves', 'SELECT sum(long <-> long), count(DISTINCT long::text) FROM items'), '0|1500', 'rows in TOAST, too');
is(file_of('moves'), $before, 'the table is where it was');

# Nothing to cast from or to.
like(error_in('moves', 'CREATE EXTENSION pgwarp_pgvector'), qr/pgwarp has no types of its own in this database/, 'one type');

# --- and back

psql('moves', 'DROP EXTENSION pgwarp CASCADE; CREATE SCHEMA warp');
psql('moves', 'SET pgwarp.own_types = on; CREATE EXTENSION pgwarp SCHEMA warp; CREATE EXTENSION pgwarp_pgvector');
cmp_ok(psql('moves', $made), '>', 0, 'pgwarp has types of its own');
psql('moves', 'ALTER TABLE items ALTER embedding TYPE warp.vector(4), ALTER long TYPE warp.vector,
	ALTER half TYPE warp.halfvec(4)');
is(file_of('moves'), $before, 'the table is where it was');
psql('moves', 'DROP EXTENSION pgwarp_pgvector; DROP EXTENSION vector; ALTER EXTENSION pgwarp SET SCHEMA public');
psql('moves', 'CREATE INDEX items_embedding_idx ON items USING ivfpq (embedding)');
is(psql('moves', $content), $rows, 'the same rows');
is(psql('moves', $nearest), $found, 'found by the new index');
is(psql('moves', "SELECT count(*) FROM ivfpq_check('items_embedding_idx', true)"), 0, 'which is sound');

# --- casts check what they must

psql('moves', 'CREATE EXTENSION vector SCHEMA pgvector; CREATE EXTENSION pgwarp_pgvector');
psql('moves', 'DROP INDEX items_embedding_idx');
like(error_in('moves', 'ALTER TABLE items ALTER embedding TYPE pgvector.vector(3)'),
	qr/expected 3 dimensions, not 4/, 'other dimensions');
is(psql('moves', "SELECT '[1,2]'::vector::pgvector.vector(2)::vector::text"), '[1,2]', 'there and back');
like(error_in('moves', "SELECT '[1,2]'::vector::pgvector.vector(3)"), qr/expected 3 dimensions, not 2/, 'a value of others');
is(psql('moves', "CREATE TABLE copies (v pgvector.vector(4)); INSERT INTO copies SELECT embedding FROM items;
	SELECT count(*) FROM copies WHERE v IS NOT NULL"), 1500, 'INSERT casts');
psql('moves', 'ALTER TABLE items ALTER embedding TYPE vector');
$before = file_of('moves');
psql('moves', 'ALTER TABLE items ALTER embedding TYPE pgvector.vector(4)');
isnt(file_of('moves'), $before, 'dimensions that were not declared are checked row by row');


$node->stop;
done_testing();
