# Fifty connections change rows, vacuum and search at once, through the service; and then a few with
# so little memory for lists that most of them come and go.
use strict;
use warnings;
use Test::More;
use IvfpqStress;
use IvfpqTest;

my $node = new_node('service_stress', service => 1,
	conf => "max_connections = 80\nwork_mem = 256kB");
stress($node, 50, $ENV{STRESS_SECONDS} // 8);
cmp_ok(value($node, 'SELECT sum(service_searches) FROM pg_stat_pgwarp'), '>', 50,
	'the service had its share');
cmp_ok(value($node, 'SELECT sum(reloads) FROM pg_stat_pgwarp'), '>', 0, 'lists came again');
$node->stop;

my $small = new_node('service_small', service => 1,
	conf => "max_connections = 40\npgwarp.device_memory = 3MB");
value($small, 'CREATE TABLE w (id bigint, v vector(64))');
value($small, 'INSERT INTO w SELECT i, vec(i, 64) FROM generate_series(1, 60000) AS i');
value($small, 'CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 300, m = 64)');
my $first = value($small, "SELECT pgwarp_prewarm('w_v')");
cmp_ok($first, '<', 300, 'the index is larger than the memory for it');
cmp_ok($first, '>', 20, 'what fits is there');
is(value($small, 'SELECT evictions FROM pg_stat_pgwarp'), 0,
	'and was not driven out by what does not');
my $partly = value($small, <<'SQL');
SET enable_seqscan = off;
SET ivfpq.probes = 300;
SET ivfpq.executor = 'service';
DO $$
DECLARE
	wrong int := 0;
	by_service int := 0;
	near bigint[];
	exact bigint[];
BEGIN
	FOR n IN 1 .. 50 LOOP
		SELECT array_agg(id) INTO near FROM (SELECT id FROM w ORDER BY v <-> vec(n, 64) LIMIT 5) AS s;
		by_service := by_service + (SELECT (path = 'service' AND lists_read > 0)::int
									FROM ivfpq_last_scan());
		SET LOCAL ivfpq.executor = 'cpu';
		SELECT array_agg(id) INTO exact FROM (SELECT id FROM w ORDER BY v <-> vec(n, 64) LIMIT 5) AS s;
		SET LOCAL ivfpq.executor = 'service';
		wrong := wrong + (near IS DISTINCT FROM exact)::int;
	END LOOP;
	CREATE TABLE result AS SELECT wrong, by_service;
END
$$;
SELECT * FROM result;
SQL
my ($wrong, $by_service) = split /\|/, $partly;
is($wrong, 0, 'answers are put together from the service and from pages');
# On a device one in a while finds no room beside the lists, which then give way.
cmp_ok($by_service, '>=', ($ENV{PGWARP_TEST_DEVICES} // 'host') eq 'host' ? 50 : 45, 'all of them');
cmp_ok(value($small, 'SELECT evictions FROM pg_stat_pgwarp'), '>', 0, 'lists gave way to others');
indexes_are_sound($small);
$small->stop;
done_testing();
