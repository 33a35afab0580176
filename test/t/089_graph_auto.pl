# Graphs that keep themselves current: sessions that write at once, rights, dump and restore, and what fails or is killed.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('graph_auto', conf => "max_prepared_transactions = 4\ndeadlock_timeout = 100ms\nrestart_after_crash = on");
my $k = 5;

# What is wrong with the edges of a graph, in numbers; and whether it has the neighbors of a new one.
value($node, <<"SQL");
SET client_min_messages = warning;
CREATE FUNCTION wrong(graph text, source text) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE answer text;
BEGIN
	EXECUTE format('WITH r AS MATERIALIZED (SELECT id, v FROM %2\$s WHERE v IS NOT NULL), e AS MATERIALIZED (SELECT * FROM %1\$s)
		SELECT concat_ws('' '', (SELECT count(*) FROM r WHERE id NOT IN (SELECT src FROM e)),
			(SELECT count(*) FROM (SELECT FROM e GROUP BY src HAVING count(*) <> $k OR max(rank) <> $k) AS s),
			(SELECT count(*) FROM e WHERE src NOT IN (SELECT id FROM r) OR dst NOT IN (SELECT id FROM r) OR src = dst),
			(SELECT count(*) FROM e JOIN r AS x ON x.id = src JOIN r AS y ON y.id = dst
				WHERE abs(distance - (x.v <-> y.v)) > 1e-4 * distance),
			(SELECT count(*) - count(DISTINCT (src, dst)) FROM e))', graph, source) INTO answer;
	RETURN answer || CASE WHEN knn_graph_recall(graph::regclass, source::regclass, 'id', 'v', 5000) >= 0.98 THEN '' ELSE ' poor' END;
END
\$\$;
CREATE TABLE t (id int PRIMARY KEY, v vector(8));
INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(1, 1000) AS i;
SELECT knn_graph_create('g', 't', 'id', 'v', $k, auto => true);
SQL
sub is_sound { is(value($node, "SELECT wrong('g', 't')"), '0 0 0 0 0', $_[0]); return }
is_sound('a new graph');

# A session waits for one that has not ended, and sees what it did.
my ($one, $two) = (session($node), session($node));
my $waits = "EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'object')";
for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $at = { 'READ COMMITTED' => 2000, 'REPEATABLE READ' => 2100, SERIALIZABLE => 2200 }->{$level};
	$_->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM pg_class") for $one, $two;
	$one->query_safe("INSERT INTO t SELECT i, vec(50, 8, i) FROM generate_series($at, $at + 9) AS i; DELETE FROM t WHERE id = $at / 10");
	start($two, "INSERT INTO t SELECT i, vec(50, 8, i - 50) FROM generate_series($at + 50, $at + 59) AS i");
	wait_until($node, $waits);
	$one->query_safe('COMMIT');
	my ($result, $complaints) = finish($two);
	# Serializable transactions that both read the graph may have to be repeated.
	like($complaints, $level eq 'SERIALIZABLE' ? qr/^$|could not serialize access/ : qr/^$/, "$level: a session that waited");
	$two->query_safe('COMMIT');
	is_sound("$level: both are in the graph");
}
# One that is rolled back, or prepared.
$one->query_safe("BEGIN; INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(3000, 3009) AS i");
start($two, 'DELETE FROM t WHERE id BETWEEN 300 AND 309');
wait_until($node, $waits);
$one->query_safe('ROLLBACK');
is((finish($two))[1], '', 'a session that waited for one that is rolled back');
is_sound('what it did');
$one->query_safe("BEGIN; INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(3000, 3009) AS i; PREPARE TRANSACTION 'p'");
start($two, 'UPDATE t SET v = vec(id + 1, 8) WHERE id = 500');
wait_until($node, $waits);
$one->query_safe("COMMIT PREPARED 'p'");
is((finish($two))[1], '', 'a session that waited for one that was prepared');
is_sound('both are in the graph');
# knn_graph_append and a statement exclude each other. VACUUM waits for none.
$one->query_safe('BEGIN; DELETE FROM t WHERE id = 400');
value($node, 'VACUUM g');
start($two, "SELECT * FROM knn_graph_append('g', 't', 'id', 'v')");
wait_until($node, "EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'g'::regclass)");
$one->query_safe('COMMIT');
is((finish($two))[0], '0|0|0', 'append has nothing to do');
$_->quit for $one, $two;

