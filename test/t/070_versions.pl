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

# --- indexes that 0.1.0 has built, in format version 3: their files as it left them, in test/data. Tables are
# made again, row by row where they were. Versions 1 and 2 are the same without some fields of the metapage,
# which are zero there: see complete_meta() and the comment on format_version. Version 1 has no rotations.

#
# Version 5 is of a library on the way to 0.2.0, with a column beside the vector in t_v. Version 4 is the same
# without what was measured: its curve had another form.

my %formats = (old => 3, old_2 => 2, old_1 => 1, format_4 => 4, format_5 => 5);
my @of_first = sort grep { $formats{$_} <= 3 } keys %formats;
my @of_later = sort grep { $formats{$_} > 3 } keys %formats;
sub zero { my ($bytes, $from, $to) = @_; substr($$bytes, $from, $to - $from) = "\0" x ($to - $from); return }
sub indexes_in { return $_[0] eq 'old_1' ? qw(t_v u_v) : qw(t_v t_c u_v) }
my %file;
for my $database (sort keys %formats)
{
	value($node, "CREATE DATABASE $database");
	my $is_first = $formats{$database} <= 3;
	psql($database, $is_first ? "CREATE EXTENSION pgwarp VERSION '0.1.0'" : 'CREATE EXTENSION pgwarp');
	my $column = $is_first ? '' : ', id';
	psql($database, <<"SQL");
CREATE TABLE t (id int, v vector(8));
INSERT INTO t SELECT i, ARRAY(SELECT ((i * (7919 + 104729 * k) / 64) % 1000) / 8.0 FROM generate_series(1, 8) AS k)::vector
	FROM generate_series(1, 1200) AS i;
CREATE INDEX t_v ON t USING ivfpq (v$column) WITH (lists = 8, m = 4);
CREATE INDEX t_c ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 8, quantizer = 'opq', m = 4);
CREATE TABLE u (id int, v vector(8));
SET client_min_messages = warning;
CREATE INDEX u_v ON u USING ivfpq (v);
INSERT INTO u SELECT * FROM t WHERE id <= 50;
SQL
	psql($database, 'DROP INDEX t_c') if $formats{$database} == 1;
	$file{$database}{$_} = $node->data_dir . '/' . psql($database, "SELECT pg_relation_filepath('$_')") for indexes_in($database);
}
$node->stop;
for my $database (sort keys %formats)
{
	for my $index (indexes_in($database))
	{
		my ($folder, $version) = $formats{$database} <= 3 ? ('0.1.0', 3) : ('format-5', 5);
		my $bytes = `xz -dc test/data/$folder/$index.xz`;
		cmp_ok(length $bytes, '>', 8192, "$index of $folder");
		is(unpack('V', substr($bytes, 28, 4)), $version, "of format version $version");
		substr($bytes, 28, 4) = pack('V', $formats{$database});
		substr($bytes, 1424, 4) = pack('V', 0) if $formats{$database} < 3;      # search_rounds
		substr($bytes, 1416, 8) = pack('V2', 0, 0) if $formats{$database} < 2;  # code_dims, rotation
		# The first form of the curve, and all that version 5 has behind the spread of lists.
		zero(\$bytes, $_->[0], $_->[1]) for $formats{$database} == 4 ? ([ 128, 1416 ], [ 1532, 8176 ]) : ();
		open(my $out, '>:raw', $file{$database}{$index}) or die "$file{$database}{$index}: $!";
		print $out $bytes;
		close $out or die $!;
	}
}
$node->start;

