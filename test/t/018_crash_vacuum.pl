# VACUUM cut short in the middle of removing entries, by a kill and by an immediate shutdown, with
# pages flushed or not: after recovery the index is right, and the next VACUUM finishes the work.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('crash_vacuum', conf => "restart_after_crash = on
wal_consistency_checking = 'generic'\nshared_buffers = 1MB\nvacuum_cost_limit = 1");
make_table($node, 't', 16, 6000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 20, m = 16)');
value($node, 'CREATE TABLE u (LIKE t)');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v)');
value($node, 'INSERT INTO u SELECT * FROM t');

my $interrupted = 0;
for my $round (1 .. 6)
{
	for my $table ('t', 'u')
	{
		value($node, "DELETE FROM $table WHERE id % 6 <> $round % 6");
		value($node, 'CHECKPOINT') if $round % 2;
		my $vacuum = session($node);
		my $pid = $vacuum->query_safe('SELECT pg_backend_pid()');
		$vacuum->query_safe("SET vacuum_cost_delay = '1ms'");
		start($vacuum, "VACUUM $table");
		my $watch = session($node);
		my $phase = "SELECT phase FROM pg_stat_progress_vacuum";
		# It may be over before anybody has looked.
		for (1 .. 1000)
		{
			last if $watch->query_safe($phase) eq 'vacuuming indexes';
			last if $watch->query_safe("SELECT state FROM pg_stat_activity WHERE pid = $pid") eq 'idle';
		}
		usleep(int(rand(80_000)));
		$interrupted++ if $watch->query_safe($phase) eq 'vacuuming indexes';
		$watch->quit;
		$round % 3 ? crash($node) : kill_backend($node, $pid);
		$vacuum->{run}->kill_kill;

		compares($node, $table, 'v <-> vec(0, 16)', "round $round, $table: rows");
		is(value($node, "SELECT count(*) FROM ivfpq_check('${table}_v', true)"), 0, 'sound');
		vacuum_all($node, $table);
		is(value($node, "SELECT rows FROM ivfpq_info('${table}_v')"),
			value($node, "SELECT count(*) FROM $table"), 'the next VACUUM removes the rest');
		value($node, "INSERT INTO $table SELECT i, vec(i * $round, 16) FROM generate_series(1, 6000) AS i
			WHERE i % 6 <> $round % 6");
		compares($node, $table, 'v <-> vec(0, 16)', 'rows, with space reused');
	}
}
cmp_ok($interrupted, '>', 0, "VACUUM was interrupted $interrupted times");
is(value($node, "SELECT 8192 + model_bytes + list_bytes + pending_bytes + free_bytes = bytes
	FROM ivfpq_info('t_v')"), 't', 'no page is lost');

indexes_are_sound($node);
$node->stop;
done_testing();
