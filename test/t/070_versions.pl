# An extension of an older version becomes what a new one is, with all that depends on it in place.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Catalog;
use IvfpqTest;

my $node = new_node('versions');
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

$node->stop;
done_testing();
