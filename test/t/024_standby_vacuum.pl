# Queries and checks on a standby while the primary writes and vacuums: each whole scan has the rows
# of its snapshot, each once, and replay never waits for a reader that waits for replay.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use IvfpqTest;

my $seed = seed_of();
my $seconds = $ENV{STRESS_SECONDS} // 10;
# No query is cancelled for the sake of replay: feedback keeps old rows on the primary.
my $node = new_node('primary', streaming => 1, conf => 'shared_buffers = 16MB');
make_table($node, 't', 6, 6000);
# Few entries a page: lists of several pages, and pages that come and go.
value($node, 'CREATE TABLE w (id bigint, v vector(800))');
value($node, 'INSERT INTO w SELECT i, array_fill(i, ARRAY[800])::vector FROM generate_series(1, 1500) AS i');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 5)');
value($node, 'CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 2, m = 800)');
value($node, 'CREATE TABLE p (id bigint, v vector(6))');
value($node, 'CREATE INDEX p_v ON p USING ivfpq (v)');
value($node, 'INSERT INTO p SELECT i, vec(i, 6) FROM generate_series(1, 12000) AS i');
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby_feedback = on\nwal_receiver_status_interval = 1
max_standby_streaming_delay = -1");
$standby->start;
$node->wait_for_catchup($standby);

# On the standby, whole scans against exact ones in one snapshot.
my $whole = <<'SQL';
DO $do$
DECLARE
	name text;
	ids bigint[];
	exact bigint[];
	bad text;
BEGIN
	FOREACH name IN ARRAY ARRAY['t', 'p', 'w'] LOOP
		PERFORM set_config('enable_seqscan', 'off', true);
		EXECUTE format('SELECT coalesce(array_agg(id), ''{}'') FROM (SELECT id FROM %I ORDER BY v <-> %s) AS s',
			name, CASE WHEN name = 'w' THEN 'array_fill(700, ARRAY[800])::vector' ELSE 'vec(5, 6)' END)
		INTO ids;
		PERFORM set_config('enable_seqscan', 'on', true);
		EXECUTE format('SELECT coalesce(array_agg(id ORDER BY id), ''{}'') FROM %I', name) INTO exact;
		IF (SELECT coalesce(array_agg(i ORDER BY i), '{}') FROM unnest(ids) AS i) <> exact THEN
			RAISE 'scan of % has % rows, % different; the table has %', name, cardinality(ids),
				(SELECT count(DISTINCT i) FROM unnest(ids) AS i), cardinality(exact);
		END IF;
	END LOOP;
END
$do$
SQL
my @readers;
for my $work ($whole, $whole, "SELECT count(*) FROM ivfpq_check('w_v'), ivfpq_info('w_v')")
{
	my $reader = session($standby);
	$reader->query_safe('SET default_transaction_isolation = \'repeatable read\'');
	push @readers, { session => $reader, work => $work, runs => 0 };
}
my $writer = session($node);
my @writes = (
	'INSERT INTO w SELECT -i, array_fill(i, ARRAY[800])::vector FROM generate_series(1, 300) AS i',
	'DELETE FROM w WHERE id < 0', 'VACUUM w',
	'UPDATE t SET v = vec(id + %d, 6) WHERE id %% 4 = 0', 'DELETE FROM t WHERE id %% 50 = %d %% 50',
	'INSERT INTO t SELECT i, vec(i, 6) FROM generate_series(%d, %d + 100) AS i', 'VACUUM t', 'VACUUM p',
	'DELETE FROM p WHERE id %% 10 = %d %% 10', 'VACUUM p');
my ($complaints, $next) = ('', 1_000_000);
my $end = time + $seconds;
$_->{session}->query_until(qr/begins/, "\\echo begins\n") for @readers;
while (time < $end)
{
	for my $reader (@readers)
	{
		start($reader->{session}, $reader->{work});
	}
	for (1 .. 6)
	{
		my $statement = $writes[ int(rand(@writes)) ];
		my $number = $next += 200;
		$writer->query_safe($statement =~ /%d/ ? sprintf($statement, $number, $number) : sprintf($statement));
	}
	for my $reader (@readers)
	{
		my (undef, $said) = finish($reader->{session});
		$complaints .= $said;
		$reader->{runs}++;
	}
}
is($complaints, '', "no reader was wrong in $readers[0]{runs} rounds");
ok($node->wait_for_catchup($standby) // 1, 'replay has not stopped');
is(value($standby, "SELECT count(*) FROM ivfpq_check('$_', true)"), 0, "$_ is sound on the standby")
  for 't_v', 'w_v', 'p_v';
is(value($standby, "SELECT trained FROM ivfpq_info('p_v')"), 't', 'p was trained meanwhile');

# Replay and ivfpq_check both want the metapage and free pages: many checks while pages are taken.
my $check = session($standby);
start($check, "DO \$\$ BEGIN FOR i IN 1 .. 3000 LOOP PERFORM ivfpq_check('w_v'); END LOOP; END \$\$");
for (1 .. 6)
{
	$writer->query_safe($writes[0]);
	$writer->query_safe($writes[1]);
	$writer->query_safe('VACUUM w');
}
(undef, $complaints) = finish($check);
is($complaints, '', 'checks go on');
ok($node->wait_for_catchup($standby) // 1, 'and so does replay');

$_->quit for $writer, $check, map { $_->{session} } @readers;
indexes_are_sound($standby, 'sound on the standby');
$standby->stop;
indexes_are_sound($node);
$node->stop;
done_testing();
