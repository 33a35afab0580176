# Attributes of rows that change: beside CREATE INDEX CONCURRENTLY and REINDEX CONCURRENTLY, before,
# while and after VACUUM trains the index, and for old snapshots, which see the old ones.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqAttributes;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('attributes_changes', conf => 'min_parallel_table_scan_size = 64kB');
prepare_items($node, 3000);
my $writes = <<'SQL';
DO $$ BEGIN FOR round IN 1 .. 40 LOOP
	INSERT INTO items SELECT r.* FROM generate_series(100000 + round * 5, 100004 + round * 5) AS i, item(i) AS r;
	UPDATE items SET (i, b, e, x, tags) = (SELECT r.i, r.b, r.e, r.x, r.tags FROM item(items.id, round) AS r)
		WHERE id % 97 = round;
	UPDATE items SET note = 'n' || round WHERE id % 89 = round;
	DELETE FROM items WHERE id = 100000 + round * 5;
	COMMIT;
	PERFORM pg_sleep(0.005);
END LOOP; END $$
SQL
my $writer = session($node);

# --- builds beside writers; partial indexes, and expressions

for my $statement ("CREATE INDEX CONCURRENTLY items_v ON items USING ivfpq ($columns) WITH (lists = 12)",
	'REINDEX INDEX CONCURRENTLY items_v')
{
	start($writer, $writes);
	value($node, $statement);
	my (undef, $complaints) = finish($writer);
	is($complaints, '', ($statement =~ /^(\w+)/)[0] . ': the writer goes on');
	items_agree($node, $seed, 'beside a writer');
	indexes_are_sound($node);
	value($node, 'DELETE FROM items WHERE id > 100000');
}
value($node, "DROP INDEX items_v;
	CREATE INDEX items_part ON items USING ivfpq (v, (i + 1), (upper(x)), (id % 7), tags) WITH (lists = 5) WHERE b");
sub expressions_agree
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(value($node, "SELECT d FROM unnest(ARRAY['i + 1 = 8', 'upper(x) = ''X3''', 'i + 1 > 40 AND id % 7 = 3',
		'upper(x) IS NULL AND id % 7 IN (1, 2)', 'upper(x) = repeat(''LONG 1'', 1000)', 'i + 1 IS NULL', 'tags \@> ''{3}''',
		'true']) AS c, unnest('{5,NULL}'::int[]) AS k, differs('items', 'b AND ' || c, vec(-7, 8), k) AS d
		WHERE d IS NOT NULL"), '', $name);
}
expressions_agree('partial, with expressions');
start($writer, $writes);
value($node, 'REINDEX INDEX CONCURRENTLY items_part');
finish($writer);
expressions_agree('beside a writer');
# Into it, out of it.
value($node, 'UPDATE items SET b = NOT b WHERE id % 5 = 0; UPDATE items SET i = NULL WHERE id % 11 = 0');
expressions_agree('rows that come and go');
value($node, 'VACUUM (INDEX_CLEANUP ON) items');
expressions_agree('without those');
indexes_are_sound($node);

# --- untrained; trained by VACUUM while others search

