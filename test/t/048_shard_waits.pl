# An index spread over two devices, one of which is slow or hangs: a search has all of pgwarp.service_timeout for both, as
# no other device has the part; and a statement goes on with the other device's part.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use IvfpqTest;

my $device = $ENV{PGWARP_TEST_DEVICES} // 'host';
$device = '0' if $device eq 'auto';
# Slow is a second: more than half of it.
my $timeout_ms = 1900;
my $node = new_node('shard_waits', service => 1, conf => <<"END");
pgwarp.devices = '$device,$device'
pgwarp.device_memory = 300MB
pgwarp.service_timeout = $timeout_ms
pgwarp.watchdog_timeout = 12s
ivfpq.probes = 16
ivfpq.candidates = 50
enable_seqscan = off
END
wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
make_table($node, 's', 8, 3000);
value($node, 'CREATE INDEX s_v ON s USING ivfpq (v) WITH (lists = 16, placement = shard)');
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 16, 'it is resident');
my $own = value($node, "SELECT own_lists FROM pg_stat_pgwarp_devices WHERE indexname = 's_v' AND place = 1");
cmp_ok($own, '>', 0, 'a part of it on each device');

sub fault { return set_fault($node, $_[0], device => 1, workers => 2); }

is(value($node, 'SELECT id FROM s ORDER BY v <-> vec(7, 8) LIMIT 1; SELECT path, lists_read FROM ivfpq_last_scan()'), "7\nservice|0",
	'both devices answer');
fault('slow');
my $begin = time;
is(value($node, 'SELECT id FROM s ORDER BY v <-> vec(8, 8) LIMIT 1; SELECT path, lists_read FROM ivfpq_last_scan()'), "8\nservice|0",
	'slow: it is waited for, and no list is read from pages');
cmp_ok(time - $begin, '>=', 0.9, 'slow: as long as it takes');

# Three searches of one statement: the first waits in vain, the others do not, and all of them ask the other device.
fault('hung');
$begin = time;
is(value($node, 'SELECT array_agg((SELECT id FROM s ORDER BY v <-> vec(n, 8) LIMIT 1) ORDER BY n) FROM generate_series(1, 3) AS n;
	SELECT path, lists_read FROM ivfpq_last_scan()'), "{1,2,3}\nservice|$own", 'hung: the other device and the pages');
my $seconds = time - $begin;
cmp_ok($seconds, '<', $timeout_ms / 1000 + 1.5, 'hung: one search of the statement waits');
$begin = time;
is(value($node, 'SELECT id FROM s ORDER BY v <-> vec(4, 8) LIMIT 1; SELECT path, lists_read FROM ivfpq_last_scan()'), "4\nservice|$own",
	'hung: so does the next statement');
cmp_ok(time - $begin, '<', $timeout_ms / 1000, 'without waiting');
value($node, 'ALTER SYSTEM RESET pgwarp.debug_fault');
value($node, 'SELECT pg_reload_conf()');
wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()');
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 16, 'its worker ends, and another one has the part again');
is(value($node, 'SELECT id FROM s ORDER BY v <-> vec(9, 8) LIMIT 1; SELECT path, lists_read FROM ivfpq_last_scan()'), "9\nservice|0",
	'both devices answer again');
indexes_are_sound($node);
$node->stop;
done_testing();
