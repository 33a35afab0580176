# Inserts cut short by a kill or by an immediate shutdown: after recovery the index has what was
# committed, each row once, and no other.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('crash_insert', conf => "restart_after_crash = on\nmax_connections = 30
wal_consistency_checking = 'generic'\nfull_page_writes = on\nshared_buffers = 1MB");
make_table($node, 't', 8, 3000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 5)');
value($node, 'CREATE TABLE u (LIKE t)');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v)');
value($node, 'CHECKPOINT');

my $next = 3001;
my $committed = 3000;
for my $way ('kill', 'immediate shutdown', 'kill', 'immediate shutdown')
{
	# Some commit, some are in the middle when it happens.
	my @writers = map { session($node) } 1 .. 3;
	for my $writer (@writers)
	{
		for (1 .. 3)
		{
			my $last = $next + 99;
			$writer->query_safe("INSERT INTO t SELECT i, vec(i, 8) FROM generate_series($next, $last) AS i;
				INSERT INTO u SELECT i, vec(i, 8) FROM generate_series($next, $last) AS i");
			$next += 100;
			$committed += 100;
		}
	}
	my $pid = $writers[0]->query_safe('SELECT pg_backend_pid()');
	for my $writer (@writers)
	{
		start($writer, "BEGIN; INSERT INTO t SELECT -i, vec(i, 8) FROM generate_series(1, 1000000) AS i");
	}
	usleep(100_000 + int(rand(400_000)));
	$way eq 'kill' ? kill_backend($node, $pid) : crash($node);
	$_->{run}->kill_kill for @writers;

	is(value($node, 'SELECT count(*) FROM t WHERE id > 0'), $committed, "$way: committed rows are there");
	is(value($node, 'SELECT count(*) FROM t WHERE id < 0'), 0, 'others are not');
	compares($node, 't', 'v <-> vec(0, 8)', 'the index agrees');
	compares($node, 'u', 'v <-> vec(0, 8)', 'untrained too');
	indexes_are_sound($node, 'sound after recovery');
	# What was left in the index goes, and its pages are used again.
	vacuum_all($node, 't');
	is(value($node, "SELECT rows FROM ivfpq_info('t_v')"), $committed, 'VACUUM removes the rest');
	is(value($node, "SELECT 8192 + model_bytes + list_bytes + pending_bytes + free_bytes = bytes
		FROM ivfpq_info('t_v')"), 't', 'no page is lost');
}

# A prepared transaction's rows are there when it commits, after a crash.
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 2');
$node->restart;
value($node, "BEGIN; INSERT INTO t VALUES (-1, vec(-1, 8)); PREPARE TRANSACTION 'p'");
crash($node);
compares($node, 't', 'v <-> vec(0, 8)', 'prepared: not seen');
value($node, "COMMIT PREPARED 'p'");
is(value($node, 'SET enable_seqscan = off; SELECT id FROM t ORDER BY v <-> vec(-1, 8) LIMIT 1'), -1,
	'committed: found');

indexes_are_sound($node);
$node->stop;
done_testing();