# Many sessions at once: statements on keys of each session's own.
my @statements = map {
	my $session = $_;
	join('', map {
		my $from = 10_000 * $session + 20 * $_;
		my $work = (
			"INSERT INTO t SELECT i, vec(i, 8) FROM generate_series($from, $from + " . int(rand(15)) . ") AS i",
			"DELETE FROM t WHERE id BETWEEN $from - 60 AND $from - 50",
			"UPDATE t SET v = vec(id + " . int(rand(100)) . ", 8) WHERE id BETWEEN $from - 40 AND $from - 35",
			"BEGIN; INSERT INTO t SELECT $from + 19, vec($from, 8); SAVEPOINT s; DELETE FROM t WHERE id = $from + 19; ROLLBACK TO s; " .
			"INSERT INTO t SELECT $from + 18, vec($from + 18, 8); " . (rand() < 0.3 ? 'ROLLBACK' : 'COMMIT'))[ int(rand(4)) ];
		"$work;\n";
	} 1 .. 40);
} 1 .. 4;
my @sessions = map { session($node) } @statements;
start($sessions[$_], $statements[$_]) for 0 .. $#sessions;
for my $session (@sessions)
{
	is((finish($session))[1], '', 'a session among others');
	$session->quit;
}
is_sound("after sessions at once, seed $seed");

