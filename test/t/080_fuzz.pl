# Values and pages damaged at random: whatever comes, nothing crashes or hangs, and what is wrong gets an
# error that says so. FUZZ is the number of mutations of each kind: few by default, for by hand:
#
#   FUZZ=1000000 PGWARP_TEST_LIMIT=36000 scripts/test tap 080_fuzz
#
# An outcome that is not expected is shown with the number of its first mutation; SEED makes them again.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $mutations = $ENV{FUZZ} // 3000;
my $seed = seed_of();
my $node = new_node('fuzz', checksums => 0,
	conf => "restart_after_crash = off\nmaintenance_work_mem = 16MB\nlog_min_messages = log");
value($node, <<'SQL');
CREATE FUNCTION fuzz_type(type regtype, receive bool, starts bytea[], seed bigint, count int,
	OUT what text, OUT times bigint, OUT first int) RETURNS SETOF record AS 'test_fuzz' LANGUAGE C STRICT;
CREATE FUNCTION fuzz_index(index regclass, statements text[], seed bigint, first int, count int,
	OUT what text, OUT times bigint, OUT first_of_them int) RETURNS SETOF record AS 'test_fuzz' LANGUAGE C STRICT;
SQL

# Tells whether all outcomes are expected, and that some values, or some searches, came through.
sub outcomes
{
	my ($name, $expected, $statement) = @_;
	my @rows = split /\n/, value($node, $statement);
	my @wrong = grep { !/^ok\|/ && !/$expected/ } @rows;
	is(join("\n", @wrong), '', "$name: no outcome but expected ones");
	cmp_ok(scalar(grep { /^ok\|/ } @rows), '==', 1, "$name: some were none the worse");
	cmp_ok(scalar(grep { $_ !~ /^ok\|/ } @rows), '>', 0, "$name: some were noticed");
	note($_) for sort @rows;
	return;
}

# A value that is not one: data exceptions, program limits, and a message that ends too early.
my $no_value = qr/^(22|54|08P01 )/;
for my $type (qw(vector halfvec))
{
	my @values = ('[1,2,3]', '[0]', '[-0.5,1e-5,65504]', ' [ 1.5 , -2 ] ', '[1e-7,3.5,0.333333343]', '[' . join(',', 1 .. 40) . ']');
	my $texts = join ', ', map { "'$_'::text::bytea" } @values;
	my $messages = join ', ', map { "${type}_send('$_')" } @values;
	outcomes("$type, text", $no_value, "SELECT * FROM fuzz_type('$type', false, ARRAY[$texts], $seed, $mutations)");
	outcomes("$type, binary", $no_value, "SELECT * FROM fuzz_type('$type', true, ARRAY[$messages], $seed, $mutations)");
}

# Arrays to vectors and back: every element type, dimensions, nulls, numbers without a value.
value($node, <<"SQL");
DO \$\$
DECLARE
	numbers text[] := '{0,1,-1,1e38,1e39,-1e-46,65504,65520,NaN,Infinity,-Infinity,NULL,0.1,7e-8}';
	types text[] := '{real,float8,numeric,int}';
	parts text;
	made text;
BEGIN
	PERFORM setseed(@{[ ($seed % 1000) / 1000 ]});
	FOR i IN 1 .. @{[ $mutations / 3 ]} LOOP
		SELECT string_agg(numbers[1 + floor(random() * 14)::int], ',') INTO parts
		FROM generate_series(1, floor(random() * 6)::int);
		made := format(CASE WHEN random() < 0.1 THEN '{{%1\$s},{%1\$s}}' ELSE '{%s}' END, parts);
		BEGIN
			EXECUTE format('SELECT (%L::%s[])::%s::real[]::text', made, types[1 + floor(random() * 4)::int],
				(ARRAY['vector', 'halfvec', 'vector(3)', 'halfvec(2)'])[1 + floor(random() * 4)::int]) INTO made;
			IF made ~ 'NaN|Inf|NULL' OR made LIKE '%{{%' THEN RAISE EXCEPTION 'a vector has %', made; END IF;
		EXCEPTION
			WHEN data_exception OR program_limit_exceeded THEN NULL;
		END;
	END LOOP;
END \$\$
SQL
pass('arrays');