sub old_indexes_work
{
	my ($database, $when) = @_;
	$when = "format $formats{$database}, $when";
	for my $search ([ 't', '<->', 't_v' ], [ 't', '<=>', 't_c' ], [ 'u', '<->', 'u_v' ])
	{
		my ($table, $operator, $index) = @$search;
		next unless grep { $_ eq $index } indexes_in($database);
		for my $query ('[10,20,30,40,50,60,70,80]', '[100,3,90,5,70,9,60,12]')
		{
			# All rows: nothing may be missing. Those at one distance come in any order.
			my $nearest = "SELECT array_agg(id ORDER BY d, id) FROM
				(SELECT id, v $operator '$query' AS d FROM $table ORDER BY v $operator '$query') AS r";
			my $exact = psql($database, "SET enable_indexscan = off; $nearest");
			# Every list and every candidate.
			my $by_index = psql($database, "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.probes = 8;
				SET ivfpq.candidates = 2000; $nearest");
			is($by_index, $exact, "$when: rows by $index");
		}
		like(psql($database, "SET enable_seqscan = off; EXPLAIN SELECT id FROM $table ORDER BY v $operator '[1,2,3,4,5,6,7,8]' LIMIT 20"),
			qr/Index Scan using $index/, "$when: by $index");
	}
	# Rows without a direction come after all others, though their codes are nearer than those of all other rows.
	my $opposite = '[-10,-20,-30,-40,-50,-60,-70,-80]';
	is(psql($database, "SET enable_seqscan = off; SELECT count(*), count(*) FILTER (WHERE d = 'NaN') FROM
		(SELECT v <=> '$opposite' AS d FROM t ORDER BY v <=> '$opposite' LIMIT 50) AS r"), '50|0', "$when: rows with a direction first");
	return;
}
# The library is new, the SQL is not: whatever has other arguments or columns says so.
my $hint = qr/is of another version than the library of pgwarp\nDETAIL:  The library is version 0\.2\.0\.\nHINT:  Run ALTER EXTENSION pgwarp UPDATE/;
for my $database (@of_first)
{
	old_indexes_work($database, 'before the update');
	for my $call ("ivfpq_info('t_v')", "ivfpq_recall_curve('t_v')", "knn_search('t_v', ARRAY['[1,2,3,4,5,6,7,8]']::vector[], 3)",
		"knn_join('t', 'id', 'v', 't_v', 'id', 3)")
	{
		($status, $out, $error) = $node->psql($database, "SELECT * FROM $call");
		like($error, $hint, "before the update: $call");
	}
	is(psql($database, "SELECT count(*) FROM ivfpq_check('t_v', true)"), 0, 'before the update: it is sound');
	is(psql($database, 'SELECT count(*) FROM pg_stat_pgwarp') >= 0, 1, 'before the update: counters');
	cmp_ok(psql($database, "SELECT ivfpq_recall('t_v')"), '>', 0.85, 'before the update: recall');
	psql($database, "INSERT INTO t SELECT id + 2000, v FROM t WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0;
		INSERT INTO t SELECT 10000 + i, array_fill(0::real, '{8}') FROM generate_series(1, 60) AS i");
	psql($database, 'VACUUM (INDEX_CLEANUP ON) t');
	old_indexes_work($database, 'after changes');
	psql($database, 'ALTER EXTENSION pgwarp UPDATE');
	old_indexes_work($database, 'after the update');
	psql($database, "INSERT INTO t SELECT id + 4000, v FROM t WHERE id % 5 = 0; DELETE FROM t WHERE id % 11 = 0;
		INSERT INTO u SELECT * FROM t WHERE id > 2000");
	psql($database, 'VACUUM (INDEX_CLEANUP ON) t');
	old_indexes_work($database, 'after the update and changes');
	is(psql($database, "SELECT string_agg(problem, ', ') FROM unnest('{" . join(',', indexes_in($database)) . "}'::regclass[]) AS i, ivfpq_check(i, true)"), '',
		'after the update: they are sound');
	is(psql($database, "SELECT (i).trained, (i).lists, (i).m, (i).attributes FROM ivfpq_info('t_v') AS i"), 't|8|4|{}', 'and described');
	psql($database, 'REINDEX TABLE t');
	old_indexes_work($database, 'after REINDEX');
}

for my $database (@of_later)
{
	my $with_condition = sub {
		my ($when) = @_;
		my $nearest = "SELECT array_agg(id ORDER BY d, id) FROM (SELECT id, v <-> '[10,20,30,40,50,60,70,80]' AS d FROM t
			WHERE id BETWEEN 100 AND 700 ORDER BY v <-> '[10,20,30,40,50,60,70,80]') AS r";
		is(psql($database, "SET enable_seqscan = off; SET enable_sort = off; SET ivfpq.probes = 8; SET ivfpq.candidates = 2000; $nearest"),
			psql($database, "SET enable_indexscan = off; $nearest"), "format $formats{$database}, $when: rows by a condition");
	};
	old_indexes_work($database, 'as it is');
	$with_condition->('as it is');
	is(psql($database, "SELECT string_agg(problem, ', ') FROM unnest('{t_v,t_c,u_v}'::regclass[]) AS i, ivfpq_check(i, true)"), '',
		"format $formats{$database}: sound");
	is(psql($database, "SELECT (i).trained, (i).lists, (i).m, (i).attributes, (i).recall_by_probes IS NULL FROM ivfpq_info('t_v') AS i"),
		't|8|4|{id}|t', 'described; its curve is of another rule');
	psql($database, "INSERT INTO t SELECT id + 2000, v FROM t WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0;
		INSERT INTO u SELECT * FROM t WHERE id > 2000;
		INSERT INTO t SELECT 10000 + i, array_fill(0::real, '{8}') FROM generate_series(1, 60) AS i");
	psql($database, 'VACUUM (INDEX_CLEANUP ON) t');
	old_indexes_work($database, 'after changes');
	$with_condition->('after changes');
	is(psql($database, "SELECT string_agg(problem, ', ') FROM unnest('{t_v,t_c,u_v}'::regclass[]) AS i, ivfpq_check(i, true)"), '',
		"format $formats{$database}: sound after changes");
	psql($database, 'REINDEX TABLE t');
	old_indexes_work($database, 'after REINDEX');
}

# --- a library that is older than the script: as if it had none of the new symbols

for my $script (qw(sql/pgwarp--0.2.0.sql build/pgwarp--0.1.0--0.2.0.sql))
{
	my ($block) = slurp_file($script) =~ /^(DO \$library\$.*?^\$library\$;)/ms;
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
