# pg_stat_progress_create_index names the phases of a build and counts forward in them; training inside
# VACUUM leaves VACUUM's own view alone.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use IvfpqTest;

# One process: a worker's rows are not counted.
my $node = new_node('progress',
	conf => "max_parallel_maintenance_workers = 0\nmaintenance_work_mem = 256MB");
make_table($node, 't', 128, 15000);

my $build = session($node);
my $watch = session($node);
my $look = "SELECT phase, blocks_total, blocks_done, tuples_total, tuples_done
	FROM pg_stat_progress_create_index";
my @seen;
start($build, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 300)');
my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
while (time < $deadline)
{
	my $row = $watch->query_safe($look);
	last if $row eq '' && @seen;
	push @seen, $row if $row ne '' && (!@seen || $row ne $seen[-1]);
}
my ($result, $complaints) = finish($build);
is($complaints, '', 'the index is built');

my (%counts, @phases, $backwards, $beyond);
my ($last_phase, $last_done) = ('', 0);
for my $row (@seen)
{
	my ($phase, $blocks_total, $blocks_done, $tuples_total, $tuples_done) = split /\|/, $row;
	push @phases, $phase if $phase ne $last_phase;
	my $done = $blocks_done + $tuples_done;
	$counts{$phase}{$done} = 1;
	# PostgreSQL takes the first block of a scan for the last one.
	$backwards = $row
	  if $phase eq $last_phase && $done < $last_done && $last_done != $blocks_total;
	$beyond = $row if ($blocks_total && $blocks_done > $blocks_total)
	  || ($tuples_total && $tuples_done > $tuples_total);
	($last_phase, $last_done) = ($phase, $done);
}
note("phases: @phases");
# Some are over before anybody looks, as a rule.
my @all = map { "building index: $_" } 'sampling rows', 'starting a device', 'training lists', 'training codes',
  'encoding rows', 'sorting entries', 'writing lists', 'measuring recall', 'logging pages';
my %seen = map { $_ => 1 } @phases;
my @named = grep { $_ !~ /initializing/ } @phases;
is_deeply(\@named, [ grep { $seen{$_} } @all ], 'phases come in their order, each once')
  or diag("seen: @phases");
is(scalar(grep { !$seen{$_} } grep { $_ !~ /sampling|starting|sorting|writing|logging/ } @all), 0,
	'the long ones are seen') or diag("seen: @phases");
is($backwards, undef, 'no count goes back within a phase');
is($beyond, undef, 'no count passes its total');
for my $phase ('training lists', 'training codes', 'encoding rows')
{
	cmp_ok(scalar keys %{ $counts{"building index: $phase"} }, '>=', 3, "$phase: counts move");
}

# VACUUM: what it reports of itself is what it reports without training.
value($node, 'CREATE TABLE u (id int, v vector(128))');
value($node, 'CREATE INDEX u_v ON u USING ivfpq (v) WITH (lists = 300)');
value($node, 'INSERT INTO u SELECT * FROM t');
value($node, 'DELETE FROM u WHERE id % 10 = 0');
my $blocks = value($node, "SELECT pg_relation_size('u') / 8192");
start($build, 'VACUUM u');
my %views;
# 17 counts bytes of dead rows' places, no longer rows.
my ($dead_room, $dead_rows) = server_version() >= 17 ? ('max_dead_tuple_bytes', 'num_dead_item_ids')
  : ('max_dead_tuples', 'num_dead_tuples');
my ($begun, $ended, $builds) = (0, 0, 0);
my $until = time + 120;
until (($begun && $ended) || time > $until)
{
	my $row = $watch->query_safe("SELECT phase, heap_blks_total, heap_blks_scanned,
		heap_blks_vacuumed, index_vacuum_count, $dead_room > 0, $dead_rows
		FROM pg_stat_progress_vacuum");
	$views{$row} = 1 if $row ne '';
	$ended = $watch->query_safe("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'VACUUM u%'
		AND state = 'active'") eq '0';
	$begun ||= !$ended;
	$builds++ if $row =~ /cleaning up/ && $watch->query_safe($look) ne '';
}
is($builds, 0, 'no build is reported');
($result, $complaints) = finish($build);
is($complaints, '', 'VACUUM has trained the index');
is(value($node, "SELECT trained FROM ivfpq_info('u_v')"), 't', 'indeed');
my @cleaning = grep { /^cleaning up indexes/ } keys %views;
is(scalar @cleaning, 1, 'cleaning up was seen, in one state throughout')
  or diag(join "\n", sort keys %views);
like($cleaning[0], qr/^cleaning up indexes\|$blocks\|$blocks\|$blocks\|1\|t\|/,
	'with the counts of VACUUM itself');

$build->quit;
$watch->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
