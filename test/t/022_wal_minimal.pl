# wal_level = minimal: a build in the transaction that made the table leaves no WAL, and is there after
# a crash all the same; so is what was inserted behind it.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

# A commit syncs files. Recovery would sync the whole data directory as well, which takes seconds.
sub crash_unsynced
{
	my ($node) = @_;
	$node->append_conf('postgresql.conf', 'fsync = off');
	crash($node);
	$node->append_conf('postgresql.conf', 'fsync = on');
	$node->reload;
	wait_until($node, "current_setting('fsync') = 'on'");
	return;
}

for my $skip ('0', '1GB')
{
	# Above wal_skip_threshold files are synced at commit, below it their pages are logged then.
	my $node = new_node('minimal' . substr($skip, 0, 1), conf => "wal_level = minimal\nmax_wal_senders = 0
wal_skip_threshold = $skip\nfsync = on");
	value($node, "BEGIN;
		CREATE TABLE t AS SELECT i AS id, vec(i, 8)::vector(8) AS v FROM generate_series(1, 3000) AS i;
		CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 10);
		INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(3001, 4000) AS i;
		DELETE FROM t WHERE id % 7 = 0;
		COMMIT");
	value($node, "BEGIN; CREATE TABLE e (id int, v vector(8)); CREATE INDEX e_v ON e USING ivfpq (v);
		INSERT INTO e SELECT i, vec(i, 8) FROM generate_series(1, 500) AS i; COMMIT");
	crash_unsynced($node);
	compares($node, 't', 'v <-> vec(0, 8)', "threshold $skip: built and filled in one transaction");
	compares($node, 'e', 'v <-> vec(0, 8)', 'untrained');
	value($node, 'INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(5001, 6000) AS i');
	value($node, 'VACUUM t');
	crash_unsynced($node);
	compares($node, 't', 'v <-> vec(0, 8)', 'and what came later');
	# Rewritten, truncated, rolled back to a savepoint.
	value($node, "BEGIN; TRUNCATE t; INSERT INTO t SELECT i, vec(i, 8) FROM generate_series(1, 1500) AS i;
		SAVEPOINT a; REINDEX INDEX t_v; INSERT INTO t VALUES (1501, vec(1501, 8)); ROLLBACK TO a;
		INSERT INTO t VALUES (1502, vec(1502, 8)); COMMIT");
	crash_unsynced($node);
	compares($node, 't', 'v <-> vec(0, 8)', 'rolled back to a savepoint');
	is(value($node, 'SELECT count(*) FROM t'), 1501, 'with the rows that were committed');
	value($node, 'BEGIN; REINDEX INDEX t_v; INSERT INTO t VALUES (1503, vec(1503, 8)); ROLLBACK');
	value($node, 'VACUUM FULL t');
	crash_unsynced($node);
	compares($node, 't', 'v <-> vec(0, 8)', 'rewritten');
	indexes_are_sound($node);
	$node->stop;
}
done_testing();
