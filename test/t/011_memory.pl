# What an index needs is said with figures one can act on, in CREATE INDEX and in VACUUM.
use strict;
use warnings;
use Test::More;
use IvfpqTest;

my $node = new_node('memory', conf => 'maintenance_work_mem = 1MB');
make_table($node, 't', 200, 2000);

# A list count that was chosen is lowered, and the hint is right.
my $notice = error_of($node, 'CREATE INDEX t_v ON t USING ivfpq (v)');
like($notice, qr/NOTICE:  index "t_v" gets (\d+) lists instead of (\d+)/, 'fewer lists');
my ($got, $best) = $notice =~ /gets (\d+) lists instead of (\d+)/;
cmp_ok($got, '<', $best, 'fewer than it would have chosen');
is(value($node, "SELECT lists FROM ivfpq_info('t_v')"), $got, 'as many as it says');
my ($needed) = $notice =~ /HINT:  Set maintenance_work_mem to at least (\d+) MB and REINDEX/;
ok($needed, 'with a hint');
is(error_of($node, "SET maintenance_work_mem = '${needed}MB'; REINDEX INDEX t_v"), '',
	'with as much memory as the hint says it does not complain');
is(value($node, "SELECT lists FROM ivfpq_info('t_v')"), $best, 'and has the lists it wanted');

# A list count that was given is refused, before any work, and the figure is right.
my $refusal;
my $time = elapsed(sub {
	$refusal = error_of($node, 'CREATE INDEX t_500 ON t USING ivfpq (v) WITH (lists = 500)');
});
like($refusal, qr/ERROR:  memory required is \d+ MB, maintenance_work_mem is 1 MB/, 'an error');
cmp_ok($time, '<', 5, 'at once');
($needed) = $refusal =~ /required is (\d+) MB/;
my $words = error_of($node, "SET maintenance_work_mem = '${needed}MB';
	CREATE INDEX t_500 ON t USING ivfpq (v) WITH (lists = 500)");
unlike($words, qr/memory/, 'so much is enough');

# Lists that hardly have a row each make a large index, and it says so.
like($words, qr/NOTICE:  index "t_500" has too many lists for its rows/, 'a notice of many lists');
like($words, qr/It gets 500 lists for about 2000 rows, .* up to 4 MB/, 'with what they take');
my ($chosen) = $words =~ /HINT:  Without the option it gets (\d+): ALTER INDEX ... RESET \(lists\), then REINDEX/;
value($node, 'ALTER INDEX t_500 RESET (lists)');
is(error_of($node, "SET maintenance_work_mem = '${needed}MB'; REINDEX INDEX t_500"), '',
	'without the option there is no notice');
is(value($node, "SELECT lists FROM ivfpq_info('t_500')"), $chosen, 'and as many lists as it says');
is(error_of($node, "SET maintenance_work_mem = '${needed}MB';
	CREATE INDEX t_125 ON t USING ivfpq (v) WITH (lists = 125)"), '', 'sixteen rows a list are enough');

# What needs more memory for any number of lists says so once, with one figure.
make_table($node, 's', 32, 2000);
my $lsq = 'CREATE INDEX s_v ON s USING ivfpq (v) WITH (quantizer = lsq)';
$refusal = error_of($node, $lsq);
like($refusal, qr/ERROR:  memory required is \d+ MB, maintenance_work_mem is 1 MB/, 'lsq needs more');
unlike($refusal, qr/gets/, 'and no lists are named that it cannot have');
($needed) = $refusal =~ /required is (\d+) MB/;
is(error_of($node, "SET maintenance_work_mem = '${needed}MB'; $lsq"), '', 'so much is enough');
value($node, 'DROP INDEX t_125');

# CONCURRENTLY leaves an invalid index, as PostgreSQL does, which is no hindrance to writing.
like(error_of($node, 'CREATE INDEX CONCURRENTLY t_600 ON t USING ivfpq (v) WITH (lists = 600)'),
	qr/memory required/, 'the same concurrently');
is(value($node, "SELECT indisvalid FROM pg_index WHERE indexrelid = 't_600'::regclass"), 'f',
	'an invalid index is left');
value($node, 'INSERT INTO t SELECT i, vec(i, 200) FROM generate_series(2001, 2100) AS i');
value($node, 'DROP INDEX t_600');

# In VACUUM it is a warning.
value($node, 'CREATE TABLE u (id int, v vector(64))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 5000)');
value($node, 'INSERT INTO u SELECT i, vec(i, 64) FROM generate_series(1, 10500) AS i');
my $frozen = 'age(relfrozenxid) FROM pg_class WHERE relname = \'u\'';
my $warning = error_of($node, 'VACUUM (FREEZE) u');
like($warning, qr/WARNING:  memory required is \d+ MB, maintenance_work_mem is 1 MB/, 'a warning');
like($warning, qr/Index "u_v" stays untrained/, 'that names the index');
unlike($warning, qr/ERROR/, 'and no error');
cmp_ok(value($node, "SELECT $frozen"), '<=', 2, 'the table is frozen');
($needed) = $warning =~ /required is (\d+) MB/;
unlike(error_of($node, "SET maintenance_work_mem = '${needed}MB'; VACUUM u"), qr/memory/, 'so much is enough');
is(value($node, "SELECT trained FROM ivfpq_info('u_v')"), 't', 'for training');

# Autovacuum has a bound of its own.
value($node, 'CREATE TABLE w (id int, v vector(64))');
value($node, 'CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 5000)');
value($node, 'INSERT INTO w SELECT i, vec(i, 64) FROM generate_series(1, 10500) AS i');
$node->append_conf('postgresql.conf', "autovacuum = on\nautovacuum_naptime = 1s
maintenance_work_mem = 1GB\nautovacuum_work_mem = 2MB");
$node->reload;
ok($node->wait_for_log(qr/memory required is \d+ MB, autovacuum_work_mem is 2 MB/),
	'a warning of autovacuum');
is(value($node, "SELECT trained FROM ivfpq_info('w_v')"), 'f', 'which trains nothing');

compares($node, 't', 'v <-> vec(0, 200)', 'rows of an index with few lists');
compares($node, 'u', 'v <-> vec(0, 64)', 'rows of an index trained late');
indexes_are_sound($node);
$node->stop;
done_testing();
