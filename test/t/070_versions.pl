# An extension of an older version becomes what a new one is, with all that depends on it in place.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Catalog;
use IvfpqTest;

my $node = new_node('versions', checksums => 0);
sub psql { my ($database, $sql) = @_; return $node->safe_psql($database, $sql); }

value($node, "CREATE DATABASE $_") for 'fresh', 'updated';
psql('fresh', 'CREATE EXTENSION pgwarp');
psql('updated', <<'SQL');
CREATE EXTENSION pgwarp VERSION '0.1.0';
CREATE TABLE t (id bigint, v vector(3));
INSERT INTO t SELECT i, ARRAY[sin(i), cos(i), i / 100.0]::vector FROM generate_series(1, 2000) AS i;
CREATE INDEX t_v ON t USING ivfpq (v);
-- What users have made of it.
CREATE VIEW searched AS SELECT indexname, cpu_searches FROM pg_stat_pgwarp;
CREATE VIEW nearest AS SELECT id FROM t ORDER BY v <-> '[1,0,2]' LIMIT 5;
SQL
my $nearest = psql('updated', 'SELECT * FROM nearest');
my $first = catalog_of($node, 'updated', 'pgwarp');

psql('updated', 'ALTER EXTENSION pgwarp UPDATE');
is(psql('updated', "SELECT extversion FROM pg_extension WHERE extname = 'pgwarp'"), '0.2.0', 'the update');
my $updated = catalog_of($node, 'updated', 'pgwarp');
isnt($updated, $first, 'the catalog has changed');
# By objects, so that a difference can be read.
my %fresh = map { /^(.*?): (.*)$/s } split(/\n(?=function |type |operator |cast |access |view )/,
	catalog_of($node, 'fresh', 'pgwarp'));
my %after = map { /^(.*?): (.*)$/s } split(/\n(?=function |type |operator |cast |access |view )/, $updated);
ok(keys %fresh > 100, 'the extension has objects');
is_deeply(\%after, \%fresh, 'the catalog is that of a new extension');

is(psql('updated', 'SELECT * FROM nearest'), $nearest, 'the index of before gives its rows');
like(psql('updated', 'SET enable_seqscan = off; EXPLAIN SELECT * FROM nearest'), qr/Index Scan using t_v/,
	'by the index');
is(psql('updated', "SELECT count(*) FROM ivfpq_check('t_v', true)"), 0, 'it is sound');
is(psql('updated', "SELECT count(*) FROM ivfpq_recall_curve('t_v') WHERE k = 10") > 0, 1, 'its curve');
is(psql('updated', 'SELECT count(*) FROM searched') >= 0, 1, 'a view on the counters has stayed');
psql('updated', 'CREATE INDEX t_v_id ON t USING ivfpq (v, id)');
is(psql('updated', "SELECT (ivfpq_info('t_v_id')).attributes"), '{id}', 'attributes are new');

# A view on a function that has other columns now must go first.
value($node, 'CREATE DATABASE held');
psql('held', "CREATE EXTENSION pgwarp VERSION '0.1.0'; CREATE VIEW held AS SELECT (ivfpq_info('pg_class')).lists");
my ($status, $out, $error) = $node->psql('held', 'ALTER EXTENSION pgwarp UPDATE');
like($error, qr/cannot drop function ivfpq_info\(regclass\) because other objects depend on it\n.*view held/,
	'a view that the update cannot keep');
psql('held', 'DROP VIEW held; ALTER EXTENSION pgwarp UPDATE');

# --- indexes that 0.1.0 has built: their files as it left them, in test/data. Tables are made again, row by
# row where they were.

value($node, 'CREATE DATABASE old');
psql('old', <<'SQL');
CREATE EXTENSION pgwarp VERSION '0.1.0';
CREATE TABLE t (id int, v vector(8));
INSERT INTO t SELECT i, ARRAY(SELECT ((i * (7919 + 104729 * k) / 64) % 1000) / 8.0 FROM generate_series(1, 8) AS k)::vector
	FROM generate_series(1, 1200) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 8, m = 4);
CREATE INDEX t_c ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 8, quantizer = 'opq', m = 4);
CREATE TABLE u (id int, v vector(8));
SET client_min_messages = warning;
CREATE INDEX u_v ON u USING ivfpq (v);
INSERT INTO u SELECT * FROM t WHERE id <= 50;
SQL
my %file = map { $_ => $node->data_dir . '/' . psql('old', "SELECT pg_relation_filepath('$_')") } qw(t_v t_c u_v);
$node->stop;
for my $index (sort keys %file)
{
	my $bytes = `xz -dc test/data/0.1.0/$index.xz`;
	cmp_ok(length $bytes, '>', 8192, "$index of 0.1.0");
	open(my $out, '>:raw', $file{$index}) or die "$file{$index}: $!";
	print $out $bytes;
	close $out or die $!;
}
$node->start;

