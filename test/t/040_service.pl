# The service: what it says of itself, what it answers, and how a server without it behaves.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

sub log_of
{
	my ($node) = @_;
	return slurp_file($node->logfile);
}

my $search = 'SELECT array_agg(id) FROM (SELECT id FROM %s ORDER BY v %s vec(%s, %s) LIMIT 10) AS s';

my $node = new_node('service', service => 1);
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
my $name = value($node, 'SELECT name FROM pgwarp_devices()');
is(value($node, 'SELECT device IS NULL, memory > 0 FROM pgwarp_devices()'), $name eq 'host' ? 't|t' : 'f|t', $name);
my $used = value($node, 'SELECT used FROM pgwarp_devices()');
like(log_of($node), qr/pgwarp serves from \Q$name\E/, 'the log says so');

# Two tables, three metrics, two databases.
make_table($node, 't', 16, 3000);
value($node, 'CREATE INDEX t_l2 ON t USING ivfpq (v) WITH (lists = 20)');
value($node, 'CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 30)');
make_table($node, 'u', 7, 2000);
value($node, 'CREATE INDEX u_ip ON u USING ivfpq (v vector_ip_ops) WITH (lists = 11, m = 3)');
value($node, 'CREATE DATABASE other TEMPLATE postgres');
my $queries = '';
for my $executor ('service', 'cpu')
{
	$queries .= "SET ivfpq.executor = '$executor'; CREATE TEMP TABLE $executor (q int, ids bigint[]);\n";
	for my $q (1 .. 40)
	{
		$queries .= "INSERT INTO $executor VALUES ($q * 3, (" . sprintf($search, 't', '<->', $q, 16) . "));\n";
		$queries .= "INSERT INTO $executor VALUES ($q * 3 + 1, (" . sprintf($search, 't', '<=>', $q, 16) . "));\n";
		$queries .= "INSERT INTO $executor VALUES ($q * 3 + 2, (" . sprintf($search, 'u', '<#>', $q, 7) . "));\n";
	}
	$queries .= "INSERT INTO $executor SELECT -1, ARRAY[(path = '$executor')::int] FROM ivfpq_last_scan();\n";
}
for my $database ('postgres', 'other')
{
	my $differing = $node->safe_psql($database, "SET search_path = public, ivfpq_test; SET enable_seqscan = off;
		SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; $queries
		SELECT count(*), count(*) FILTER (WHERE a.ids IS DISTINCT FROM b.ids) FROM service AS a JOIN cpu AS b
		USING (q)");
	is($differing, '121|0', "$database: the service finds what the pages have");
	is($node->safe_psql($database, "SELECT indexname, service_searches, cpu_searches, batches > 0,
		mean_batch >= 1, candidates > 0, ranked_rows > 0, resident_lists = lists, bytes > 0, errors
		FROM pg_stat_pgwarp ORDER BY indexname"),
		join("\n", map { "$_|40|40|t|t|t|t|t|t|0" } 't_cosine', 't_l2', 'u_ip'), "$database: statistics");
}
is(value($node, "SELECT pg_stat_pgwarp_reset(); SELECT sum(service_searches), sum(batches), sum(resident_lists)
	FROM pg_stat_pgwarp"), "\n0|0|61", 'reset: what was counted, not what is there');

# What a scan says of itself.
is(value($node, "SET enable_seqscan = off; SET ivfpq.probes = 5; SET ivfpq.candidates = 17;
	SELECT count(*) FROM (SELECT FROM t ORDER BY v <-> vec(9, 16) LIMIT 4) AS s;
	SELECT index, path, reason, rounds, probes, candidates, ranked_rows, lists_read, lists_grown, score, expected_recall > 0
		FROM ivfpq_last_scan()"), "4\nt_l2|service||1|5|17|17|0|0||t", 'the last scan');
is(value($node, "SET enable_seqscan = off; SET ivfpq.executor = 'cpu';
	SELECT count(*) FROM (SELECT FROM t ORDER BY v <-> vec(9, 16) LIMIT 4) AS s;
	SELECT path, reason FROM ivfpq_last_scan()"), "4\ncpu|", 'as the setting says');
is(value($node, "SET enable_seqscan = off; CREATE TEMP TABLE tt (id bigint, v vector(4));
	INSERT INTO tt SELECT i, vec(i, 4) FROM generate_series(1, 2000) AS i;
	CREATE INDEX ON tt USING ivfpq (v) WITH (lists = 4); SET ivfpq.executor = 'service';
	SELECT count(*) FROM (SELECT FROM tt ORDER BY v <-> vec(9, 4) LIMIT 4) AS s;
	SELECT path, reason FROM ivfpq_last_scan()"),
	"4\ncpu|temporary tables are in the memory of their session", 'a temporary table');
like(error_of($node, 'CREATE TEMP TABLE tt (id bigint, v vector(4)); CREATE INDEX tt_v ON tt USING ivfpq (v);
	SELECT pgwarp_prewarm($$tt_v$$)'), qr/cannot load a temporary index/, 'nor is it loaded');
is(value($node, 'SELECT ivfpq_last_scan() IS NULL'), 't', 'no scan yet in this session');

# Whole scans, cursors, subtransactions, serializable transactions, joins, parallel plans around it.
compares($node, 't', 'v <-> vec(5, 16)', 'a whole scan');
compares($node, 'u', 'v <#> vec(5, 7)', 'a whole scan by inner product');
is(value($node, <<'SQL'), '100|100', 'cursors beside each other');
SET enable_seqscan = off;
BEGIN ISOLATION LEVEL SERIALIZABLE;
DECLARE a CURSOR FOR SELECT id FROM t ORDER BY v <-> vec(1, 16);
DECLARE b CURSOR FOR SELECT id FROM t ORDER BY v <-> vec(2, 16);
CREATE TEMP TABLE got (a bigint, b bigint);
DO $$
DECLARE
	first_cursor refcursor := 'a';
	second_cursor refcursor := 'b';
	x bigint;
BEGIN
	FOR i IN 1 .. 100 LOOP
		FETCH NEXT FROM first_cursor INTO x;
		INSERT INTO got (a) VALUES (x);
		BEGIN
			FETCH NEXT FROM second_cursor INTO x;
			INSERT INTO got (b) VALUES (x);
			IF i % 7 = 0 THEN RAISE division_by_zero; END IF;
		EXCEPTION WHEN division_by_zero THEN
			INSERT INTO got (b) VALUES (x);
		END;
	END LOOP;
END
$$ ;
SELECT count(DISTINCT a), count(DISTINCT b) FROM got;
COMMIT;
SQL
is(value($node, "SET enable_seqscan = off; SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SELECT count(*), sum((o.id = n.id)::int)
	FROM (SELECT * FROM t WHERE id <= 50) AS o, LATERAL (SELECT id FROM t ORDER BY v <-> o.v LIMIT 1) AS n"),
	'50|50', 'a lateral join');
is(value($node, "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
	SET ivfpq.target_recall = 1; SET ivfpq.candidates = 100; SELECT count(*), sum((SELECT n.id FROM t AS n ORDER BY n.v <-> o.v LIMIT 1) - o.id)
	FROM t AS o WHERE id <= 100"), '100|0', 'a parallel plan around it');
is(value($node, "SELECT pgwarp_prewarm('t_l2')"), 20, 'prewarm');
value($node, 'CREATE TABLE e (v vector(3)); CREATE INDEX e_v ON e USING ivfpq (v)');
is(value($node, "SELECT pgwarp_prewarm('e_v')"), 0, 'prewarm of an untrained index');

# Memory comes back.
cmp_ok(value($node, 'SELECT used FROM pgwarp_devices()'), '>', $used, 'memory is in use');
# DROP DATABASE waits for sessions to leave, and these may search until they do.
my $inside = session($node, database => 'other');
$inside->query("SET search_path = public, ivfpq_test; SET enable_seqscan = off; SET ivfpq.executor = 'service'");
my $dropper = session($node);
start($dropper, 'DROP DATABASE other');
wait_until($node, "count(*) = 1 FROM pg_locks WHERE classid = 'pg_database'::regclass AND mode = 'AccessExclusiveLock' AND granted");
is($inside->query("SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> vec($_, 16) LIMIT 10) AS s") .
	$inside->query('SELECT path FROM ivfpq_last_scan()'), '10service', 'searched while it is to be dropped') for 1 .. 3;
$inside->quit;
finish($dropper);
$dropper->quit;
is(value($node, "SELECT count(*) FROM pg_database WHERE datname = 'other'"), 0, 'dropped');
value($node, 'DROP TABLE t; DROP INDEX u_ip');
wait_until($node, "(SELECT used FROM pgwarp_devices()) = $used");
is(value($node, 'SELECT count(*) FROM pg_stat_pgwarp'), 0, 'nothing is left of what was dropped');
indexes_are_sound($node);
$node->stop;

# Not preloaded.
my $plain = new_node('plain');
make_table($plain, 't', 4, 2000);
value($plain, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 5)');
is(value($plain, "SET enable_seqscan = off; SELECT count(*) FROM (SELECT FROM t ORDER BY v <-> vec(1, 4) LIMIT 3) AS s;
	SELECT path, reason FROM ivfpq_last_scan()"),
	"3\ncpu|the library was not preloaded (shared_preload_libraries)", 'not preloaded: the pages are read');
like(error_of($plain, "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SELECT id FROM t ORDER BY v <-> vec(1, 4) LIMIT 3"),
	qr/ERROR:  the pgwarp service is not available: the library was not preloaded/, 'who insists is told');
like(error_of($plain, "SELECT pgwarp_prewarm('t_v')"), qr/service is not available/, 'nothing to load into');
is(value($plain, 'SELECT * FROM pgwarp_service()'),
	'f||the library was not preloaded (shared_preload_libraries)|||', 'the service says why');
is(value($plain, 'SELECT count(*) FROM pgwarp_devices()'), 0, 'no device');
is(value($plain, 'SELECT count(*) FROM pg_stat_pgwarp'), 0, 'no statistics');
unlike(log_of($plain), qr/LOG:  .*pgwarp serv/, 'and not a word in the log');
indexes_are_sound($plain);

# Preloaded where there is no GPU, or no driver: one line in the log, everything else works.
SKIP:
{
	skip 'there is a GPU', 5 if -e '/dev/nvidia0';
	$plain->append_conf('postgresql.conf', "shared_preload_libraries = 'pgwarp'");
	$plain->restart;
	wait_until($plain, "reason <> 'its worker is not running' FROM pgwarp_service()");
	my @lines = log_of($plain) =~ /LOG:  (pgwarp does not serve: .+)/g;
	is(scalar(@lines), 1, "one line says why: @lines");
	is(value($plain, "SET enable_seqscan = off; SELECT count(*) FROM (SELECT FROM t ORDER BY v <-> vec(1, 4) LIMIT 3) AS s"),
		3, 'no GPU: the pages are read');
	like(error_of($plain, "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SELECT id FROM t ORDER BY v <-> vec(1, 4) LIMIT 3"),
		qr/service is not available/, 'no GPU: who insists is told');
}
$plain->append_conf('postgresql.conf', "shared_preload_libraries = 'pgwarp'\npgwarp.devices = 'none'");
$plain->restart;
is(value($plain, 'SELECT count(*) FROM pgwarp_devices()'), 0, 'none means none');
is(value($plain, 'SELECT reason FROM pgwarp_service()'), "pgwarp.devices is 'none'", 'and the service says so');
# No place for a worker.
$plain->append_conf('postgresql.conf', "pgwarp.devices = 'host'\nmax_worker_processes = 0");
$plain->restart;
is(value($plain, 'SELECT serves, reason FROM pgwarp_service()'), 'f|max_worker_processes is used up, so that it has no worker',
	'no worker: the service names the setting');
like(error_of($plain, "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SELECT id FROM t ORDER BY v <-> vec(1, 4) LIMIT 3"),
	qr/service is not available: max_worker_processes is used up/, 'no worker: so is who insists');
# As PostgreSQL treats a wrong setting of any extension: it says so, and takes the default.
$plain->append_conf('postgresql.conf', "pgwarp.devices = '0;1'");
$plain->restart;
like(log_of($plain), qr/invalid value for parameter "pgwarp.devices": "0;1"/, 'nonsense is named');
is(value($plain, 'SHOW pgwarp.devices'), 'auto', 'and not used');
$plain->stop;
done_testing();
