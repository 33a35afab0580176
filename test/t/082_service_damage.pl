# A backend that goes wrong leaves anything in the service's shared memory (test/modules/test_service.cpp):
# the worker neither crashes nor hangs, it stays the same process, and searches of others return what the
# CPU finds on the pages. When it is over, the service answers as before. DAMAGES is the number of damages of
# each kind: few by default, by hand:
#
#   DAMAGES=1000000 PGWARP_TEST_LIMIT=36000 scripts/test tap 082_service_damage
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $damages = $ENV{DAMAGES} // 1000;
my $seed = seed_of();
my $node = new_node('damage', service => 1, conf => <<'END');
restart_after_crash = off
max_connections = 30
pgwarp.max_searches = 12
pgwarp.service_timeout = 50ms
maintenance_work_mem = 16MB
END
value($node, <<'SQL');
CREATE FUNCTION service_damage(index oid, other oid, seed bigint, first int, count int, what text, size bigint) RETURNS void
	AS 'test_service' LANGUAGE C STRICT;
CREATE TABLE good (id int, v vector(8), small int);
INSERT INTO good SELECT i, vec(i, 8), i % 5 FROM generate_series(1, 3000) AS i;
CREATE INDEX good_v ON good USING ivfpq (v, small) WITH (lists = 12, m = 4);
CREATE TABLE victim (LIKE good);
INSERT INTO victim SELECT id, v, small FROM good WHERE id <= 1500;
CREATE INDEX victim_v ON victim USING ivfpq (v, small) WITH (lists = 5, m = 4);

-- Searches by the service, or by the CPU if that has to; each compared with one of the CPU's. Returns how many
-- of them the service has answered.
CREATE FUNCTION compare_searches(first int, count int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	by_service int := 0;
	how record;
	found float8[];
	right_ones float8[];
	condition text;
BEGIN
	FOR n IN first .. first + count - 1 LOOP
		condition := CASE n % 3 WHEN 0 THEN 'true' WHEN 1 THEN 'small < 3' ELSE 'small IN (1, 4)' END;
		PERFORM set_config('ivfpq.executor', 'auto', true);
		EXECUTE format('SELECT array_agg(d) FROM (SELECT v <-> vec($1, 8, 3) AS d FROM good WHERE %s ORDER BY v <-> vec($1, 8, 3) LIMIT 7) AS s', condition)
			INTO found USING n;
		SELECT * INTO how FROM ivfpq_last_scan();
		by_service := by_service + (how.path = 'service')::int;
		PERFORM set_config('ivfpq.executor', 'cpu', true);
		EXECUTE format('SELECT array_agg(d) FROM (SELECT v <-> vec($1, 8, 3) AS d FROM good WHERE %s ORDER BY v <-> vec($1, 8, 3) LIMIT 7) AS s', condition)
			INTO right_ones USING n;
		IF found IS DISTINCT FROM right_ones THEN
			RAISE 'search % is wrong: % instead of %, by %, and by % of the CPU', n, found, right_ones, how,
				(SELECT s FROM ivfpq_last_scan() AS s);
		END IF;
	END LOOP;
	RETURN by_service;
END
$$;
SQL
my $settings = 'SET enable_seqscan = off; SET ivfpq.probes = 12; SET search_path = public, ivfpq_test;';
my $size = value($node, "SELECT size FROM pg_shmem_allocations WHERE name = 'pgwarp'");

# The service has both indexes and answers.
sub warm
{
	my $answered = 0;
	for (1 .. 20)
	{
		$node->psql('postgres', "SELECT pgwarp_prewarm('good_v'), pgwarp_prewarm('victim_v')");
		$answered = value($node, "$settings SELECT compare_searches(1, 30)");
		last if $answered == 30;
		Time::HiRes::usleep(100_000);
		note("answered $answered: ", value($node, "$settings SELECT compare_searches(1, 1); SELECT path, reason FROM ivfpq_last_scan();
			SET ivfpq.executor = auto; SELECT id FROM good ORDER BY v <-> vec(1,8) LIMIT 1; SELECT path, reason FROM ivfpq_last_scan()"));
	}
	return $answered;
}
is(warm(), 30, 'the service answers');
my $worker = value($node, 'SELECT pid FROM pgwarp_service()');

for my $what (qw(slots loads rings forgets all))
{
	my @kinds = $what eq 'all' ? qw(slots loads rings forgets) : $what;
	my @mad = map { session($node) } @kinds;
	my @others = map { session($node) } 1 .. 2;
	my ($rounds, $first, $answered) = (4, 0, 0);
	for my $round (1 .. $rounds)
	{
		my $count = int($damages / $rounds / @kinds);
		start($mad[$_], "SELECT service_damage('victim_v'::regclass, 'good_v'::regclass, $seed, @{[ $first * @kinds ]}, $count, '$kinds[$_]', $size)")
		  for 0 .. $#mad;
		start($_, "$settings SELECT compare_searches($first, 60)") for @others;
		# Sends the victim's model and lists, for the loads to be damaged.
		$node->psql('postgres', "SELECT pgwarp_prewarm('victim_v')");
		for my $session (@others)
		{
			my ($result, $complaints) = finish($session);
			is($complaints, '', "$what: searches of others are right, round $round");
			$answered += $1 if $result =~ /(\d+)\s*$/;
		}
		for my $session (@mad)
		{
			my ($result, $complaints) = finish($session);
			is($complaints, '', "$what: damage is done, round $round");
		}
		$first += $count;
	}
	$_->quit for @mad, @others;
	note("$what: the service answered $answered of ", 60 * 2 * $rounds, ' searches');
	is(value($node, 'SELECT pid FROM pgwarp_service()'), $worker, "$what: the worker lives");
	is(warm(), 30, "$what: the service answers again");
	is(value($node, "$settings SET ivfpq.executor = 'service'; SELECT count(*) FROM (SELECT id FROM good ORDER BY v <-> vec(1, 8) LIMIT 5) AS s"),
		5, "$what: and does so when it has to");
}
my $log = slurp_file($node->logfile);
unlike($log, qr/terminated by signal|PANIC|TRAP:|pgwarp service (ends|was ended)/, 'no crash');
like($log, qr/pgwarp service could not take in/, 'what is wrong was noticed');
note($_) for $log =~ /(pgwarp service could not take in.*)/g;
indexes_are_sound($node);
$node->stop;
done_testing();
