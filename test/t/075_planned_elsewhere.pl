# Tables whose queries another extension plans, as those that are spread over servers: functions return the
# rows that a query returns, never those of the table that no query reads, or say what to do instead.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

# "rows" has the rows of "shell", which has others itself: those that were left there.
my $node = new_node('planned');
value($node, <<'SQL');
CREATE TABLE shell (id int PRIMARY KEY, v vector(8), kind int);
CREATE INDEX shell_v ON shell USING ivfpq (v) WITH (lists = 10, m = 4);
CREATE TABLE rows (LIKE shell);
INSERT INTO rows SELECT i, vec(i, 8), i % 3 FROM generate_series(1, 3000) AS i;
INSERT INTO shell SELECT i, vec(i, 8, 9), 0 FROM generate_series(100001, 101500) AS i;
CREATE TABLE stale AS SELECT * FROM shell;
CREATE TABLE copy (LIKE shell);
INSERT INTO copy SELECT * FROM rows;
CREATE INDEX copy_v ON copy USING ivfpq (v) WITH (lists = 10, m = 4);
CREATE TABLE q AS SELECT i AS id, vec(i, 8, 5) AS v, i % 3 AS kind FROM generate_series(1, 40) AS i;
CREATE FUNCTION rows_of_shell() RETURNS SETOF shell LANGUAGE plpgsql AS 'BEGIN RETURN QUERY SELECT * FROM rows; END';
ALTER DATABASE postgres SET session_preload_libraries = 'test_planner';
ALTER DATABASE postgres SET ivfpq.target_recall = 1;
SQL
# With its schema: CREATE INDEX has a search_path of its own from 17 on.
my $elsewhere = "SET test_planner.rows = 'public.rows_of_shell'; SET test_planner.shell = 'public.shell';";

# The library is loaded, and its settings decide: without them the shell is a table like others.
is(value($node, "SELECT count(*), min(id) FROM shell"), '1500|100001', 'a query reads the table');
is(value($node, "SELECT count(*) FROM knn_join('q', 'id', 'v', 'shell_v', 'id', 3) WHERE key > 100000"), 120, 'so does knn_join');
is(value($node, "SELECT sum(size) FROM kmeans('shell', 'v', 5, seed => 1)"), 1500, 'and kmeans');
like(value($node, "$elsewhere EXPLAIN (COSTS OFF) SELECT * FROM shell"), qr/Function Scan on (public\.)?rows_of_shell/, 'a query reads the function');
is(value($node, "$elsewhere SELECT count(*), min(id) FROM shell"), '3000|1', 'and returns its rows');

# What functions return: beside the same call on a table that has the rows.
my %calls = (
	knn_join => "SELECT query_key, rank, key, distance FROM knn_join('q', 'id', 'v', '%1\$s_v', 'id', 5) ORDER BY 1, 2",
	'knn_join with a condition' => "SELECT query_key, rank, key, distance
		FROM knn_join('q', 'id', 'v', '%1\$s_v', 'id', 5, condition => 'id %% 2 = 0') ORDER BY 1, 2",
	'knn_join by a column' => "SELECT query_key, rank, key, distance
		FROM knn_join('q', 'id', 'v', '%1\$s_v', 'id', 5, on_equal => '{kind}') ORDER BY 1, 2",
	'knn_join of its rows' => "SELECT query_key, rank, key, distance FROM knn_join('%1\$s', 'id', 'v', 'copy_v', 'id', 2) ORDER BY 1, 2",
	kmeans => "SELECT cluster, size, centroid FROM kmeans('%1\$s', 'v', 6, seed => 3) ORDER BY 1",
	'exact graph' => "SELECT * FROM knn_graph('%1\$s', 'id', 'v', 4, method => 'exact') ORDER BY 1, 2",
	'graph by nn-descent' => "SELECT * FROM knn_graph('%1\$s', 'id', 'v', 4, method => 'nn_descent', seed => 1) ORDER BY 1, 2",
	'graph by the index' => "SELECT src, rank, dst FROM knn_graph('%1\$s', 'id', 'v', 4, method => 'ivfpq') ORDER BY 1, 2",
	ivfpq_compare => "SELECT quantizer, error FROM ivfpq_compare('%1\$s', 'v', 4) ORDER BY 1",
	knn_graph_create => "SELECT edges FROM knn_graph_create('graph_of_%1\$s', '%1\$s', 'id', 'v', 3, method => 'exact')",
	knn_graph_recall => "SELECT knn_graph_recall('graph_of_%1\$s', '%1\$s', 'id', 'v', 3)",
	ivfpq_learn => "SELECT k, used FROM ivfpq_learn('copy_v', '%1\$s', 'v', 3000) ORDER BY 1");