value($node, "DROP TABLE items CASCADE; DROP FUNCTION differs, compare_items, random_condition; DROP TYPE mood CASCADE");
prepare_items($node, 0);
value($node, "CREATE INDEX items_v ON items USING ivfpq ($columns) WITH (lists = 40);
	CREATE INDEX items_w ON items USING ivfpq ((subvector(v, 3, 4)::vector(4)), (i + 1), x, (lower(x))) WITH (lists = 10)");
value($node, "INSERT INTO items SELECT r.* FROM generate_series(1, 11000) AS i, item(i) AS r; ANALYZE items");
value($node, 'UPDATE items SET i = i + 1000 WHERE id % 10 = 3; DELETE FROM items WHERE id % 20 = 4');
sub second_agrees
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $part = 'subvector(v, 3, 4)::vector(4)';
	my @got = map { value($node, "SET enable_seqscan = $_->[0]; SET enable_indexscan = $_->[1]; SET enable_bitmapscan = off;
		SET ivfpq.target_recall = 1; SET ivfpq.candidates = 20000;
		SELECT array_agg(d), md5(array_agg(id ORDER BY id)::text) FROM (SELECT id, $part <-> vec(-1, 4) AS d FROM items
			WHERE i + 1 BETWEEN 7 AND 9 AND lower(x) = 'x3' ORDER BY $part <-> vec(-1, 4)) AS s") }
	  [ 'off', 'on' ], [ 'on', 'off' ];
	return is($got[0], $got[1], $name);
}
items_agree($node, $seed, 'untrained');
second_agrees('and by an expression');
my $pid = $writer->query_safe('SELECT pg_backend_pid()');
$writer->query_safe("SET vacuum_cost_delay = '5ms'; SET vacuum_cost_limit = 30");
start($writer, 'VACUUM items');
my $during = 0;
for my $round (1 .. 100)
{
	last if value($node, "SELECT state FROM pg_stat_activity WHERE pid = $pid") eq 'idle';
	++$during;
	items_agree($node, $seed + $round, "while VACUUM runs, $round", count => 4);
}
my (undef, $complaints) = finish($writer);
is($complaints, '', "VACUUM, and $during rounds meanwhile");
# Entries of rows that were dead, and that a search still held, leave with the next VACUUM.
value($node, 'VACUUM (INDEX_CLEANUP ON) items');
is(value($node, "SELECT bool_and(trained AND pending_rows = 0) FROM unnest('{items_v,items_w}'::text[]) AS i,
	ivfpq_info(i::regclass)"), 't', 'trained');
items_agree($node, $seed, 'trained');
second_agrees('and by an expression');
indexes_are_sound($node);

# --- an attribute changes, and old snapshots

my $old = session($node);
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
my $before = $old->query_safe('SELECT count(*) FROM items WHERE i + 0 = 7');
my $hot = "SELECT flush_statistics(); SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'items'";
my ($updates, $hot_updates) = split /\|/, value($node, $hot) =~ s/^\s+//r;
value($node, "UPDATE items SET i = CASE i WHEN 7 THEN 8 ELSE 7 END WHERE i IN (7, 8)");
my ($more, $more_hot) = split /\|/, value($node, $hot) =~ s/^\s+//r;
cmp_ok($more - $updates, '>', 100, 'attributes change');
is($more_hot, $hot_updates, 'never in place');
value($node, "UPDATE items SET note = 'changed' WHERE i = 7 AND id % 3 = 0");
my (undef, $last_hot) = split /\|/, value($node, $hot) =~ s/^\s+//r;
cmp_ok($last_hot, '>', $more_hot, 'other columns do where there is room');
for my $when ('after the update', 'after VACUUM')
{
	value($node, 'VACUUM (INDEX_CLEANUP ON) items') if $when =~ /VACUUM/;
	is($old->query_safe("SELECT string_agg(d, ' ') FROM unnest(ARRAY['i = 7', 'i = 8', 'i IN (7, 9)']) AS c,
		unnest('{3,NULL}'::int[]) AS k, differs('items', c, vec(-3, 8), k) AS d"), '', "an old snapshot, $when");
	is($old->query_safe("SET LOCAL enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM items WHERE i = 7
		ORDER BY v <-> vec(0, 8)) AS s"), $before, 'sees what it saw');
	items_agree($node, $seed, 'a new one sees new ones');
}
$old->quit;
$writer->quit;
vacuum_all($node, 'items');
items_agree($node, $seed, 'at rest');
indexes_are_sound($node);

# --- a user's hash function that may not run in parallel mode: it catches errors

value($node, <<'SQL');
CREATE FUNCTION careful_hash(a text) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN RETURN a::int; EXCEPTION WHEN OTHERS THEN RETURN hashtext(a); END $$;
CREATE OPERATOR CLASS careful_ops FOR TYPE text USING ivfpq AS OPERATOR 3 =, FUNCTION 2 careful_hash(text);
CREATE TABLE careful (id int PRIMARY KEY, v vector(4), x text) WITH (autovacuum_enabled = off);
CREATE INDEX careful_v ON careful USING ivfpq (v, x careful_ops) WITH (lists = 10);
INSERT INTO careful SELECT i, vec(i, 4), CASE i % 3 WHEN 0 THEN 'x' ELSE '' END || i % 50 FROM generate_series(1, 11000) AS i;
ANALYZE careful;
SQL
sub careful_agrees
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(value($node, "SELECT string_agg(d, ' ') FROM unnest('{x7,7,none}'::text[]) AS x, differs('careful', format('x = %L', x), vec(-1, 4), NULL) AS d"),
		'', $name);
}
my $log = -s $node->logfile;
value($node, 'SET min_parallel_index_scan_size = 0; VACUUM (PARALLEL 2) careful');
is(value($node, "SELECT pending_rows FROM ivfpq_info('careful_v')"), 11000, 'a parallel VACUUM leaves entries to a later one');
like(substr(slurp_file($node->logfile), $log), qr/"careful_v" stay pending\N*\n\N*cannot call (public\.)?careful_hash\(text\), which is not/,
	'and says why');
careful_agrees('untrained');
value($node, 'VACUUM (PARALLEL 0) careful');
is(value($node, "SELECT trained AND pending_rows = 0 FROM ivfpq_info('careful_v')"), 't', 'another trains');
careful_agrees('trained');
value($node, "ALTER TABLE careful SET (parallel_workers = 2); SET maintenance_work_mem = '128MB'; REINDEX INDEX careful_v");
careful_agrees('built again, by one process');
indexes_are_sound($node);
$node->stop;
done_testing();
