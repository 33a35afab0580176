# Builds on a device: the index is what the CPU makes of the same rows (to the byte where the host
# stands for a device), however many workers read the table; a device that fails in the middle, or
# is not there, costs nothing but time; a cancelled build leaves nothing behind.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('build_device', service => 1,
	conf => "maintenance_work_mem = 256MB\nmin_parallel_table_scan_size = 64kB");
my $host = ($ENV{PGWARP_TEST_DEVICES} // 'host') =~ /^host/;
my $rows = 8000;
make_table($node, 't', 24, $rows);
value($node, "UPDATE t SET v = NULL WHERE id % 1000 = 0; DELETE FROM t WHERE id % 1000 = 1");
$rows -= 2 * $rows / 1000;
value($node, 'CREATE EXTENSION pageinspect');

sub recall_of
{
	my ($index) = @_;
	return value($node, "SELECT ivfpq_recall('$index', 400, 10)");
}

# The same index as on the CPU. Halves travel as they are, unless they are normalised.
# Some have no direction; squares of floats may overflow.
value($node, 'UPDATE t SET v = v - v WHERE id % 50 = 7; CREATE TABLE halves (id bigint, v halfvec(24)); INSERT INTO halves SELECT id, v FROM t;
	UPDATE t SET v = array_fill(1e30::real, ARRAY[24]) WHERE id % 1000 = 13');
for my $operators (map { ("vector_$_", "halfvec_$_") } 'l2_ops', 'cosine_ops', 'ip_ops')
{
	my $table = $operators =~ /^half/ ? 'halves' : 't';
	my ($distance) = { l2 => '<->', cosine => '<=>', ip => '<#>' }->{ $operators =~ /_(\w+?)_/ ? $1 : '' };
	my $index = "USING ivfpq (v $operators) WITH (lists = 60, m = 6)";
	my $words = messages($node, "SET pgwarp.build_executor = 'cpu'; CREATE INDEX i_cpu ON $table $index");
	like($words, qr/index "i_cpu": $rows rows in [\d.]+ s on cpu/, "$operators: built on the CPU");
	for my $workers ($operators eq 'vector_l2_ops' ? (0, 1, 3) : $operators =~ /^half/ ? 3 : 1)
	{
		$words = messages($node, "SET pgwarp.build_executor = 'gpu';
			SET max_parallel_maintenance_workers = $workers; ALTER TABLE $table SET (parallel_workers = $workers);
			CREATE INDEX i_$workers ON $table $index");
		like($words, qr/index "i_$workers": $rows rows in [\d.]+ s on (?!cpu)/, "$workers workers: on a device");
		like($words, qr/sampling rows .* encoding rows .* writing lists .* measuring recall/, 'with its phases');
		is(value($node, "SELECT rows FROM ivfpq_info('i_$workers')"), $rows, 'every row');
		if ($host)
		{
			is(value($node, "SELECT digest('i_$workers')"), value($node, "SELECT digest('i_cpu')"),
				'the same as on the CPU');
		}
		else
		{
			cmp_ok(recall_of("i_$workers"), '>=', recall_of('i_cpu') - 0.02, 'as good as on the CPU');
		}
		value($node, "DROP INDEX i_cpu; ALTER INDEX i_$workers RENAME TO i_cpu");
	}
	compares($node, $table, "v $distance vec(0, 24)", 'each row once', condition => 'v IS NOT NULL');
	indexes_are_sound($node);
	value($node, 'DROP INDEX i_cpu');
}
value($node, 'DROP TABLE halves');

# Quantizers that turn rows, that have two codes a byte, or search for theirs.
make_table($node, 'q', 12, 4000);
value($node, "ALTER TABLE q SET (parallel_workers = 2)");
for my $quantizer ('quantizer = opq', 'bits = 4', 'quantizer = opq, dims = 7, bits = 4, m = 3',
	'quantizer = lsq, m = 2, rounds = 4')
{
	my $index = "USING ivfpq (v) WITH (lists = 9, $quantizer)";
	value($node, "SET pgwarp.build_executor = 'cpu'; CREATE INDEX q_cpu ON q $index");
	for my $workers (0, 2)
	{
		my $words = messages($node, "SET pgwarp.build_executor = 'gpu';
			SET max_parallel_maintenance_workers = $workers; CREATE INDEX q_gpu ON q $index");
		like($words, qr/index "q_gpu": 4000 rows in [\d.]+ s on (?!cpu)/, "$quantizer, $workers workers: on a device");
		if ($host)
		{
			is(value($node, "SELECT digest('q_gpu')"), value($node, "SELECT digest('q_cpu')"), 'as on the CPU');
		}
		else
		{
			cmp_ok(recall_of('q_gpu'), '>=', recall_of('q_cpu') - 0.02, 'as good as on the CPU');
		}
		value($node, 'DROP INDEX q_cpu; ALTER INDEX q_gpu RENAME TO q_cpu');
	}
	compares($node, 'q', "v <-> vec(0, 12)", 'each row once');
	indexes_are_sound($node);
	value($node, 'DROP INDEX q_cpu');
}
value($node, 'DROP TABLE q');

# Long rows: blocks are filled, waited for and used again.
# Of equal pieces: numbers of chance take longer to make than the index.
value($node, 'CREATE TABLE long AS SELECT i AS id, (w || w || w || w || w || w)::vector(1200) AS v FROM (SELECT i, v || v AS w FROM
	(SELECT i, vec(i, 100) AS v FROM generate_series(1, 16000) AS i OFFSET 0) AS s) AS s');
value($node, "ALTER TABLE long SET (parallel_workers = 3)");
my $of_long = 'ON long USING ivfpq (v) WITH (lists = 20, m = 10, refine = none)';
value($node, "SET pgwarp.build_executor = 'cpu'; CREATE INDEX long_cpu $of_long");
value($node, "SET pgwarp.build_executor = 'gpu'; SET max_parallel_maintenance_workers = 3;
	CREATE INDEX long_gpu $of_long");
is(value($node, "SELECT rows FROM ivfpq_info('long_gpu')"), 16000, 'long rows: all');
cmp_ok(value($node, "SELECT min(queries) FROM ivfpq_recall_curve('long_gpu') WHERE k = 1000"), '>', 0,
	'recall of 1,000 rows is measured, however many bytes the table has');
if ($host)
{
	is(value($node, "SELECT digest('long_gpu')"), value($node, "SELECT digest('long_cpu')"), 'as on the CPU');
}
indexes_are_sound($node);
value($node, 'DROP TABLE long');

# Concurrently, beside a writer; and again.
my $writer = session($node);
for my $statement ('CREATE INDEX CONCURRENTLY t_v ON t USING ivfpq (v)', 'REINDEX INDEX CONCURRENTLY t_v')
{
	start($writer, "DO \$\$ BEGIN FOR i IN 1 .. 60 LOOP
		INSERT INTO t SELECT 100000 + i * 10 + n, vec(i * 10 + n, 24) FROM generate_series(0, 9) AS n;
		DELETE FROM t WHERE id = 100000 + i * 10;
		UPDATE t SET v = vec(-i, 24) WHERE id = i * 7;
		COMMIT; PERFORM pg_sleep(0.01);
	END LOOP; END \$\$");
	value($node, "SET pgwarp.build_executor = 'gpu'; SET max_parallel_maintenance_workers = 2; $statement");
	my (undef, $complaints) = finish($writer);
	is($complaints, '', 'the writer goes on');
	compares($node, 't', 'v <-> vec(0, 24)', 'each row once', condition => 'v IS NOT NULL');
	indexes_are_sound($node);
	value($node, 'DELETE FROM t WHERE id > 100000');
}
vacuum_all($node, 't');

# Less memory than the entries need.
value($node, "SET pgwarp.build_executor = 'gpu'; SET maintenance_work_mem = '2MB';
	CREATE INDEX t_small ON t USING ivfpq (v) WITH (lists = 20)");
is(value($node, "SELECT rows FROM ivfpq_info('t_small')"), $rows, 'with little memory');
compares($node, 't', 'v <-> vec(0, 24)', 'each once', condition => 'v IS NOT NULL');
value($node, 'DROP INDEX t_small; REINDEX INDEX t_v');

# A device that fails.
my $before = value($node, "SELECT digest('t_v')");
for my $fault ('failed', 'lost', 'out_of_memory')
{
	$node->append_conf('postgresql.conf', "pgwarp.debug_fault = $fault");
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = '$fault'");
	isnt(error_of($node, "SET pgwarp.build_executor = 'gpu'; REINDEX INDEX t_v"), '', "$fault: an error with gpu");
	is(value($node, "SELECT digest('t_v')"), $before, 'that leaves the index as it was');
	next unless $host;
	# At once, in training, and at several moments of the pass over the table.
	for my $good ($fault eq 'failed' ? (0, 5, 15, 23, 25) : $fault eq 'lost' ? (0, 24) : 22)
	{
		my $words = messages($node, "SET pgwarp.debug_fault_after = $good; SET max_parallel_maintenance_workers = 2;
			REINDEX INDEX t_v");
		like($words, $fault eq 'lost' && $good == 0 ? qr/build on the CPU: a loss on purpose/
			: qr/WARNING:  (?:the|a) device failed, and (?:the CPU did the rest|others did its work): /,
			"after $good calls: with auto the CPU goes on");
		is(value($node, "SELECT digest('t_v')"), $before, 'to the same index');
	}
}
$node->append_conf('postgresql.conf', 'pgwarp.debug_fault = none');
$node->reload;
wait_until($node, "current_setting('pgwarp.debug_fault') = 'none'");

# Clusters of a table.
for my $executor ('cpu', 'gpu')
{
	value($node, "SET pgwarp.build_executor = '$executor';
		CREATE TABLE clusters_$executor AS SELECT * FROM kmeans('t', 'v', 40, 5)");
	is(value($node, "SELECT sum(size), count(*) FROM clusters_$executor"), "$rows|40", "$executor: kmeans");
}
same_clusters($node, 't', 'clusters_cpu', 'clusters_gpu', $host);
if ($host)
{
	$node->append_conf('postgresql.conf', 'pgwarp.debug_fault = failed');
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'failed'");
	for my $good (0, 3, 7)
	{
		like(messages($node, "SET pgwarp.debug_fault_after = $good;
			CREATE TABLE clusters_$good AS SELECT * FROM kmeans('t', 'v', 40, 5)"),
			qr/WARNING:  (?:the|a) device failed, and (?:the CPU did the rest|others did its work): /, "kmeans, after $good calls: the CPU goes on");
		is(value($node, "SELECT count(*) FROM clusters_$good AS a JOIN clusters_cpu AS c
			ON a::text = c::text"), 40, 'to the same clusters');
	}
	$node->append_conf('postgresql.conf', 'pgwarp.debug_fault = none');
	$node->reload;
	wait_until($node, "current_setting('pgwarp.debug_fault') = 'none'");
}

# Cut short.
for my $timeout (1, 20, 60, 150, 400)
{
	my $complaints = error_of($node, "SET pgwarp.build_executor = 'gpu'; SET statement_timeout = $timeout;
		CREATE INDEX t_cut ON t USING ivfpq (v)");
	my $there = value($node, "SELECT count(*) FROM pg_class WHERE relname = 't_cut'");
	is("$there " . ($complaints ne '' ? 'cancelled' : 'built'),
		$complaints ne '' ? '0 cancelled' : '1 built', "after $timeout ms");
	like($complaints, qr/^$|canceling statement due to statement timeout/, 'as any statement');
	value($node, 'DROP INDEX IF EXISTS t_cut');
}
is(value($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'"), 0,
	'no worker is left');
indexes_are_sound($node);

# No device at all.
$node->append_conf('postgresql.conf', "pgwarp.devices = 'none'");
$node->restart;
like(error_of($node, "SET pgwarp.build_executor = 'gpu'; REINDEX INDEX t_v"),
	qr/pgwarp.build_executor is gpu, but there is no device: pgwarp.devices is none/, 'no device');
# A join opens its device while it reads queries, and misses it even where there are none.
for my $queries ("ARRAY[vec(0, 24)]", "'{}'::vector[]")
{
	like(error_of($node, "SET pgwarp.build_executor = 'gpu'; SELECT count(*) FROM knn_search('t_v', $queries, 3)"),
		qr/pgwarp.build_executor is gpu, but there is no device: pgwarp.devices is none/, "nor for $queries");
}
like(messages($node, 'REINDEX INDEX t_v'), qr/rows in [\d.]+ s on cpu/, 'with auto it is the CPU');
isnt(error_of($node, "SET pgwarp.build_executor = 'fast'"), '', 'no such executor');
$node->stop;
done_testing();