for my $name (sort { ($a =~ /recall/) <=> ($b =~ /recall/) || $a cmp $b } keys %calls)
{
	my $expected = value($node, sprintf($calls{$name}, 'copy'));
	ok(length($expected) > 0, "$name: there is something to compare");
	is(value($node, $elsewhere . sprintf($calls{$name}, 'shell')), $expected, $name);
}
is(value($node, 'SELECT count(*) FROM graph_of_shell WHERE src > 100000 OR dst > 100000'), 0, 'no row of the shell in the graph');

# What cannot work says so, and what to do.
my $not_here = qr/ERROR:  the rows of table "shell" are not in its index\n.*DETAIL:.*HINT:  Call the function for the indexes/s;
for my $call ("ivfpq_info('shell_v')", "ivfpq_recall('shell_v')", "ivfpq_recall_curve('shell_v')", "ivfpq_check('shell_v')",
	"pgwarp_prewarm('shell_v')", "ivfpq_learn('shell_v', 'q', 'v')")
{
	like(error_of($node, "$elsewhere SELECT * FROM $call"), $not_here, "$call says where to go");
}
like(error_of($node, "$elsewhere SELECT * FROM knn_search('shell_v', ARRAY[vec(1, 8)], 3)"),
	qr/ERROR:  the rows of table "shell" have no ctid here\n.*HINT:  Use knn_join/s, 'knn_search has no places to return');

# No word about training of an index that never gets rows.
my $make = 'CREATE INDEX shell_2 ON shell USING ivfpq (v); DROP INDEX shell_2';
value($node, 'TRUNCATE shell');
like(error_of($node, $make), qr/not trained yet/, 'an empty table');
unlike(error_of($node, "$elsewhere $make; REINDEX INDEX shell_v; TRUNCATE shell"), qr/not trained yet/, 'a shell is not said to lack rows');

# A partitioned table, whose leaves are not read either.
value($node, <<'SQL');
CREATE TABLE parts (id int, v vector(8), kind int) PARTITION BY LIST (kind);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0);
CREATE TABLE parts_1 PARTITION OF parts DEFAULT;
INSERT INTO parts SELECT * FROM stale;
CREATE INDEX parts_v ON parts USING ivfpq (v);
CREATE FUNCTION rows_of_parts() RETURNS SETOF parts LANGUAGE plpgsql AS 'BEGIN RETURN QUERY SELECT * FROM rows; END';
SQL
my $parts = "SET test_planner.rows = 'public.rows_of_parts'; SET test_planner.shell = 'public.parts';";
for my $name ('knn_join', 'kmeans', 'exact graph', 'graph by the index')
{
	is(value($node, $parts . sprintf($calls{$name}, 'parts')), value($node, sprintf($calls{$name}, 'copy')), "$name, partitioned");
}
like(error_of($node, "$parts SELECT ivfpq_recall('parts_v')"), qr/the rows of table "parts" are not in its index/, 'ivfpq_recall, partitioned');
is(value($node, "$elsewhere SELECT ivfpq_recall('parts_v')"), 1, 'a table that the library leaves alone is read');
is(value($node, "$elsewhere SELECT count(*) FROM knn_search('parts_v', ARRAY[vec(1, 8)], 3)"), 3, 'by knn_search, too');

# Views and foreign tables have no index here; a query reads their rows.
value($node, "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
	CREATE FOREIGN TABLE far (id int, v vector(8), kind int) SERVER files OPTIONS (program 'true');
	CREATE VIEW seen AS SELECT * FROM rows");
like(error_of($node, "SELECT ivfpq_info('far')"), qr/"far" is not an ivfpq index\nHINT:  It is a foreign table/, 'a foreign table in place of an index');
like(error_of($node, "SELECT ivfpq_info('seen')"), qr/"seen" is not an ivfpq index\nHINT:  It is a view/, 'a view in place of an index');
is(value($node, $elsewhere . sprintf($calls{kmeans}, 'seen')), value($node, sprintf($calls{kmeans}, 'copy')), 'kmeans of a view');
like(error_of($node, sprintf($calls{'graph by the index'}, 'far')), qr/table "far" has no ivfpq index/, 'a graph by the index of a foreign table');

# A caller without rights gets the same error as without the library.
value($node, 'CREATE ROLE reader');
like(error_of($node, "$elsewhere SET ROLE reader; SELECT * FROM kmeans('shell', 'v', 2)"), qr/permission denied for table shell/, 'rights are checked');

indexes_are_sound($node);
done_testing();
