# Up to PostgreSQL 16, old_snapshot_threshold lets VACUUM remove rows that a snapshot sees. A search with such a
# snapshot says so, instead of an answer that may lack rows: by scans, in batches, and where it is exact.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

plan skip_all => 'snapshots do not end' if server_version() >= 17;

# At 0, a snapshot is old after five seconds.
my $node = new_node('old_snapshot', conf => 'old_snapshot_threshold = 0');
value($node, <<'END');
CREATE TABLE trained (id int, v vector(8));
INSERT INTO trained SELECT i, vec(i, 8) FROM generate_series(1, 3000) AS i;
CREATE INDEX trained_v ON trained USING ivfpq (v) WITH (lists = 10);
CREATE TABLE pending (id int, v vector(8));
CREATE INDEX pending_v ON pending USING ivfpq (v);
INSERT INTO pending SELECT i, vec(i, 8) FROM generate_series(1, 200) AS i;
CREATE TABLE queries AS SELECT i AS id, vec(i, 8, 3) AS v FROM generate_series(1, 50) AS i;
ANALYZE;
END

# The nearest ids of all queries, however they are searched.
my %ways = (
	knn_join => "FROM knn_join('queries', 'id', 'v', '%s_v', 'id', 3) AS n(q, id)",
	knn_search => "FROM (SELECT array_agg(v ORDER BY id) AS vs FROM queries) AS q, knn_search('%s_v', vs, 3) AS n
		JOIN %1\$s AS t ON t.ctid = n.ctid",
	'a LATERAL join' => 'FROM queries AS q, LATERAL (SELECT id FROM %s AS t ORDER BY t.v <-> q.v LIMIT 3) AS n');
my @readers;
for my $table ('trained', 'pending')
{
	for my $exact (0, 1)
	{
		for my $way (sort keys %ways)
		{
			my $how = "$table, $way" . ($exact ? ', exact' : '');
			my $search = sprintf("SELECT count(*) $ways{$way}", $table);
			my $session = session($node);
			$session->query_safe('SET ivfpq.executor = cpu; SET enable_sort = off; SET enable_seqscan = off');
			$session->query_safe('SET ivfpq.target_recall = 1') if $exact;
			$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
			is($session->query_safe($search), 150, "$how: found");
			push @readers, { how => $how, search => $search, session => $session };
		}
	}
}
# Whatever changes the place of a list may have been VACUUM, and counts: here pages that are added. Removing rows
# that an old snapshot sees would take VACUUM minutes.
for my $table ('trained', 'pending')
{
	value($node, "UPDATE $table SET v = v") for 1 .. 10;
}
sleep 6;
value($node, "VACUUM (INDEX_CLEANUP ON) $_") for 'trained', 'pending';
for my $reader (@readers)
{
	my $session = $reader->{session};
	start($session, $reader->{search});
	my ($rows, $complaints) = finish($session);
	like($complaints, qr/snapshot too old/, "$reader->{how}: too old");
	is($rows, '', "$reader->{how}: no rows");
	$session->query_safe('ROLLBACK');
	is($session->query_safe($reader->{search}), 150, "$reader->{how}: found by a new snapshot");
	$session->quit;
}
indexes_are_sound($node);
done_testing();
