# Which of two devices has the most room for an index: what a device lacks of an index that is spread over both does not
# make room on it while it has nothing of that index.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

plan skip_all => 'needs devices with little memory' if ($ENV{PGWARP_TEST_DEVICES} // 'host') ne 'host';
my $node = new_node('placement_room', service => 1, conf => <<"END");
pgwarp.devices = 'host,host'
pgwarp.device_memory = 4MB
pgwarp.service_timeout = 10s
enable_seqscan = off
END
sub both_serve { wait_until($node, 'count(*) FILTER (WHERE serves) = 2 FROM pgwarp_devices()'); }
sub places_of { return value($node, "SELECT coalesce(string_agg(place::text, ' ' ORDER BY place), '') FROM pg_stat_pgwarp_devices
	WHERE indexname = '$_[0]' AND resident_lists > 0"); }
both_serve();
make_table($node, $_, 16, 8000) for 'a', 's';
make_table($node, 'b', 16, 2000);
value($node, 'CREATE INDEX a_v ON a USING ivfpq (v) WITH (lists = 20, m = 16, placement = single);
	CREATE INDEX s_v ON s USING ivfpq (v) WITH (lists = 20, m = 16, placement = shard);
	CREATE INDEX b_v ON b USING ivfpq (v) WITH (lists = 20, m = 16, placement = single)');
is(value($node, "SELECT pgwarp_prewarm('a_v')"), 20, 'one index on one device');
is(places_of('a_v'), '0', 'the first');
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 20, 'one as large on both');
is(places_of('s_v'), '0 1', 'a half each');
# The first device loses both, and gets its own one back.
my $before = value($node, 'SELECT pid FROM pgwarp_devices() WHERE place = 0');
kill('TERM', $before);
wait_until($node, "pid <> $before AND serves FROM pgwarp_devices() WHERE place = 0");
both_serve();
is(value($node, "SELECT pgwarp_prewarm('a_v')"), 20, 'again');
is(places_of('a_v'), '0', 'where it was');
is(places_of('s_v'), '1', 'of the other, the second has its half');
is(value($node, "SELECT pgwarp_prewarm('b_v')"), 20, 'a small one');
is(places_of('b_v'), '1', 'on the second: half of an index there is less than a whole one');
# With both halves where they belong, the first has one and a half.
is(value($node, "SELECT pgwarp_prewarm('s_v')"), 20, 'both halves');
is(places_of('s_v'), '0 1', 'on both');
value($node, 'DROP INDEX b_v; CREATE INDEX b_v ON b USING ivfpq (v) WITH (lists = 20, m = 16, placement = single)');
wait_until($node, "count(*) = 3 FROM pg_stat_pgwarp_devices");
is(value($node, "SELECT pgwarp_prewarm('b_v')"), 20, 'a small one again');
is(places_of('b_v'), '1', 'on the second, which has half of one');
indexes_are_sound($node);
$node->stop;
done_testing();
