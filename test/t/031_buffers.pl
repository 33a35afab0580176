# Pages that scans find again without looking them up count as used all the same, and stay in the
# buffer cache.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('buffers');
make_table($node, 't', 8, 3000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 10)');
plan skip_all => 'pg_buffercache is not installed'
  if error_of($node, 'CREATE EXTENSION pg_buffercache') ne '';
# From an empty cache.
$node->restart;
value($node, <<'SQL');
SET enable_seqscan = off;
SET ivfpq.enable_batched_join = off;
SELECT count(*) FROM generate_series(1, 300) AS i,
	LATERAL (SELECT id FROM t ORDER BY v <-> vec(i, 8) LIMIT 3) AS s;
SQL
is(value($node, "SELECT min(usagecount) > 1 FROM pg_buffercache
	WHERE relfilenode = pg_relation_filenode('t_v') AND relblocknumber < 3"), 't',
	'the metapage and the model are used much');
indexes_are_sound($node);
$node->stop;
done_testing();