sub old_indexes_work
{
	my ($when) = @_;
	for my $search ([ 't', '<->', 't_v' ], [ 't', '<=>', 't_c' ], [ 'u', '<->', 'u_v' ])
	{
		my ($table, $operator, $index) = @$search;
		for my $query ('[10,20,30,40,50,60,70,80]', '[100,3,90,5,70,9,60,12]')
		{
			# All rows: nothing may be missing. Those at one distance come in any order.
			my $nearest = "SELECT array_agg(id ORDER BY d, id) FROM
				(SELECT id, v $operator '$query' AS d FROM $table ORDER BY v $operator '$query') AS r";
			my $exact = psql('old', "SET enable_indexscan = off; $nearest");
			# Every list and every candidate.
			my $by_index = psql('old', "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.probes = 8;
				SET ivfpq.candidates = 2000; $nearest");
			is($by_index, $exact, "$when: rows by $index");
		}
		like(psql('old', "SET enable_seqscan = off; EXPLAIN SELECT id FROM $table ORDER BY v $operator '[1,2,3,4,5,6,7,8]' LIMIT 20"),
			qr/Index Scan using $index/, "$when: by $index");
	}
	return;
}
# The library is new, the SQL is not: whatever has other arguments or columns says so.
my $hint = qr/is of another version than the library of pgwarp\nDETAIL:  The library is version 0\.2\.0\.\nHINT:  Run ALTER EXTENSION pgwarp UPDATE/;
old_indexes_work('before the update');
for my $call ("ivfpq_info('t_v')", "ivfpq_recall_curve('t_v')", "knn_search('t_v', ARRAY['[1,2,3,4,5,6,7,8]']::vector[], 3)",
	"knn_join('t', 'id', 'v', 't_v', 'id', 3)")
{
	($status, $out, $error) = $node->psql('old', "SELECT * FROM $call");
	like($error, $hint, "before the update: $call");
}
is(psql('old', "SELECT count(*) FROM ivfpq_check('t_v', true)"), 0, 'before the update: it is sound');
is(psql('old', 'SELECT count(*) FROM pg_stat_pgwarp') >= 0, 1, 'before the update: counters');
cmp_ok(psql('old', "SELECT ivfpq_recall('t_v')"), '>', 0.85, 'before the update: recall');
psql('old', "INSERT INTO t SELECT id + 2000, v FROM t WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0");
psql('old', 'VACUUM (INDEX_CLEANUP ON) t');
old_indexes_work('after changes');
psql('old', 'ALTER EXTENSION pgwarp UPDATE');
old_indexes_work('after the update');
psql('old', "INSERT INTO t SELECT id + 4000, v FROM t WHERE id % 5 = 0; DELETE FROM t WHERE id % 11 = 0;
	INSERT INTO u SELECT * FROM t WHERE id > 2000");
psql('old', 'VACUUM (INDEX_CLEANUP ON) t');
old_indexes_work('after the update and changes');
is(psql('old', "SELECT string_agg(problem, ', ') FROM unnest('{t_v,t_c,u_v}'::regclass[]) AS i, ivfpq_check(i, true)"), '',
	'after the update: they are sound');
is(psql('old', "SELECT (i).trained, (i).lists, (i).m, (i).attributes FROM ivfpq_info('t_v') AS i"), 't|8|4|{}', 'and described');
psql('old', 'REINDEX TABLE t');
old_indexes_work('after REINDEX');

# --- a library that is older than the script: as if it had none of the new symbols

for my $script (qw(pgwarp--0.2.0.sql pgwarp--0.1.0--0.2.0.sql))
{
	my ($block) = slurp_file("sql/$script") =~ /^(DO \$library\$.*?^\$library\$;)/ms;
	$block =~ s/MODULE_PATHNAME/\$libdir\/plpgsql/;
	($status, $out, $error) = $node->psql('template1', $block);
	like($error, qr/the library of pgwarp is older than version 0\.2\.0 of the extension\nHINT:  Install the library of that version\. If it is there, restart the server/,
		"$script: an older library");
	($status, $out, $error) = $node->psql('postgres', "CREATE FUNCTION of_tomorrow() RETURNS int AS '\$libdir/pgwarp' LANGUAGE C");
	like($error, qr/could not find function "of_tomorrow" in file/, 'a function that the library does not have');
}
# Declarations of a newer extension.
psql('old', "CREATE FUNCTION tomorrow(index regclass, more int, OUT a int, OUT b int) AS '\$libdir/pgwarp', 'ivfpq_info' LANGUAGE C;
	CREATE FUNCTION tomorrow_rows(OUT a int, OUT b int) RETURNS SETOF record AS '\$libdir/pgwarp', 'pgwarp_stat_indexes' LANGUAGE C");
for my $call ("tomorrow('t_v', 1)", 'tomorrow_rows()')
{
	($status, $out, $error) = $node->psql('old', "SELECT * FROM $call");
	like($error, $hint, "$call of another version");
}
is(psql('old', 'SELECT pgwarp_version()'), '0.2.0', 'the version of the library');
like(slurp_file('pgwarp.control'), qr/default_version = '0\.2\.0'/, 'is that of the extension');

$node->stop;
done_testing();
