# Random statements of sqlsmith over a database with all of pgwarp's functions, types, operators and kinds
# of indexes (test/include/sqlsmith.sql): no backend crashes, no assertion fails, and none of the errors
# is an internal one. SQLSMITH is for how many seconds: few by default, by hand for an hour:
#
#   SQLSMITH=3600 PGWARP_TEST_LIMIT=4500 scripts/test tap 081_sqlsmith
#
# SEED makes the same statements again, as far as these depend on no time and no chance of the server's.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use IvfpqTest;

plan skip_all => 'sqlsmith is not installed' if system('sqlsmith --version >/dev/null 2>&1') != 0;
my $seconds = $ENV{SQLSMITH} // 10;
my $seed = seed_of();

my $node = new_node('smith', service => 1, conf => <<'END');
restart_after_crash = off
log_error_verbosity = verbose
log_min_messages = error
work_mem = 1MB
maintenance_work_mem = 16MB
jit = off
track_functions = all
enable_seqscan = off
random_page_cost = 1.1
max_parallel_workers_per_gather = 0
pgwarp.service_timeout = 500ms
END
value($node, 'CREATE ROLE smith LOGIN; GRANT CREATE ON DATABASE postgres TO smith');
# As the role itself: what it makes is its own.
$node->safe_psql('postgres', "SET SESSION AUTHORIZATION smith; SET client_min_messages = error;\n"
	. slurp_file('test/include/sqlsmith.sql'));
value($node, 'ALTER ROLE smith SET search_path = seen, pg_catalog, things, public, ivfpq_test; VACUUM ANALYZE');

is(value($node, "SELECT string_agg(c.relname, ' ') FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam AND amname = 'ivfpq',
	ivfpq_info(c.oid) WHERE relkind = 'i' AND NOT trained"), 'pending_v', 'all indexes are trained but one');

# First all functions, with arguments of all kinds.
my $rounds = int($seconds / 4) + 1;
my @outcomes = split /\n/, $node->safe_psql('postgres', "SET SESSION AUTHORIZATION smith; SET search_path = things, public, ivfpq_test;
	SET statement_timeout = '10min'; SELECT 1 FROM setseed(@{[ ($seed % 1000) / 1000 ]}); SELECT what, times, call FROM call_all($rounds)");
note($_) for sort grep { /^\w{5} / } @outcomes;
is(join("\n", grep { /^XX/ } @outcomes), '', 'no internal error from a function');

# Most operators are of types that pgwarp has nothing to do with. sqlsmith takes all that the catalog has, so
# this catalog, which no other test uses, loses them. Families of operators lose them as well: a statement that sorts by
# such a type then says so, instead of calling a function that is none. ivfpq_check() sorts by bytea.
value($node, <<'SQL');
SET allow_system_table_mods = on;
DELETE FROM pg_operator WHERE oid < 16384 AND ARRAY[oprleft, oprright] && '{anyrange,anymultirange,point,lseg,path,box,polygon,line,circle,inet,cidr,
	macaddr,macaddr8,tsvector,tsquery,jsonb,money,bit,varbit,uuid,date,time,timetz,timestamp,pg_lsn,xid8,bpchar,tid}'::regtype[]::oid[];
DELETE FROM pg_amop WHERE NOT EXISTS (SELECT FROM pg_operator AS o WHERE o.oid = amopopr);
SQL

# Several rounds, each with its seed: a statement that ends the connection may end sqlsmith.
my ($statements, $round, $end) = (0, 0, time + $seconds);
my $from = -s $node->logfile;
while (time < $end)
{
	my $left = int($end - time) + 1;
	my $round_seed = ($seed + 7919 * $round++) % (1 << 30);
	my $executor = (qw(service auto cpu))[$round % 3];
	my $target = $node->connstr('postgres') . " user=smith options='-c ivfpq.executor=$executor'";
	my $length = $left < 10 ? $left : 10 + $round;
	my $output = '';
	IPC::Run::run([ 'timeout', $length, 'sqlsmith', "--target=$target", "--seed=$round_seed", '--exclude-catalog', '--verbose' ],
		'>', \my $none, '2>', \$output);
	# One letter for each: right, an error, a timeout, a syntax error, a connection that broke.
	my $letters = join '', $output =~ /^([.etSC]+)$/mg;
	$statements += length $letters;
	note("round $round, seed $round_seed, executor $executor: ", length $letters, ' statements, of these right ', $letters =~ tr/.//);
	last unless $node->psql('postgres', 'SELECT 1') == 0;
}
note("$statements statements");

my $log = substr(slurp_file($node->logfile), $from);
unlike($log, qr/terminated by signal|PANIC|TRAP:/, 'no crash');
is(value($node, 'SELECT 1'), 1, 'the server is there');
# An error that PostgreSQL or pgwarp takes for impossible. Its location and its statement follow in the log.
my %internal;
my @lines = split /\n/, $log;
for my $i (0 .. $#lines)
{
	next unless $lines[$i] =~ /(?:ERROR|FATAL):  (XX\d+: .*)/;
	my $what = $1;
	my ($end_of_it) = grep { $_ > $#lines || $lines[$_] !~ /^\t|(?:DETAIL|HINT|CONTEXT|LOCATION|STATEMENT|QUERY):  / } $i + 1 .. $i + 400;
	my $all = join("\n", @lines[ $i .. $end_of_it - 1 ]);
	my ($location) = $all =~ /LOCATION:  (.*)/;
	$internal{ ($what =~ s/\d+/#/gr) . ' at ' . ($location // '?') } //= $all;
}
is(join("\n\n", map { $internal{$_} } sort keys %internal), '', 'no internal error');

# It is no proof if nothing came through.
my %errors;
++$errors{$1} while $log =~ /ERROR:  (\w{5}):/g;
note(join(', ', map { "$_: $errors{$_}" } sort keys %errors));
note('functions called: ', value($node, "SELECT count(*) FILTER (WHERE calls > 0) || ' of ' || count(*)
	FROM pg_proc AS p LEFT JOIN pg_stat_user_functions AS f ON f.funcid = p.oid
	WHERE prokind = 'f' AND (pronamespace = 'public'::regnamespace OR proname LIKE 'rows_%' OR proname LIKE 'any_%')"));
note('scans: ', value($node, "SELECT string_agg(indexrelname || ' ' || idx_scan, ', ' ORDER BY indexrelname)
	FROM pg_stat_user_indexes WHERE schemaname = 'things'"));
cmp_ok($statements, '>', 5 * $seconds, 'there were statements');
indexes_are_sound($node);
$node->stop;
done_testing();
