# VACUUM reads an index through its ring of buffers, as it reads the table, and leaves the buffer
# cache to those who query.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('vacuum_ring', conf => 'shared_buffers = 16MB');
plan skip_all => 'pg_buffercache is not installed'
  if error_of($node, 'CREATE EXTENSION pg_buffercache') ne '';
$node->append_conf('postgresql.conf', "vacuum_buffer_usage_limit = '256kB'")
  if value($node, "SELECT count(*) FROM pg_settings WHERE name = 'vacuum_buffer_usage_limit'");
# Two indexes: trained, and with pending entries only.
value($node, 'CREATE TABLE t (id int, v vector(4)) WITH (fillfactor = 50)');
value($node, 'INSERT INTO t SELECT i, ARRAY[i % 251, i % 241, i % 239, i % 233]::vector
	FROM generate_series(1, 20000) AS i');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 700)');
value($node, 'CREATE TABLE u (id int, v vector(4))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v)');

sub buffered
{
	my ($index) = @_;
	return value($node, "SELECT count(*) FROM pg_buffercache
		WHERE relfilenode = pg_relation_filenode('$index')");
}

my $pages = value($node, "SELECT pages FROM ivfpq_info('t_v')");
cmp_ok($pages, '>', 600, "$pages pages");
# Without dead rows it reads the places of lists; with them, every page. They are too few to measure recall again,
# which reads pages more than once.
for my $dead ('false', 'id % 10 = 0', 'id % 10 = 1')
{
	value($node, "DELETE FROM t WHERE $dead");
	$node->restart;
	value($node, 'VACUUM (INDEX_CLEANUP ON) t');
	cmp_ok(buffered('t_v'), '<', 100, "WHERE $dead: few pages are left in the buffer cache");
}
is(value($node, "SELECT rows FROM ivfpq_info('t_v')"), 16000, 'the dead are gone');

# Pages that no structure has are looked for through the ring, too.
value($node, "INSERT INTO u SELECT i, '[1,2,3,4]' FROM generate_series(1, 9000) AS i");
$node->restart;
value($node, 'VACUUM u');
is(value($node, "SELECT rows, trained FROM ivfpq_info('u_v')"), '9000|f', 'an index without a model');

# Who queries keeps what he uses.
value($node, "SET enable_seqscan = off; SET ivfpq.probes = 700;
	SELECT count(*) FROM (SELECT id FROM t ORDER BY v <-> '[1,2,3,4]' LIMIT 5) AS s") for 1 .. 2;
my $used = buffered('t_v');
cmp_ok($used, '>', 600, "a query has $used pages read");
value($node, 'DELETE FROM t WHERE id % 100 = 2');
value($node, 'VACUUM (INDEX_CLEANUP ON) t');
cmp_ok(buffered('t_v'), '>', 600, 'and VACUUM leaves them there');

indexes_are_sound($node);
$node->stop;
done_testing();
