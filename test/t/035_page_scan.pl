# Workers that read a table for a device judge pages of live and dead rows themselves, and leave the
# others to a scan: on every kind of page the index gets what a build on the CPU, which always scans,
# gives it.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('page_scan', service => 1, conf => "maintenance_work_mem = 256MB
min_parallel_table_scan_size = 64kB\nmax_parallel_maintenance_workers = 5\nautovacuum = off");
my $index = 'USING ivfpq (v) WITH (lists = 20, m = 6)';

sub make_pages
{
	my ($table) = @_;
	return "CREATE TABLE $table (id int, n int, v vector(24)) WITH (fillfactor = 60, parallel_workers = 5);
		INSERT INTO $table SELECT i, 0, CASE WHEN i % 101 <> 0 THEN vec(i, 24) END FROM generate_series(1, 9000) AS i;
		ALTER TABLE $table ADD more int DEFAULT 7;";
}

# Both builds of a table as it is, by statements of the same session.
sub builds_of
{
	my ($table) = @_;
	return "SET client_min_messages = debug1; SET pgwarp.build_executor = 'cpu'; CREATE INDEX ${table}_cpu ON $table $index;
		SET pgwarp.build_executor = 'gpu'; CREATE INDEX ${table}_gpu ON $table $index; RESET client_min_messages;";
}

sub words_of
{
	my ($statements) = @_;
	my $words;
	$node->psql('postgres', $statements, stderr => \$words, on_error_stop => 1);
	return $words;
}