# Rights: who may write to the table needs none on the graph, and sees nothing of it.
value($node, <<"SQL");
CREATE ROLE writer LOGIN;
CREATE ROLE owner LOGIN;
CREATE SCHEMA own AUTHORIZATION owner;
GRANT USAGE ON SCHEMA own, ivfpq_test TO writer, owner;
SQL
sub as_role
{
	my ($role, $sql) = @_;
	my ($status, $out, $error) = $node->psql('postgres', $sql, extra_params => [ '-U', $role ], on_error_stop => 1);
	return $error =~ s/^psql:\S+ //mgr;
}
my $create = "SELECT knn_graph_create('own.g', 'own.t', 'id', 'v', $k, auto => true)";
is(as_role('owner', "SET client_min_messages = warning; CREATE TABLE own.t (id int PRIMARY KEY, v vector(8));
	INSERT INTO own.t SELECT i, vec(i, 8) FROM generate_series(1, 100) AS i; $create; GRANT ALL ON own.t TO writer"), '', 'an owner makes a graph');
is(as_role('writer', "INSERT INTO own.t SELECT i, vec(i, 8) FROM generate_series(101, 110) AS i; DELETE FROM own.t WHERE id = 5"), '',
	'another role writes');
is(value($node, "SELECT wrong('own.g', 'own.t')"), '0 0 0 0 0', 'the graph is sound');
like(as_role('writer', 'SELECT FROM own.g'), qr/permission denied for table g/, 'who may not read it');
is(value($node, 'SELECT current_user'), value($node, 'SELECT session_user'), 'no role stays');
like(as_role('writer', "INSERT INTO own.t SELECT 1, vec(1, 8)"), qr/duplicate key/, 'an error in between');
# A trigger that another adds cannot name a graph that does not agree, nor a graph of another owner.
as_role('owner', "SELECT knn_graph_create('own.other', 'own.t', 'id', 'v', $k)");
my $trigger = "CREATE TRIGGER evil AFTER DELETE ON %s REFERENCING OLD TABLE AS o WHEN ('%s'::regclass IS NOT NULL)
	EXECUTE FUNCTION knn_graph_keep('id', 'v', 'l2', '5')";
as_role('writer', sprintf($trigger, 'own.t', 'own.other'));
like(as_role('writer', 'DELETE FROM own.t WHERE id = 6'), qr/graph "other" is not kept by table "t"/, 'a graph that does not agree');
as_role('owner', 'DROP TRIGGER evil ON own.t');
value($node, 'CREATE SCHEMA mine AUTHORIZATION writer; GRANT CREATE ON SCHEMA public TO writer');
is(as_role('writer', "CREATE TABLE mine.t (id int PRIMARY KEY, v vector(8)); INSERT INTO mine.t VALUES (7, '[1,2,3,4,5,6,7,8]');"
	. sprintf($trigger, 'mine.t', 'own.g')), '', 'a trigger on a table of ones own');
like(as_role('writer', 'DELETE FROM mine.t'), qr/needs the owner of its table/, 'a graph of another owner');
is(value($node, "SELECT count(*) FROM own.g WHERE src = 7"), $k, 'is as it was');
like(error_of($node, "SELECT knn_graph_create('public.theirs', 'own.t', 'id', 'v', 3, auto => true)"),
	qr/needs the owner of its table\nDETAIL:  Table "t" belongs to "owner", the graph to/, 'nor does a superuser make one');
like(as_role('writer', "SELECT knn_graph_stop('own.g')"), qr/must be owner of relation g/, 'who may not end it');
is(as_role('owner', "BEGIN; SELECT knn_graph_stop('own.g'); ROLLBACK"), '', 'a trigger of another is not in the way of who may');
# Functions of whoever writes do not take the place of PostgreSQL's own.
is(as_role('writer', "CREATE FUNCTION mine.arrayoverlap(anyarray, anyarray) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION \$\$%\$\$, current_user; END';
	CREATE FUNCTION mine.eq(int, bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION \$\$%\$\$, current_user; END';
	CREATE OPERATOR mine.= (LEFTARG = int, RIGHTARG = bigint, FUNCTION = mine.eq);
	SET search_path = mine, pg_catalog, public, ivfpq_test; INSERT INTO own.t SELECT 120, vec(120, 8); DELETE FROM own.t WHERE id = 119"), '',
	'a search_path of the writer');
# Row security: the owner sees all, unless it is forced.
as_role('owner', 'ALTER TABLE own.t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON own.t USING (id < 1000); CREATE POLICY q ON own.t FOR INSERT WITH CHECK (true)');
is(as_role('writer', 'INSERT INTO own.t SELECT i, vec(i, 8) FROM generate_series(995, 1005) AS i'), '', 'rows that the writer does not see');
is(value($node, "SELECT wrong('own.g', 'own.t')"), '0 0 0 0 0', 'are in the graph');
as_role('owner', 'ALTER TABLE own.t FORCE ROW LEVEL SECURITY');
like(as_role('writer', 'INSERT INTO own.t SELECT 2, vec(2, 8)'), qr/duplicate key/, 'errors of the statement come first');
like(as_role('writer', 'INSERT INTO own.t SELECT 130, vec(130, 8)'), qr/needs all rows of table "t"/, 'policies that hold for the owner');
as_role('owner', 'ALTER TABLE own.t NO FORCE ROW LEVEL SECURITY');
value($node, 'ALTER TABLE own.t OWNER TO writer');
like(as_role('writer', 'DELETE FROM own.t WHERE id = 8'), qr/Table "t" belongs to "writer", the graph to "owner"/, 'owners that differ');
value($node, 'ALTER TABLE own.g OWNER TO writer');
is(as_role('writer', 'DELETE FROM own.t WHERE id = 8'), '', 'and agree again');
is(value($node, "SELECT wrong('own.g', 'own.t')"), '0 0 0 0 0', 'the graph is sound');

# Dump and restore: edges come from the dump, and statements keep the graph from then on.
value($node, "SET client_min_messages = warning; CREATE TABLE u (id uuid PRIMARY KEY, v vector(8));
	INSERT INTO u SELECT md5(i::text)::uuid, vec(i, 8) FROM generate_series(1, 200) AS i;
	SELECT knn_graph_create('u_lists', 'u', 'id', 'v', $k, compact => true, auto => true)");
value($node, 'ALTER TABLE g RENAME TO "a Graph"');
my $folder = PostgreSQL::Test::Utils::tempdir();
for my $format ('plain', 'custom')
{
	my @server = ('--port=' . $node->port, '--host=' . $node->host);
	my $database = "restored_$format";
	$node->command_ok([ 'pg_dump', @server, "--format=$format", "--file=$folder/$format", 'postgres' ], "$format: dump");
	value($node, "CREATE DATABASE $database");
	$node->command_ok($format eq 'plain'
		? [ 'psql', @server, '--quiet', '--set=ON_ERROR_STOP=1', "--file=$folder/$format", $database ]
		: [ 'pg_restore', @server, '--exit-on-error', '--jobs=2', "--dbname=$database", "$folder/$format" ], "$format: restore");
	my $ask = sub { return $node->safe_psql($database, "SET search_path = public, ivfpq_test; $_[0]") };
	my $edges = 'SELECT sum(hashtext(src || dst::text || rank)), count(*) FROM "a Graph"';
	is($ask->($edges), value($node, $edges), "$format: the same edges");
	is($ask->(q{SELECT wrong('"a Graph"', 't')}), '0 0 0 0 0', "$format: the graph is sound");
	$ask->('INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(90001, 90010) AS i; DELETE FROM t WHERE id % 40 = 3;
		DELETE FROM u WHERE id::text < \'3\'');
	is($ask->(q{SELECT wrong('"a Graph"', 't')}), '0 0 0 0 0', "$format: and is kept");
	is($ask->('SELECT count(*) FROM u_lists, unnest(neighbors) AS n WHERE src NOT IN (SELECT id FROM u) OR n NOT IN (SELECT id FROM u)'), 0,
		"$format: so is the compact one");
	$ask->(q{SELECT knn_graph_stop('u_lists'); DROP TABLE u_lists; DROP TABLE "a Graph" CASCADE; INSERT INTO t SELECT 90011, vec(1, 8)});
	is($ask->("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass"), 0, "$format: triggers go with the graph");
}
value($node, 'ALTER TABLE "a Graph" RENAME TO g');

# A backend that is killed, and one that is canceled, leave the graph as it was.
my $killed = session($node);
my $pid = $killed->query('SELECT pg_backend_pid()');
$killed->query_safe('BEGIN; INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(95001, 95100) AS i');
kill_backend($node, $pid);
eval { $killed->quit };
is_sound('after a crash');
value($node, 'INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(95001, 95010) AS i; DROP TABLE g');
is(value($node, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass"), 0, 'triggers go with the graph');
$node->stop;
done_testing();
