# CREATE INDEX CONCURRENTLY and REINDEX CONCURRENTLY while others write: each time the index has every
# row of the table, once.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('concurrent_builds', conf => "max_connections = 40
maintenance_work_mem = 256MB\nmin_parallel_table_scan_size = 64kB");
my $folder = PostgreSQL::Test::Utils::tempdir();
value($node, <<'SQL');
CREATE TABLE t (id bigserial PRIMARY KEY, active bool DEFAULT true, note text, v vector(6))
	WITH (fillfactor = 80);
INSERT INTO t (v) SELECT vec(i, 6) FROM generate_series(1, 6000) AS i;
CREATE TABLE few (id bigserial PRIMARY KEY, active bool DEFAULT true, note text, v vector(6));
INSERT INTO few (v) SELECT vec(i, 6) FROM generate_series(1, 300) AS i;
SELECT setval('t_id_seq', 100000);
-- Catches an error for some rows.
CREATE FUNCTION half(v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN public.subvector(v, 1, CASE WHEN v OPERATOR(public.<) ivfpq_test.vec(1, 6) THEN 0 ELSE 3 END)::public.vector(3);
EXCEPTION WHEN others THEN
	RETURN public.subvector(v, 4, 3)::public.vector(3);
END
$$;
SQL

# Updates in place, others, deletions, insertions, and transactions that come to nothing.
my $script = <<'END';
\set n random(1, 7000)
\set few random(1, 350)
\set what random(1, 6)
\if :what = 1
UPDATE t SET v = vec(:n * 7, 6) WHERE id = :n;
UPDATE few SET v = vec(:n * 7, 6) WHERE id = :few;
\elif :what = 2
UPDATE t SET note = 'x' WHERE id = :n;
UPDATE few SET note = 'x' WHERE id = :few;
\elif :what = 3
UPDATE t SET active = NOT active WHERE id = :n;
UPDATE few SET active = NOT active WHERE id = :few;
\elif :what = 4
DELETE FROM t WHERE id = :n;
DELETE FROM few WHERE id = :few;
\elif :what = 5
INSERT INTO t (id, v) VALUES (:n, vec(:n, 6)) ON CONFLICT DO NOTHING;
INSERT INTO few (id, v) VALUES (:few, vec(:n, 6)) ON CONFLICT DO NOTHING;
\else
BEGIN;
INSERT INTO t (v) SELECT vec(:n - i, 6) FROM generate_series(1, 5) AS i;
SAVEPOINT a;
UPDATE t SET v = vec(:n * 5, 6) WHERE id = :n;
\sleep 2 ms
ROLLBACK TO a;
ROLLBACK;
\endif
END
append_to_file("$folder/writes.sql", $script);
my ($out, $complaints) = ('', '');
my $load = IPC::Run::start([ 'pgbench', '--no-vacuum', '--client=4', '--jobs=1', '--time=600',
	"--random-seed=$seed", "--file=$folder/writes.sql",
	'host=' . $node->host . ' port=' . $node->port . ' dbname=postgres application_name=load' ],
	'>', \$out, '2>', \$complaints);
wait_until($node, "count(*) = 4 FROM pg_stat_activity WHERE application_name = 'load'");

# Scans and table are compared in one snapshot, while the load goes on.
my $check = sub {
	my ($index, $table, $distance, $condition, $name) = @_;
	is(value($node, "SELECT * FROM ivfpq_check('$index', true) LIMIT 5"), '', "$name: sound");
	is(value($node, "BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT scan, same_rows, each_once FROM
		compare_scan('$table', \$\$$distance\$\$, \$\$$condition\$\$); COMMIT"),
		"Index Scan $index|t|t", "$name: every row once");
};
my @cases = (
	[ 't', '(v) WITH (lists = 20)', 'v <-> vec(0, 6)', 'true' ],
	[ 't', '(v vector_ip_ops) WITH (lists = 7) WHERE active', 'v <#> vec(0, 6)', 'active' ],
	[ 't', '((half(v)::vector(3))) WITH (lists = 9)', "half(v)::vector(3) <-> '[1,2,3]'", 'true' ],
	[ 'few', '(v vector_cosine_ops) WHERE active', 'v <=> vec(0, 6)', 'active' ],);
for my $round (1 .. 3)
{
	for my $i (0 .. $#cases)
	{
		my ($table, $definition, $distance, $condition) = @{ $cases[$i] };
		my $name = "round $round, $table $definition";
		value($node, "CREATE INDEX CONCURRENTLY i$i ON $table USING ivfpq $definition");
		$check->("i$i", $table, $distance, $condition, "$name, created");
		value($node, "REINDEX INDEX CONCURRENTLY i$i");
		$check->("i$i", $table, $distance, $condition, "$name, made again");
	}
	value($node, 'VACUUM t, few');
	$check->('i0', 't', $cases[0][2], 'true', "round $round, after VACUUM");
	value($node, 'DROP INDEX CONCURRENTLY i' . $_) for 0 .. ($round < 3 ? $#cases : -1);
}
ok($load->pumpable, 'the load was there to the end');
$load->signal('TERM');
eval { $load->finish };
is(join("\n", grep { /ERROR/ } split /\n/, $complaints), '', 'and met no error');

indexes_are_sound($node);
$node->stop;
done_testing();
