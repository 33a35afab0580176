# Conditions that the service checks: on every type, after every kind of change, with the recall asked
# for; and scans that go on there, candidate after candidate and list after list.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqAttributes;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('attributes_service', service => 1,
	conf => "maintenance_work_mem = 128MB\njit = off\nautovacuum = off\npgwarp.service_timeout = '20s'");
prepare_items($node, 4000);
value($node, "CREATE INDEX items_v ON items USING ivfpq ($columns) WITH (lists = 40); ANALYZE items");
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
is(value($node, "SELECT pgwarp_prewarm('items_v')"), 40, 'all lists are resident');

# Ranks fewer candidates than a search of the service may give, and more than are wanted.
value($node, "ALTER DATABASE postgres SET test.candidates = 1500");
sub searches
{
	return split /\|/, value($node, "SELECT service_searches, cpu_searches FROM pg_stat_pgwarp");
}
sub served_ok
{
	my ($name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($served, $others) = searches();
	items_agree($node, $seed++, $name, %options);
	my ($served_now, $others_now) = searches();
	cmp_ok($served_now - $served, '>', 0, "$name: by the service");
	is($others_now - $others, 0, "$name: and not by the CPU");
	return;
}
served_ok('every type', count => 60);
my $last = 'SELECT path, reason, rounds FROM ivfpq_last_scan()';
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;';
is(value($node, "$by_index SELECT count(*) FROM (SELECT id FROM items WHERE i = 7 ORDER BY v <-> vec(-1, 8) LIMIT 5) AS s; $last"),
	"5\nservice||1", 'one search');
is(value($node, "$by_index SELECT count(*) FROM (SELECT id FROM items WHERE i = 7 AND i = 8 ORDER BY v <-> vec(-1, 8) LIMIT 5) AS s"),
	0, 'a condition that excludes everything');

# --- changes: the mirror has the old entries, then some of the new ones, then all

value($node, 'INSERT INTO items SELECT r.* FROM generate_series(7001, 7040) AS i, item(i) AS r');
served_ok('a few rows more');
value($node, 'INSERT INTO items SELECT r.* FROM generate_series(8001, 9500) AS i, item(i) AS r');
items_agree($node, $seed, 'many rows more');
served_ok('and those are sent');
value($node, 'UPDATE items SET (i, b, e, x, tags) = (SELECT r.i, r.b, r.e, r.x, r.tags FROM item(items.id, 5) AS r)
	WHERE id % 3 = 0');
items_agree($node, $seed, 'attributes that changed');
value($node, 'DELETE FROM items WHERE id % 5 = 0; VACUUM (INDEX_CLEANUP ON) items');
items_agree($node, $seed, 'after VACUUM');
is(value($node, "SELECT pgwarp_prewarm('items_v')"), 40, 'all lists are resident again');
served_ok('and the service has it');
value($node, 'REINDEX INDEX items_v');
items_agree($node, $seed, 'after REINDEX');
value($node, "SELECT pgwarp_prewarm('items_v')");
served_ok('and the service has the new one');

# --- scans that go on

value($node, "ALTER DATABASE postgres SET ivfpq.target_recall = 1");
for my $condition ('true', 'i < 25', "x = 'x3'", 'b AND i IS NOT NULL')
{
	# More candidates than one search gives, and more rows than one round.
	is(value($node, "$by_index SET test.candidates = 5000; SELECT differs('items', \$c\$$condition\$c\$, vec(-3, 8), 40)"), '',
		"$condition: several searches in a round");
	my $searches = value($node, 'SELECT batches * mean_batch FROM pg_stat_pgwarp');
	my $rows = value($node, "SELECT count(*) FROM items WHERE $condition AND v IS NOT NULL");
	my $found = value($node, "$by_index SET ivfpq.candidates = 300; SET ivfpq.probes = 7;
		SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM items WHERE $condition ORDER BY v <-> vec(-4, 8)) AS s; $last");
	like($found, qr/^$rows\|$rows\nservice\|\|\d+$/, "$condition: all rows, each once, in many rounds");
	cmp_ok(value($node, 'SELECT batches * mean_batch FROM pg_stat_pgwarp') - $searches, '>=', 3, "$condition: by the service");
}
is(value($node, "$by_index SET ivfpq.candidates = 1000; SELECT count(*) FROM (SELECT id FROM items WHERE i = ANY (ARRAY(SELECT generate_series(1, 3000)))
	ORDER BY v <-> vec(-1, 8) LIMIT 3) AS s; $last"), "3\ncpu|too many conditions for the service|1", 'more values than a search may have');
is(value($node, "$by_index SET ivfpq.candidates = 1000; SELECT count(*) FROM (SELECT id FROM items WHERE i = ANY (ARRAY(SELECT generate_series(1, 1024)))
	ORDER BY v <-> vec(-1, 8) LIMIT 3) AS s; $last"), "3\nservice||1", 'as many as it may have');
my $sixteen = join(' AND ', map { "i <> ALL ('{$_}') IS NOT FALSE" } 1 .. 1) . ' AND ' . join(' AND ', map { "i > -$_" } 1 .. 16);
is(value($node, "$by_index SELECT differs('items', \$c\$$sixteen\$c\$, vec(-9, 8), 10)"), '', 'sixteen conditions');
# --- lists that are not resident, and vectors out of line: the scan ranks what it has, and goes on

value($node, <<'SQL');
CREATE TABLE wide (id bigint, v vector(600), i int);
ALTER TABLE wide ALTER v SET STORAGE EXTERNAL;
INSERT INTO wide SELECT n, vec(n, 600), n % 50 FROM generate_series(1, 2500) AS n;
CREATE INDEX wide_v ON wide USING ivfpq (v, i) WITH (lists = 40, m = 12);
ANALYZE wide;
SQL
for my $condition ('i = 7', 'i < 40', 'i + 0 = 7', 'i < 40 AND i % 7 = 2')
{
	value($node, 'REINDEX INDEX wide_v');
	is(value($node, "SET test.candidates = 4500; SELECT differs('wide', '$condition', vec(-1, 600), 20)"), '',
		"$condition, cold");
	is(value($node, "SET test.candidates = 5000; SELECT differs('wide', '$condition', vec(-1, 600), 20)"), '',
		"$condition, warm in part");
	# As users search, with recall as it comes: every row is one of the table that passes, and no other comes twice.
	for my $executor ('auto', 'cpu')
	{
		is(value($node, "SET ivfpq.executor = '$executor'; SET ivfpq.target_recall = 0.95; $by_index
			SELECT count(*), count(DISTINCT r.id), count(w.id) FROM (SELECT id, v <-> vec(-1, 600) AS d FROM wide
			WHERE $condition ORDER BY v <-> vec(-1, 600) LIMIT 15) AS r
			LEFT JOIN wide AS w ON w.id = r.id AND w.v <-> vec(-1, 600) = r.d AND ($condition)"), '15|15|15',
			"$condition, $executor");
	}
}
# --- answers before lists are resident: the backend reads them, and goes as far as the CPU where codes tell little

value($node, <<'SQL');
CREATE TABLE cold (id int, v vector(8), small int);
INSERT INTO cold SELECT i, vec(i, 8), i % 5 FROM generate_series(1, 3000) AS i;
CREATE INDEX cold_v ON cold USING ivfpq (v, small) WITH (lists = 12, m = 4);
ANALYZE cold;
-- How one search went, and what it found.
CREATE FUNCTION one_search(executor text, condition text, query vector) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	found text;
BEGIN
	PERFORM set_config('ivfpq.executor', executor, true);
	EXECUTE format('SELECT string_agg(id::text, '','') FROM (SELECT id FROM cold WHERE %s ORDER BY v <-> $1 LIMIT 7) AS s', condition)
		INTO found USING query;
	RETURN (SELECT found || ', candidates ' || candidates || ', ' || path || ' with lists from pages ' || (lists_read > 0) FROM ivfpq_last_scan());
END
$$;
SQL
my $cold = 0;
for my $i (1 .. 20)
{
	my $condition = $i % 2 ? 'small < 3' : 'small IN (1, 4)';
	my $of = sub { return "one_search('$_[0]', '$condition', vec(@{[ $_[1] % 4 == 0 ? 70 : $seed * 100 + $_[1] ]}, 8, 3))" };
	value($node, 'REINDEX INDEX cold_v');
	# The first search brings the model, and falls back. Which of the next ones find a list resident is left to chance.
	my @searches = map { [ split /\n/, $_ ] } value($node, "$by_index SET ivfpq.target_recall = 0.95; SET ivfpq.probes = 12;
		SELECT ${\$of->('auto', $i)}; " . join('', map { "SELECT ${\$of->('auto', $i + $_)}; SELECT ${\$of->('cpu', $i + $_)};" } 0 .. 2));
	my @lines = @{ $searches[0] };
	shift @lines;
	while (my ($auto, $cpu) = splice @lines, 0, 2)
	{
		my ($found) = $cpu =~ /^(.*, candidates \d+), cpu/;
		my ($served, $how) = $auto =~ /^(.*, candidates \d+), (.*)$/;
		$cold += $how eq 'service with lists from pages true';
		is($served, $found, "$condition, query $i of seed $seed: $how");
	}
}
note("$cold searches with lists from pages");
cmp_ok($cold, '>=', 5, 'the service answered before lists were resident');
# --- more lists than one search may have

value($node, <<'SQL');
CREATE TABLE spread (id bigint, v vector(4), i int, far bool);
INSERT INTO spread SELECT n, vec(n, 4), n % 1000, vec(n, 4) <-> vec(-7, 4) > 3 FROM generate_series(1, 12000) AS n;
CREATE INDEX spread_v ON spread USING ivfpq (v, i, far) WITH (lists = 5000);
ANALYZE spread;
SQL
is(value($node, "SELECT pgwarp_prewarm('spread_v')"), 5000, 'five thousand lists');
for my $condition ('true', 'i = 7', 'i < 300', 'far', 'far AND i < 100', 'i % 100 = 3')
{
	is(value($node, "$by_index SET ivfpq.target_recall = 1; SELECT differs('spread', '$condition', vec(-7, 4), 30)"), '',
		"$condition: in all lists");
	my $rows = value($node, "SELECT count(*) FROM spread WHERE $condition");
	my $all = value($node, "$by_index SET ivfpq.target_recall = 0.95; SET ivfpq.probes = 400; SET ivfpq.candidates = 500;
		SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM spread WHERE $condition ORDER BY v <-> vec(-7, 4)) AS s; $last");
	like($all, qr/^$rows\|$rows\nservice\|\|\d+$/, "$condition: all rows, each once, of all lists");
}
is(value($node, "$by_index SET ivfpq.target_recall = 0.95; SELECT count(*) FROM (SELECT id FROM spread
	WHERE i = 7 ORDER BY v <-> vec(-7, 4) LIMIT 30) AS s; SELECT path, reason, probes FROM ivfpq_last_scan()"),
	"12\nservice||5000", 'fewer rows than wanted: a search of all lists');
# Of the farthest rows, with a recall that the first lists cannot promise.
for my $query (map { -$_ } 1 .. 4)
{
	value($node, "UPDATE spread SET i = 0 WHERE i < 0;
		UPDATE spread SET i = -1 WHERE id IN (SELECT id FROM spread ORDER BY (v <-> vec($query, 4)) + 0 DESC LIMIT 200)");
	my $found = value($node, "$by_index SET ivfpq.target_recall = 0.95; SET ivfpq.executor = 'service';
		SELECT count(*), count(t.id) FROM (SELECT id FROM spread WHERE i = -1 ORDER BY v <-> vec($query, 4) LIMIT 10) AS f
		LEFT JOIN (SELECT id FROM spread WHERE i + 0 = -1 ORDER BY (v <-> vec($query, 4)) + 0 LIMIT 10) AS t USING (id);
		SELECT path, probes > 2048 FROM ivfpq_last_scan()");
	like($found, qr/^10\|(9|10)\nservice\|t$/, "the farthest rows of query $query");
}

# --- queries unlike the rows: a session learns that they need more lists than the curve says

# On a sphere: seen from near its center, all lists are as far as each other.
value($node, <<'SQL');
CREATE TABLE apart (id bigint, v vector(8), i int);
SELECT setseed(0.5);
INSERT INTO apart SELECT n, l2_normalize((SELECT array_agg(random() - random()) FROM generate_series(1, 8) WHERE n > 0)::real[]::vector), n % 20
	FROM generate_series(1, 20000) AS n;
CREATE INDEX apart_v ON apart USING ivfpq (v, i) WITH (lists = 200);
ANALYZE apart;
SQL
is(value($node, "SELECT pgwarp_prewarm('apart_v')"), 200, 'the lists of another table');
my $asked = "SELECT round(batches * mean_batch) FROM pg_stat_pgwarp WHERE indexname = 'apart_v'";
my $twenty = q{DO $$ BEGIN FOR n IN 1 .. 20 LOOP
	PERFORM id FROM apart WHERE i = 3 ORDER BY v <-> ARRAY[n, 1, 2, 3, 4, 5, 6, 7]::vector * array_fill(0.001, ARRAY[8])::vector LIMIT 10;
	END LOOP; END $$};
my ($some, $more) = split /\n/, value($node, "$by_index SET ivfpq.target_recall = 0.95; SET ivfpq.candidates = 80;
	$twenty; $asked; $twenty; $asked");
note("searches of the service for twenty queries: $some, then ", $more - $some);
cmp_ok($some, '<=', 23, 'most are searched for once');
cmp_ok($more - $some, '<=', 23, 'so are the next ones');

my ($fallbacks) = value($node, "SELECT fallbacks FROM pg_stat_pgwarp WHERE indexname = 'wide_v'");
cmp_ok($fallbacks, '>', 0, 'the service was asked in vain');
indexes_are_sound($node);
$node->stop;
done_testing();
