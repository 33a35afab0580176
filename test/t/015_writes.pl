# Many connections write at once: nothing is lost, doubled or left over, in a trained index, in an
# untrained one, and in one that is trained meanwhile; space is reused.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('writes', conf => 'max_connections = 40');
my $folder = PostgreSQL::Test::Utils::tempdir();

sub pgbench
{
	my ($name, $script, @arguments) = @_;
	append_to_file("$folder/$name.sql", $script);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->command_ok([ 'pgbench', '--no-vacuum', "--file=$folder/$name.sql", @arguments,
		'--port=' . $node->port, '--host=' . $node->host, 'postgres' ], $name);
	return;
}

# Inserts by 12 connections into few lists: their tails are where everybody wants to be.
value($node, 'CREATE TABLE t (id bigserial, v vector(4))');
value($node, 'INSERT INTO t (v) SELECT vec(i, 4) FROM generate_series(1, 2000) AS i');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 3)');
pgbench('inserts', "\\set n random(1, 1000000)\nINSERT INTO t (v) VALUES (vec(:n, 4));\n",
	'--client=12', '--jobs=2', '--transactions=250');
is(value($node, "SELECT rows FROM ivfpq_info('t_v')"), 5000, 'all are in the index');
compares($node, 't', 'v <-> vec(0, 4)', 'each once');

# The same into an untrained index, with COPY, and with transactions that fail.
value($node, 'CREATE TABLE u (id bigserial, v vector(4))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 5)');
pgbench('untrained', "\\set n random(1, 1000000)\nBEGIN;\nINSERT INTO u (v) SELECT vec(:n + i, 4)
	FROM generate_series(1, 10) AS i;\n\\if :n % 3 = 0\nROLLBACK;\n\\else\nCOMMIT;\n\\endif\n",
	'--client=12', '--jobs=2', '--transactions=60');
compares($node, 'u', 'v <-> vec(0, 4)', 'untrained: each once');

# Updates and deletes by many, VACUUM by one.
pgbench('changes', <<'END', '--client=8', '--jobs=2', '--transactions=150');
\set n random(1, 5000)
\set what random(1, 4)
\if :what = 1
UPDATE t SET v = vec(:n * 7, 4) WHERE id = :n;
\elif :what = 2
DELETE FROM t WHERE id = :n;
\elif :what = 3
INSERT INTO t (v) VALUES (vec(:n, 4));
\else
SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> vec(:n, 4) LIMIT 50) AS s;
\endif
\if :client_id = 0
VACUUM t;
\endif
END
compares($node, 't', 'v <-> vec(0, 4)', 'each once after changes');
vacuum_all($node, 't');
is(value($node, "SELECT rows FROM ivfpq_info('t_v')"), value($node, 'SELECT count(*) FROM t'),
	'and no more than there are');

# An index that is trained while everybody inserts.
value($node, 'CREATE TABLE w (id bigserial, v vector(4))');
value($node, 'CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 40)');
value($node, 'INSERT INTO w (v) SELECT vec(i, 4) FROM generate_series(1, 15000) AS i');
my $vacuum = session($node);
start($vacuum, 'SELECT pg_sleep(0.3); VACUUM w');
pgbench('training', "\\set n random(1, 1000000)\nINSERT INTO w (v) VALUES (vec(:n, 4));\n",
	'--client=8', '--jobs=2', '--time=4');
my (undef, $complaints) = finish($vacuum);
is($complaints, '', 'VACUUM ends well');
is(value($node, "SELECT trained FROM ivfpq_info('w_v')"), 't', 'the index is trained');
compares($node, 'w', 'v <-> vec(0, 4)', 'each row once, whoever inserted it');
vacuum_all($node, 'w');
is(value($node, "SELECT pending_rows FROM ivfpq_info('w_v')"), 0, 'nothing stays pending');

# Delete all, VACUUM, insert again, several times: the index does not grow.
my @sizes;
for my $round (1 .. 4)
{
	value($node, 'DELETE FROM w');
	vacuum_all($node, 'w');
	is(value($node, "SELECT rows, list_bytes FROM ivfpq_info('w_v')"), '0|0', "round $round: empty");
	value($node, 'INSERT INTO w (v) SELECT vec(i, 4) FROM generate_series(1, 15000) AS i');
	push @sizes, value($node, "SELECT pg_relation_size('w_v')");
}
is($sizes[-1], $sizes[0], 'the size stays');
# Half of the rows come and go: neither.
for (1 .. 4)
{
	value($node, 'DELETE FROM w WHERE id IN (SELECT id FROM w ORDER BY hashint8(id) LIMIT 7500)');
	vacuum_all($node, 'w');
	value($node, 'INSERT INTO w (v) SELECT vec(i, 4) FROM generate_series(1, 7500) AS i');
}
is(value($node, "SELECT rows FROM ivfpq_info('w_v')"), 15000, 'as many rows as before');
cmp_ok(value($node, "SELECT pg_relation_size('w_v')"), '<=', $sizes[0] * 1.1, 'with half of them');

# TIDs that were given to other rows: no row comes out under another's vector.
value($node, 'CREATE TABLE r (id bigserial, v vector(4))');
value($node, 'INSERT INTO r (v) SELECT vec(i, 4) FROM generate_series(1, 3000) AS i');
value($node, 'CREATE INDEX r_v ON r USING ivfpq (v) WITH (lists = 10)');
for my $round (1 .. 3)
{
	value($node, "DELETE FROM r WHERE id % 3 = $round % 3");
	vacuum_all($node, 'r');
	value($node, "INSERT INTO r (v) SELECT vec(-i * $round, 4) FROM generate_series(1, 1000) AS i");
	compares($node, 'r', 'v <-> vec(0, 4)', "TIDs reused, round $round");
}

$vacuum->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
