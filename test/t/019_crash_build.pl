# A build cut short: nothing is left of it, or, concurrently, an invalid index, as PostgreSQL does it.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('crash_build', conf => "restart_after_crash = on\nmaintenance_work_mem = 128MB");
make_table($node, 't', 64, 12000);
value($node, 'CREATE INDEX t_good ON t USING ivfpq (v vector_ip_ops) WITH (lists = 10)');

my $cut_short = 0;
for my $way ('kill', 'immediate shutdown')
{
	for my $how ('', 'CONCURRENTLY')
	{
		for my $phase ('training codes', 'encoding rows', 'measuring recall')
		{
			my $build = session($node);
			my $pid = $build->query_safe('SELECT pg_backend_pid()');
			start($build, "CREATE INDEX $how t_v ON t USING ivfpq (v) WITH (lists = 300, parents = 20)");
			my $seen;
			until ($seen)
			{
				$seen = value($node, "SELECT count(*) FROM pg_stat_progress_create_index
					WHERE phase = 'building index: $phase'");
				last unless value($node, "SELECT count(*) FROM pg_stat_activity
					WHERE pid = $pid AND state = 'active'");
			}
			$way eq 'kill' ? kill_backend($node, $pid) : crash($node);
			$build->{run}->kill_kill;
			my $state = value($node, "SELECT indisvalid FROM pg_index WHERE indexrelid =
				(SELECT oid FROM pg_class WHERE relname = 't_v')");
			# It may have come to its end before ours did; then it is whole.
			if ($state eq 't')
			{
				compares($node, 't', 'v <-> vec(0, 64)', "$way, $how $phase: whole");
			}
			else
			{
				is($state, $how ? 'f' : '', "$way, $how $phase: " . ($how ? 'invalid' : 'nothing left'));
				$cut_short++;
			}
			value($node, 'INSERT INTO t SELECT max(id) + 1, vec(max(id), 64) FROM t');
			value($node, 'DROP INDEX IF EXISTS t_v');
		}
	}
}

cmp_ok($cut_short, '>=', 4, "$cut_short of 12 builds were cut short");

# Built again after a crash, and crashed right after: the build is in WAL.
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 100)');
crash($node);
compares($node, 't', 'v <-> vec(0, 64)', 'an index that was just built');
value($node, 'CREATE INDEX CONCURRENTLY t_c ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 50)');
value($node, 'CREATE TABLE e (v vector(3))');
value($node, 'CREATE INDEX e_v ON e USING ivfpq (v)');
crash($node);
compares($node, 't', 'v <=> vec(0, 64)', 'one built concurrently');
value($node, "INSERT INTO e VALUES ('[1,2,3]')");
is(value($node, "SET enable_seqscan = off; SELECT v FROM e ORDER BY v <-> '[1,2,3]'"), '[1,2,3]',
	'one that is empty');
value($node, 'REINDEX INDEX t_v');
crash($node);
compares($node, 't', 'v <-> vec(0, 64)', 'one that was built again');

indexes_are_sound($node);
$node->stop;
done_testing();
