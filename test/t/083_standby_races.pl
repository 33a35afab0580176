# A scan on a standby stops between two pages of a list, or before it reads any (extension/util/pause.h), while the standby
# replays what the primary has done meanwhile: VACUUM that moves entries and frees pages, inserts that take
# these, training. The scan has the rows of its snapshot, each once.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use Test::More;
use IvfpqTest;

my $primary = new_node('primary', streaming => 1, conf => <<'END');
max_standby_streaming_delay = -1
max_standby_archive_delay = -1
END
$primary->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'copy', has_streaming => 1);
$standby->start;

sub replay
{
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	return;
}

# Without truncation, whose lock the standby would wait for. Each: where the scan stops, after how many passes; the table; what is done before it begins, and what meanwhile.
my $rows = 'SELECT i, ARRAY[i % 100, i / 100] FROM generate_series(0, 11999) AS i';
my $trained = "CREATE TABLE t (id int, v vector(2)); INSERT INTO t $rows; CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 3, m = 2);";
my $pending = "CREATE TABLE t (id int, v vector(2)); CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 3, m = 2); INSERT INTO t $rows;";
my $more = 'INSERT INTO t SELECT 20000 + i, ARRAY[i % 100, 0] FROM generate_series(1, 4000) AS i';
my @cases = (
	[ 'walk', 0, $trained, 'DELETE FROM t WHERE id % 2 = 0', 'VACUUM (TRUNCATE off) t', $more ],
	[ 'walk', 5, $trained, 'DELETE FROM t WHERE id % 2 = 0', 'VACUUM (TRUNCATE off) t', $more ],
	[ 'walk', 2, $trained, 'DELETE FROM t WHERE id >= 100', 'VACUUM (TRUNCATE off) t', $more ],
	[ 'scan', 0, $trained, 'DELETE FROM t WHERE id >= 100', 'VACUUM (TRUNCATE off) t', $more ],
	[ 'scan', 0, $pending, 'DELETE FROM t WHERE id % 10 = 0', 'VACUUM (TRUNCATE off) t', $more ],
	[ 'walk', 3, $pending, 'DELETE FROM t WHERE id % 10 = 0', 'VACUUM (TRUNCATE off) t', $more ]);
for my $case (@cases)
{
	my ($point, $after, $make, @statements) = @$case;
	my $name = "$point after $after, " . ($make eq $trained ? 'trained' : 'pending') . ", $statements[0]";
	value($primary, "SET client_min_messages = error; DROP TABLE IF EXISTS t; $make");
	value($primary, shift @statements);
	replay();
	my $wanted = value($primary, 'SELECT count(*), sum(id) FROM t');
	my ($gate, $reader) = (session($standby), session($standby));
	$gate->query('SELECT pg_advisory_lock(23, 0)');
	# The library is loaded when it is set: pgwarp is not preloaded.
	$reader->query("LOAD 'pgwarp'; SET pgwarp.debug_pause = $point; SET pgwarp.debug_pause_after = $after; SET enable_seqscan = off; SET ivfpq.executor = cpu");
	start($reader, "SELECT count(*), sum(id), count(DISTINCT id) FROM (SELECT id FROM t ORDER BY v <-> '[1,1]') AS s");
	wait_until($standby, "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 23 AND NOT granted)");
	value($primary, $_) for @statements;
	replay();
	$gate->query('SELECT pg_advisory_unlock(23, 0)');
	my ($result, $complaints) = finish($reader);
	is($complaints, '', "$name: no error");
	is($result, "$wanted|" . ($wanted =~ s/\|.*//r), "$name: rows of the snapshot, each once");
	is(value($standby, "SET enable_seqscan = off; SELECT count(*), sum(id) FROM (SELECT id FROM t ORDER BY v <-> '[1,1]') AS s"),
		value($primary, 'SELECT count(*), sum(id) FROM t'), "$name: all rows afterwards");
	$_->quit for $gate, $reader;
}
is(value($standby, "SELECT count(*) FROM ivfpq_check('t_v', true)"), 0, 'the index of the standby is sound');
$standby->stop;
$primary->stop;
done_testing();
