# Indexes whose vectors are rotated, whose codes share bytes, or are searched for: the service finds in
# them what the pages have, also after writes; crashes lose nothing; a standby has the same.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('quantizers', service => 1, streaming => 1,
	conf => "wal_consistency_checking = 'generic'\nwal_keep_size = 1GB\nmin_parallel_table_scan_size = 64kB");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');

my %options = (lsq => 'quantizer = lsq, m = 3, rounds = 4', opq => 'quantizer = opq, dims = 6, m = 3',
	halves => 'bits = 4, m = 4');
for my $name (sort keys %options)
{
	make_table($node, $name, 10, 3000);
	value($node, "ALTER TABLE $name SET (parallel_workers = 2);
		CREATE INDEX ${name}_v ON $name USING ivfpq (v) WITH (lists = 8, $options{$name})");
}

# The ten nearest of many queries, by every way there is.
sub answers
{
	my ($server, $table, $executor) = @_;
	return value($server, "SET enable_seqscan = off; SET ivfpq.executor = '$executor'; SET ivfpq.probes = 8;
		SET ivfpq.candidates = 200;
		SELECT string_agg((SELECT string_agg(id::text, ' ') FROM
			(SELECT id FROM $table ORDER BY v <-> vec(q, 10, 5) LIMIT 10) AS s), ', ')
		FROM generate_series(1, 30) AS q;
		SELECT path FROM ivfpq_last_scan()");
}

sub agree
{
	my ($what) = @_;
	$node->wait_for_catchup($standby);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $table (sort keys %options)
	{
		my ($pages, $path) = split("\n", answers($node, $table, 'cpu'));
		is($path, 'cpu', "$table, $what: from the pages");
		is(answers($node, $table, 'service'), "$pages\nservice", "$table, $what: the service");
		is(answers($standby, $table, 'cpu'), "$pages\ncpu", "$table, $what: the standby");
		compares($node, $table, 'v <-> vec(0, 10)', "$table, $what: every row");
	}
	indexes_are_sound($node);
	return;
}

agree('built');
for my $table (sort keys %options)
{
	value($node, "INSERT INTO $table SELECT i, vec(i, 10) FROM generate_series(3001, 3300) AS i;
		DELETE FROM $table WHERE id % 5 = 0");
}
agree('written to');
for my $table (sort keys %options)
{
	value($node, "VACUUM $table");
}
agree('vacuumed');

# Some inserts commit, others are in the middle when the server ends.
for my $table (sort keys %options)
{
	value($node, "INSERT INTO $table SELECT i, vec(i, 10) FROM generate_series(4001, 4100) AS i");
	my $writer = session($node);
	start($writer, "BEGIN; INSERT INTO $table SELECT -i, vec(i, 10) FROM generate_series(1, 1000000) AS i");
	Time::HiRes::usleep(100_000 + int(rand(200_000)));
	crash($node);
	$writer->{run}->kill_kill;
	is(value($node, "SELECT count(*) FROM $table WHERE id < 0"), 0, "$table: what was not committed is gone");
	is(value($node, "SELECT count(*) FROM $table WHERE id > 4000"), 100, "$table: the rest is there");
}
wait_until($node, 'count(*) FILTER (WHERE serves) = 1 FROM pgwarp_devices()');
agree('after crashes');

# Built again, and trained by VACUUM.
value($node, 'REINDEX INDEX CONCURRENTLY lsq_v');
value($node, 'TRUNCATE opq; INSERT INTO opq SELECT i, vec(i, 10) FROM generate_series(1, 10500) AS i');
value($node, 'VACUUM opq');
value($node, 'TRUNCATE lsq; INSERT INTO lsq SELECT i, vec(i, 10) FROM generate_series(1, 10500) AS i');
value($node, 'VACUUM lsq');
is(value($node, "SELECT string_agg(trained || ' ' || quantizer, ', ') FROM unnest(ARRAY['lsq_v', 'opq_v']) AS i,
	ivfpq_info(i::regclass)"), 'true lsq, true opq', 'trained by VACUUM');
agree('trained by VACUUM');
$standby->stop;
$node->stop;
done_testing();
