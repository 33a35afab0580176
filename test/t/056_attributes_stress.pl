# Connections that insert, change attributes, delete, vacuum and search by random conditions at once,
# once without the service and once with it. Every answer is compared with a scan of the table in the
# same snapshot. The index starts untrained, and is trained on the way.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqAttributes;
use IvfpqTest;

my %scripts = (
	writes => [ 30, <<'END' ],
\set n random(1, 14000)
\set what random(1, 6)
\if :what = 1
UPDATE items SET (i, n, f, b, at, e, x, u, tags) =
	(SELECT r.i, r.n, r.f, r.b, r.at, r.e, r.x, r.u, r.tags FROM item(items.id, :n) AS r) WHERE id BETWEEN :n AND :n + 3;
\elif :what = 2
UPDATE items SET note = 'x' WHERE id = :n;
\elif :what = 3
DELETE FROM items WHERE id BETWEEN :n AND :n + 10;
\elif :what = 4
INSERT INTO items SELECT r.* FROM (SELECT nextval('ids') AS i FROM generate_series(1, 12)) AS s, item(i, :n) AS r;
\elif :what = 5
BEGIN;
UPDATE items SET i = 7, x = NULL WHERE id = :n;
SAVEPOINT a;
UPDATE items SET i = 8, b = true WHERE id = :n;
ROLLBACK TO a;
INSERT INTO items SELECT r.* FROM item(-:n, 3) AS r;
ROLLBACK;
\else
UPDATE items SET v = vec(:n * 3, 8), i = i + 1 WHERE id = :n;
\endif
END
	some => [ 10, <<'END' ],
\set n random(1, 20000)
\set k random(1, 60)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT compare_items('items', random_condition(), vec(-:n, 8), :k);
SELECT compare_items('items', 'i IN (7, 8, 9)', vec(-:n, 8), 5);
COMMIT;
END
	all => [ 5, <<'END' ],
\set n random(1, 20000)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT compare_items('items', random_condition(), vec(-:n, 8), NULL);
COMMIT;
END
	plain => [ 5, <<'END' ],
\set n random(1, 20000)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT check_items('true', vec(-:n, 8), 20);
SELECT check_items(random_condition(), vec(-:n, 8), 20);
COMMIT;
END
	cursor => [ 2, <<'END' ],
\set n random(1, 20000)
BEGIN ISOLATION LEVEL REPEATABLE READ;
DECLARE c CURSOR FOR SELECT id FROM items WHERE i < 25 AND e = 'ok' ORDER BY v <-> vec(:n, 8);
MOVE FORWARD 20 IN c;
\sleep 100 ms
MOVE FORWARD ALL IN c;
COMMIT;
END
	vacuum => [ 3, "VACUUM (TRUNCATE OFF, INDEX_CLEANUP ON) items;\n" ],);

# As users search: rows of the table that pass, with their distances, each once, and as many as wanted.
my $check = <<'SQL';
CREATE SEQUENCE ids START 20000;
CREATE FUNCTION check_items(condition text, query vector, k int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	ids bigint[];
	distances float8[];
	wrong int;
	expected int;
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
		set_config('ivfpq.iterative_scan', 'relaxed_order', true), set_config('ivfpq.target_recall', '0.95', true),
		set_config('ivfpq.candidates', '0', true);
	EXECUTE format('SELECT coalesce(array_agg(id), ''{}''), array_agg(d) FROM (SELECT id, v <-> $1 AS d FROM items
		WHERE %s ORDER BY v <-> $1 LIMIT %s) AS s', condition, k) INTO ids, distances USING query;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
		set_config('enable_indexscan', 'off', true);
	EXECUTE format('SELECT count(*) FROM unnest($2, $3) AS f (id, d) LEFT JOIN (SELECT id, v <-> $1 AS d FROM items
		WHERE %s) AS e USING (id) WHERE e.d IS DISTINCT FROM f.d', condition) INTO wrong USING query, ids, distances;
	EXECUTE format('SELECT least(%s, count(*)) FROM items WHERE %s', k, condition) INTO expected;
	PERFORM set_config('enable_indexscan', 'on', true);
	IF wrong > 0 OR expected <> cardinality(ids) OR
		cardinality(ids) <> (SELECT count(DISTINCT i) FROM unnest(ids) AS i) THEN
		RAISE '%: % of % rows are wrong, % are different, % expected', condition, wrong, cardinality(ids),
			(SELECT count(DISTINCT i) FROM unnest(ids) AS i), expected;
	END IF;
END
$$;
SQL
my $seed = seed_of();
my $folder = PostgreSQL::Test::Utils::tempdir();
my @arguments;
for my $name (sort keys %scripts)
{
	my ($weight, $script) = @{ $scripts{$name} };
	append_to_file("$folder/$name.sql", $script);
	push @arguments, "--file=$folder/$name.sql\@$weight";
}
for my $service (0, 1)
{
	my $name = $service ? 'with the service' : 'without the service';
	my $node = new_node("attributes_stress_$service", service => $service,
		conf => "max_connections = 40\nshared_buffers = 4MB\nwork_mem = 256kB\nautovacuum = off");
	prepare_items($node, 0);
	value($node, $check);
	value($node, "CREATE INDEX items_v ON items USING ivfpq ($columns) WITH (lists = 30);
		CREATE INDEX items_id ON items (id);
		INSERT INTO items SELECT r.* FROM generate_series(1, 10500) AS i, item(i) AS r; ANALYZE items");
	my ($out, $complaints) = ('', '');
	my $seconds = $ENV{STRESS_SECONDS} // 6;
	IPC::Run::run([ 'pgbench', '--no-vacuum', '--client=6', '--jobs=2', "--time=$seconds",
		"--random-seed=$seed", @arguments, '--port=' . $node->port, '--host=' . $node->host,
		'postgres' ], '>', \$out, '2>', \$complaints);
	is(join("\n", grep { /error/i } split /\n/, $complaints), '', "$name: every answer is right");
	my ($transactions) = $out =~ /number of transactions actually processed: (\d+)/;
	cmp_ok($transactions // 0, '>', 30, ($transactions // 0) . ' transactions');
	items_agree($node, $seed, 'at rest');
	vacuum_all($node, 'items');
	is(value($node, "SELECT trained, rows = (SELECT count(*) FROM items) FROM ivfpq_info('items_v')"), 't|t',
		'trained on the way, and no row left over');
	items_agree($node, $seed + 1, 'and vacuumed');
	cmp_ok(value($node, 'SELECT coalesce(sum(service_searches), 0) FROM pg_stat_pgwarp'), '>', 0,
		'the service had its share') if $service;
	indexes_are_sound($node);
	$node->stop;
}
done_testing();
