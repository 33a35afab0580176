# A streaming standby gives the same answers, its pages are the primary's byte for byte
# (wal_consistency_checking), and it goes on alone when it is promoted.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('primary', streaming => 1, initdb => ['--data-checksums'],
	conf => "wal_consistency_checking = 'all'\nmax_wal_size = 4GB\nallow_in_place_tablespaces = on");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;

# Answers and pages of both. The tie of a page to its position in WAL differs, nothing else.
value($node, 'CREATE EXTENSION pageinspect');
sub same_answers
{
	my ($name) = @_;
	$node->wait_for_catchup($standby);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $ask = "SET enable_seqscan = off;
		SELECT md5(string_agg(id || ' ' || d, ',')) FROM
			(SELECT id, v <-> vec(0, 12) AS d FROM t ORDER BY v <-> vec(0, 12)) AS s;
		SELECT md5(string_agg(id || ' ' || d, ',')) FROM
			(SELECT id, v <=> vec(7, 12) AS d FROM t ORDER BY v <=> vec(7, 12) LIMIT 100) AS s;
		SELECT i.trained, i.rows, i.pending_rows, i.free_bytes, i.bytes FROM ivfpq_info('t_v') AS i;
		SELECT md5(string_agg(md5(substr(get_raw_page('t_v', b::int), 11)), '' ORDER BY b))
		FROM generate_series(0, pg_relation_size('t_v') / 8192 - 1) AS b";
	is(value($standby, $ask), value($node, $ask), $name);
	return;
}

value($node, 'CREATE TABLE t (id bigint, v vector(12))');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 30)');
value($node, 'CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 40, parents = 5)');
same_answers('empty');
value($node, 'INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1, 11000) AS i');
same_answers('untrained');
value($node, 'DELETE FROM t WHERE id % 20 = 0');
value($node, 'VACUUM t');
is(value($node, "SELECT trained FROM ivfpq_info('t_v')"), 't', 'trained by VACUUM');
same_answers('trained');
value($node, 'INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(20001, 23000) AS i');
value($node, 'UPDATE t SET v = vec(id + 7, 12) WHERE id % 10 = 3');
same_answers('written to');
value($node, 'DELETE FROM t WHERE id % 3 = 0');
value($node, 'VACUUM t');
same_answers('vacuumed');
value($node, 'INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(30001, 32000) AS i');
same_answers('space reused');
value($node, 'DELETE FROM t');
value($node, 'VACUUM t');
same_answers('emptied');
value($node, 'INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(1, 5000) AS i');
value($node, 'REINDEX INDEX t_v');
same_answers('built again');
value($node, 'REINDEX INDEX CONCURRENTLY t_cosine');
same_answers('built again concurrently');
value($node, "CREATE TABLESPACE other LOCATION ''");
value($node, 'ALTER INDEX t_v SET TABLESPACE other');
same_answers('moved to a tablespace');
is(value($standby, "SELECT count(*) FROM ivfpq_check('t_v', true)"), 0, 'sound on the standby');
cmp_ok(value($standby, "SELECT ivfpq_recall('t_v', 50, 10)"), '>=', 0.85, 'recall can be measured there');

# The standby restarts in the middle of replay, and crashes.
value($node, 'DELETE FROM t WHERE id % 2 = 0');
value($node, 'VACUUM t');
$standby->stop('immediate');
value($node, 'INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(40001, 42000) AS i');
$standby->start;
same_answers('after a crash of the standby');

# Promoted.
$node->stop;
$standby->promote;
wait_until($standby, 'NOT pg_is_in_recovery()');
compares($standby, 't', 'v <-> vec(0, 12)', 'promoted');
value($standby, 'INSERT INTO t SELECT i, vec(i, 12) FROM generate_series(50001, 51000) AS i');
value($standby, 'DELETE FROM t WHERE id % 5 = 0');
value($standby, 'VACUUM t');
compares($standby, 't', 'v <-> vec(0, 12)', 'and written to');
is(value($standby, "SELECT rows = (SELECT count(*) FROM t) FROM ivfpq_info('t_v')"), 't', 'and vacuumed');
indexes_are_sound($standby);
$standby->stop;
$standby->command_ok([ 'pg_checksums', '--check', '-D', $standby->data_dir ], 'checksums are right');
done_testing();
