# Connections change rows, vacuum and search at once, over an index in parts that several devices have each; each answer is
# compared with the table. Meanwhile workers end and placements change, so that copies come and go. STRESS_SECONDS makes it
# longer.
use strict;
use warnings;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqStress;
use IvfpqTest;

my $node = new_node('shard_copies_stress', service => 1, conf => <<'END');
pgwarp.devices = 'host,host,host,host,host,host'
pgwarp.device_memory = 2MB
max_connections = 60
max_worker_processes = 20
work_mem = 256kB
END
wait_until($node, 'count(*) FILTER (WHERE serves) = 6 FROM pgwarp_devices()');
srand(seed_of());
my ($moved, $ended, $copies) = (0, 0, 0);
sub copies { return value($node, "SELECT count(*) - count(DISTINCT part) FROM pg_stat_pgwarp_devices WHERE indexname = 't_l2' AND part IS NOT NULL"); }
my $grown = 0;
stress($node, 8, $ENV{STRESS_SECONDS} // 10, sub {
	# Larger than a device.
	value($node, 'INSERT INTO t (v) SELECT vec(i, 6) FROM generate_series(11001, 45000) AS i; VACUUM t') unless $grown++;
	usleep(1_500_000);
	$copies = copies() if $copies < copies();
	if (rand() < 0.5)
	{
		kill('TERM', value($node, 'SELECT pid FROM pgwarp_devices() WHERE pid IS NOT NULL ORDER BY random() LIMIT 1'));
		$ended++;
		return;
	}
	for my $placement ('shard', 'auto')
	{
		value($node, "ALTER SYSTEM SET pgwarp.placement = '$placement'");
		value($node, 'SELECT pg_reload_conf()');
		usleep(500_000);
	}
	$moved++;
});
note("$moved changes of placement, $ended workers ended, up to $copies copies of parts");
# On a busy machine they may come only now, of an index that is still larger than a device.
$copies = copies() if $copies < copies();
value($node, 'INSERT INTO t (v) SELECT vec(i, 6) FROM generate_series(45001, 80000) AS i; VACUUM t') if $copies == 0;
soon('[1-9]\d*', 'there were copies', sub { return $copies || copies() },
	sub { value($node, 'SET enable_seqscan = off; SELECT id FROM t ORDER BY v <-> vec(1, 6) LIMIT 1') });
cmp_ok(value($node, 'SELECT sum(service_searches) FROM pg_stat_pgwarp'), '>', 50, 'the service had its share');
is(value($node, 'SELECT sum(busy) FROM pgwarp_devices()'), 0, 'no search is left');
$node->stop;
done_testing();
