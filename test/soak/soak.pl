# Every path at once, for as long as SOAK_SECONDS says (scripts/soak): clients change rows, VACUUM and search
# on a server with the service and on its standby, and every answer is compared with an exact one.
# Meanwhile something happens in each round: indexes are built again beside the clients, the server
# crashes, a backend or the service's worker is killed, the worker hangs, the standby takes over. After
# each round all indexes are sound, and have the table's rows.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);
use IvfpqStress;
use IvfpqTest;

my $end = time + ($ENV{SOAK_SECONDS} // 60);
my $round_seconds = $ENV{SOAK_ROUND} // 20;
my $seed = seed_of();
my $conf = <<'END';
max_connections = 60
restart_after_crash = on
shared_buffers = 16MB
work_mem = 256kB
hot_standby_feedback = on
max_standby_streaming_delay = -1
max_standby_archive_delay = -1
wal_receiver_status_interval = 1s
pgwarp.service_timeout = 2s
ivfpq.audit_every = 50
END
my $primary = new_node('soak0', streaming => 1, service => 1, conf => $conf);
prepare_stress($primary);
my $servers = 1;
my $standby = new_standby();

sub new_standby
{
	my $name = 'soak' . $servers++;
	$primary->backup($name);
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup($primary, $name, has_streaming => 1);
	$node->start;
	return $node;
}

# Until the server has recovered: those who ask it before are turned away.
sub wait_for_recovery
{
	my ($node) = @_;
	for (1 .. 600)
	{
		my $answer = eval { value($node, 'SELECT pg_is_in_recovery()') } // '';
		return if $answer eq 'f';
		sleep(0.2);
	}
	die 'the server does not come back';
}

sub worker_of
{
	my ($node) = @_;
	return value($node, "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pgwarp%' AND backend_type NOT LIKE '%audit%' LIMIT 1");
}

# What can happen, and whether it ends the clients of the primary, or of the standby.
my %events = (
	nothing => [ '', sub { } ],
	reindex => [ '', sub {
		$primary->safe_psql('postgres', "REINDEX INDEX CONCURRENTLY $_") for qw(t_l2 t_cosine t_part) } ],
	vacuum_full => [ '', sub { $primary->safe_psql('postgres', 'SET lock_timeout = 0; VACUUM FULL t') } ],
	crash => [ 'primary', sub { crash($primary) } ],
	crash_of_standby => [ 'standby', sub { crash($standby) } ],
	killed_backend => [ 'primary', sub {
		kill('KILL', value($primary, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
			AND pid <> pg_backend_pid() LIMIT 1"));
		sleep(1);
		wait_for_recovery($primary) } ],
	killed_worker => [ 'primary', sub { my $pid = worker_of($primary) or return;
		kill('KILL', $pid);
		sleep(1);
		wait_for_recovery($primary) } ],
	ended_worker => [ '', sub { my $pid = worker_of($primary); kill('TERM', $pid) if $pid } ],
	hung_worker => [ '', sub { my $pid = worker_of($primary) or return;
		kill('STOP', $pid); sleep(4); kill('CONT', $pid) } ],
	hung_worker_of_standby => [ '', sub { my $pid = worker_of($standby) or return;
		kill('STOP', $pid); sleep(4); kill('CONT', $pid) } ],
	failover => [ 'both', sub {
		$primary->stop('immediate');
		$standby->promote;
		$primary->teardown_node;
		$primary = $standby;
		$standby = new_standby() } ]);

my $lost = qr/server closed the connection|terminating connection|could not connect|shutting down|starting up|recovery mode|Connection refused|No such file|client \d+ aborted|Run was aborted|aborted in|connection to server|not yet accepting/;

my ($rounds, $transactions, %happened) = (0, 0);
while (time < $end)
{
	my @names = sort keys %events;
	my $name = $names[ int(rand(@names)) ];
	my ($ends, $event) = @{ $events{$name} };
	$happened{$name}++;
	my $what = "round $rounds, $name";
	note($what);
	my $of_primary = start_clients($primary, 6, $round_seconds, $seed + $rounds);
	my $of_standby = start_clients($standby, 3, $round_seconds, $seed + $rounds, qw(whole first batch cursor));
	sleep($round_seconds * (0.2 + rand(0.4)));
	eval { $event->(); 1 } or do { fail("$what: $@"); last };
	for ([ 'primary', $of_primary ], [ 'standby', $of_standby ])
	{
		my ($where, $run) = @$_;
		my ($status, $done, @errors) = finish_clients($run);
		@errors = grep { $_ !~ $lost } @errors if $ends eq $where || $ends eq 'both';
		# A function that was given an index by its name may find that REINDEX has put another in its place.
		@errors = grep { !/could not open relation with OID|Run was aborted/ } @errors if $name eq 'reindex';
		is(join("\n", @errors), '', "$what: answers of the $where agree");
		$transactions += $done;
	}
	compares($primary, 't', 'v <-> vec(0, 6)', "$what: at rest");
	indexes_are_sound($primary, "$what: indexes of the primary are sound");
	$primary->wait_for_catchup($standby);
	compares($standby, 't', 'v <-> vec(0, 6)', "$what: at rest, on the standby");
	indexes_are_sound($standby, "$what: indexes of the standby are sound");
	is(value($standby, 'SELECT count(*), sum(id) FROM t'), value($primary, 'SELECT count(*), sum(id) FROM t'), "$what: the same rows");
	# The table stays as large as searches of all of it bear.
	$primary->safe_psql('postgres', 'DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY id LIMIT greatest(0, (SELECT count(*) FROM t) - 15000))');
	++$rounds;
	last unless Test::More->builder->is_passing;
}
diag("$rounds rounds, $transactions transactions on the way: " . join(', ', map { "$happened{$_} $_" } sort keys %happened));
cmp_ok($transactions, '>', 0, 'there was something to compare');
$_->stop for $standby, $primary;
done_testing();
