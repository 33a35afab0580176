# Connections change rows, vacuum and search at once, over copies on two devices; each answer is compared with
# the table. STRESS_SECONDS makes it longer.
use strict;
use warnings;
use Test::More;
use IvfpqStress;
use IvfpqTest;

my $node = new_node('replicas_stress', service => 1,
	conf => "pgwarp.devices = 'host,host'\npgwarp.placement = replicate\nmax_connections = 60\nwork_mem = 256kB");
wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
stress($node, 12, $ENV{STRESS_SECONDS} // 6);
is(value($node, "SELECT count(*) FROM pg_stat_pgwarp_devices WHERE indexname = 't_l2' AND batches > 0"), 2, 'both devices have served');
cmp_ok(value($node, 'SELECT sum(service_searches) FROM pg_stat_pgwarp'), '>', 50, 'the service had its share');
is(value($node, 'SELECT sum(busy) FROM pgwarp_devices()'), 0, 'no search is left');
$node->stop;
done_testing();
