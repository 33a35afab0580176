# Connections change rows, vacuum and search at once, over lists that are spread over two devices; each answer is
# compared with the table. Meanwhile workers end and placements change, so that lists move. STRESS_SECONDS makes it
# longer.
use strict;
use warnings;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqStress;
use IvfpqTest;

my $node = new_node('shards_stress', service => 1,
	conf => "pgwarp.devices = 'host,host'\npgwarp.placement = shard\nmax_connections = 60\nwork_mem = 256kB");
wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
srand(seed_of());
my ($moved, $ended) = (0, 0);
my @placements = ('replicate', 'single');
stress($node, 12, $ENV{STRESS_SECONDS} // 8, sub {
	usleep(1_500_000);
	if (rand() < 0.3)
	{
		kill('TERM', value($node, 'SELECT pid FROM pgwarp_devices() WHERE pid IS NOT NULL ORDER BY random() LIMIT 1'));
		$ended++;
		return;
	}
	# Copies that become shards differ by what was appended since.
	for my $placement ($placements[$moved++ % 2], 'shard')
	{
		value($node, "ALTER SYSTEM SET pgwarp.placement = '$placement'");
		value($node, 'SELECT pg_reload_conf()');
		usleep(500_000);
	}
});
note("$moved changes of placement, $ended workers ended");
# A worker may have ended last.
my $both = 0;
for (1 .. 400)
{
	value($node, 'SET enable_seqscan = off; SELECT id FROM t ORDER BY v <-> vec(' . int(rand(1000)) . ', 6) LIMIT 1');
	$both = value($node, "SELECT count(*) FROM pg_stat_pgwarp_devices WHERE indexname = 't_l2' AND batches > 0 AND own_lists > 0");
	last if $both == 2;
	usleep(50_000);
}
is($both, 2, 'both devices serve');
cmp_ok(value($node, 'SELECT sum(service_searches) FROM pg_stat_pgwarp'), '>', 50, 'the service had its share');
is(value($node, 'SELECT sum(busy) FROM pgwarp_devices()'), 0, 'no search is left');
$node->stop;
done_testing();