# Options: an index, or an error about an option, and never one of another kind.
value($node, <<"SQL");
SET client_min_messages = error;
CREATE TABLE few AS SELECT i AS id, vec(i, 8) AS v FROM generate_series(1, 400) AS i;
DO \$\$
DECLARE
	names text[] := '{lists,m,bits,quantizer,dims,rounds,refine,nonsense}';
	given text[] := '{0,1,-1,2,3,4,5,8,16,17,32768,32769,2147483648,1e3,x,'''',pq,opq,lsq,auto,none,int8,on,NULL}';
	options text;
BEGIN
	PERFORM setseed(@{[ ($seed % 1000) / 1000 ]});
	FOR i IN 1 .. @{[ $mutations / 30 ]} LOOP
		SELECT string_agg(DISTINCT format('%I = %L', names[1 + floor(random() * 8)::int], given[1 + floor(random() * 24)::int]), ', ')
		INTO options FROM generate_series(1, 1 + floor(random() * 3)::int);
		BEGIN
			EXECUTE 'CREATE INDEX few_v ON few USING ivfpq (v) WITH (' || options || ')';
			DROP INDEX few_v;
		EXCEPTION
			WHEN invalid_parameter_value OR syntax_error OR feature_not_supported OR program_limit_exceeded THEN NULL;
		END;
	END LOOP;
END \$\$
SQL
pass('options');

my $damage = qr/^XX002 index "\w+" is damaged|^0A000 index "\w+" has format version/;
my %indexes = (
	plain => [ 'v', 'lists = 4, m = 8' ],
	nibbles => [ 'v', 'lists = 4, m = 4, bits = 4' ],
	refined => [ 'v, id', 'lists = 3, m = 4, bits = 4, refine = int8' ],
	rotated => [ 'v, id, tags', 'lists = 3, m = 4, quantizer = opq, dims = 6' ],
	additive => [ 'v', 'lists = 3, m = 4, quantizer = lsq, rounds = 1' ],
	halves => [ '(v::halfvec(8)) halfvec_l2_ops', 'lists = 3' ],
	pending => [ 'v, id', 'lists = 3', 'untrained' ]);
for my $name (sort keys %indexes)
{
	my ($columns, $options, $untrained) = @{ $indexes{$name} };
	my $fill = "INSERT INTO $name SELECT i, vec(i, 8), ARRAY[i % 10, i % 7] FROM generate_series(1, @{[ $untrained ? 300 : 1200 ]}) AS i;";
	my $make = "CREATE INDEX ${name}_v ON $name USING ivfpq ($columns) WITH ($options);";
	value($node, "SET client_min_messages = error; CREATE TABLE $name (id int, v vector(8), tags int[]);"
		. ($untrained ? $make . $fill : $fill . $make . "DELETE FROM $name WHERE id % 5 = 0;"));
	$node->safe_psql('postgres', "VACUUM $name");
	my $distance = $name eq 'halves' ? 'v::halfvec(8) <-> vec(7, 8)::halfvec' : 'v <-> vec(7, 8)';
	my @statements = ("SELECT id FROM $name ORDER BY $distance LIMIT 5", "SELECT count(*) FROM (SELECT id FROM $name ORDER BY $distance) AS s",
		"SELECT id FROM $name WHERE id < 50 ORDER BY $distance LIMIT 5", "INSERT INTO $name SELECT 1, vec(i, 8), NULL FROM generate_series(1, 3) AS i",
		'vacuum', "SELECT * FROM ivfpq_check(''${name}_v'', true)", "SELECT * FROM ivfpq_info(''${name}_v'')",
		"SELECT * FROM ivfpq_recall_curve(''${name}_v'')", "SELECT ivfpq_recall(''${name}_v'', 3, 3)",
		"SELECT * FROM knn_search(''${name}_v'', ARRAY[vec(3, 8)], 4)");
	splice @statements, -1 if $name eq 'halves';    # which is on an expression: knn_search does not take it
	my $list = join ', ', map { "'$_'" } @statements;
	outcomes("pages, $name", $damage,
		"SET enable_seqscan = off; SELECT * FROM fuzz_index('${name}_v', ARRAY[$list], $seed, 0, $mutations)");
	# What was put back is as it was.
	is(value($node, "SELECT count(*) FROM ivfpq_check('${name}_v', true)"), 0, "pages, $name: all is well afterwards");
}
unlike(slurp_file($node->logfile), qr/terminated by signal|PANIC/, 'no crash');
$node->stop;
done_testing();