# What the indexes hold: places of rows, told by those that a scan finds.
sub same_indexes
{
	my ($table, $name, $words, $scanned) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $rows = value($node, "SELECT count(v) FROM $table");
	my ($cpu, $gpu) = map { value($node, "SELECT rows FROM ivfpq_info('${table}_$_')") } 'cpu', 'gpu';
	cmp_ok($cpu, '>=', $rows, "$name: the CPU has all $rows rows");
	is($gpu, $cpu, 'and the device as many');
	like($words, qr/index "${table}_gpu": $gpu rows in [\d.]+ s on (?!cpu)/, 'built on a device');
	my ($left, $all) = (0, 0);
	while ($words =~ /(\d+) of (\d+) blocks were left to a scan/g) { $left += $1; $all += $2 }
	# From 17 on PostgreSQL's own scans read ahead, and workers leave all pages to them.
	if (server_version() >= 17)
	{
		is($all, 0, 'all pages by a scan');
	}
	else
	{
		cmp_ok($all, '>', 50, 'from pages that workers read');
		cmp_ok($left, $scanned ? '>' : '==', 0, $scanned ? 'some pages by a scan' : 'no page by a scan');
	}
	is(value($node, "SELECT indcheckxmin FROM pg_index WHERE indexrelid = '${table}_gpu'::regclass"),
		value($node, "SELECT indcheckxmin FROM pg_index WHERE indexrelid = '${table}_cpu'::regclass"),
		'for the same snapshots');
	for my $keep ('cpu', 'gpu')
	{
		my $other = $keep eq 'cpu' ? 'gpu' : 'cpu';
		is(value($node, "BEGIN; DROP INDEX ${table}_$other; SET LOCAL enable_seqscan = off;
			SET LOCAL ivfpq.target_recall = 1; SELECT md5(string_agg(id || ' ' || ctid || ' ' || n, ',' ORDER BY id)) FROM
			(SELECT ctid, id, n FROM $table ORDER BY v <-> vec(0, 24)) AS s; ROLLBACK"),
			value($node, "SELECT md5(string_agg(id || ' ' || ctid || ' ' || n, ',' ORDER BY id)) FROM $table WHERE v IS NOT NULL"),
			"every row by the index of $keep");
	}
	indexes_are_sound($node);
	value($node, "DROP TABLE $table");
	return;
}

# Nothing but live rows.
value($node, make_pages('fresh') . 'VACUUM fresh');
same_indexes('fresh', 'live rows', words_of(builds_of('fresh')), 0);

# Changed in place, elsewhere, deleted, and never there, all of it over; then vacuumed, so that
# chains begin with a pointer.
for my $vacuumed (0, 1)
{
	my $table = "past$vacuumed";
	value($node, make_pages($table));
	value($node, "UPDATE $table SET n = n + 1 WHERE id % 7 = 3; UPDATE $table SET n = n + 1 WHERE id % 14 = 3;
		UPDATE $table SET v = vec(-id, 24), n = 9 WHERE id % 11 = 5; DELETE FROM $table WHERE id % 13 = 1;
		UPDATE $table SET v = NULL WHERE id % 17 = 2");
	value($node, "BEGIN; INSERT INTO $table SELECT -i, 0, vec(i, 24) FROM generate_series(1, 500) AS i;
		UPDATE $table SET n = -1 WHERE id % 5 = 0; DELETE FROM $table WHERE id % 3 = 0; ROLLBACK");
	value($node, "VACUUM $table; UPDATE $table SET n = n + 1 WHERE id % 19 = 4") if $vacuumed;
	same_indexes($table, $vacuumed ? 'vacuumed chains' : 'dead rows', words_of(builds_of($table)), 0);
}

# Versions that an older snapshot sees.
value($node, make_pages('seen'));
my $old = session($node);
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
value($node, "UPDATE seen SET n = n + 1 WHERE id % 10 = 3 AND id < 4000; DELETE FROM seen WHERE id BETWEEN 100 AND 120");
same_indexes('seen', 'rows that another transaction still sees', words_of(builds_of('seen')), 1);
$old->query_safe('ROLLBACK');
$old->quit;

# Locked by others, one by two of them.
value($node, make_pages('locked'));
my @lockers = map { session($node) } 1 .. 2;
$_->query_safe('BEGIN; SELECT count(*) FROM (SELECT 1 FROM locked WHERE id % 10 = 3 FOR SHARE) AS s') for @lockers;
$lockers[0]->query_safe('SELECT count(*) FROM (SELECT 1 FROM locked WHERE id % 10 = 4 FOR UPDATE) AS s');
my $words = words_of(builds_of('locked'));
$_->query_safe('COMMIT') for @lockers;
$_->quit for @lockers;
same_indexes('locked', 'locked rows', $words, 0);

# Rows of the building transaction: made by it, by what it took back, changed and deleted by it.
$words = words_of("BEGIN; " . make_pages('own') . builds_of('own') . "COMMIT");
same_indexes('own', 'rows of this transaction', $words, 0);
$words = words_of("BEGIN; " . make_pages('mixed') . "SAVEPOINT s;
	INSERT INTO mixed SELECT -i, 0, vec(i, 24) FROM generate_series(1, 700) AS i; UPDATE mixed SET n = 3 WHERE id % 4 = 0;
	ROLLBACK TO s; SAVEPOINT kept; INSERT INTO mixed SELECT 10000 + i, 1, vec(i, 24) FROM generate_series(1, 700) AS i;
	RELEASE kept; UPDATE mixed SET n = n + 1 WHERE id % 10 = 3 AND id < 4000; DELETE FROM mixed WHERE id BETWEEN 200 AND 300;
	" . builds_of('mixed') . "COMMIT");
same_indexes('mixed', 'rows that this transaction changed', $words, 1);

# Rows of another transaction while the table can be written to: a build beside them scans.
value($node, make_pages('beside'));
my $writer = session($node);
$writer->query_safe("BEGIN; UPDATE beside SET n = 5 WHERE id % 10 = 3");
my $builder = session($node);
$builder->query_safe("SET pgwarp.build_executor = 'gpu'");
start($builder, "CREATE INDEX CONCURRENTLY beside_gpu ON beside $index");
ok($node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity
	WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'"), 'it waits for the writer');
$writer->query_safe('COMMIT');
$writer->quit;
finish($builder);
$builder->quit;
value($node, "SET pgwarp.build_executor = 'cpu'; CREATE INDEX beside_cpu ON beside $index");
is(value($node, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'beside_gpu'::regclass"), 't', 'it is valid');
indexes_are_sound($node);

$node->stop;
done_testing();
