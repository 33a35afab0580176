# What a build leaves behind, however many processes took part. In WAL: the whole index, so that its
# file can be lost in a crash. In files: pages with checksums, those of indexes without WAL as well.
use strict;
use warnings;
use List::Util qw(min);
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('build_files', service => 1, initdb => ['--data-checksums'],
	conf => "wal_level = replica\nmaintenance_work_mem = 512MB\nmin_parallel_table_scan_size = 64kB\nmax_worker_processes = 20");
my $rows = 15000;
make_table($node, 't', 24, $rows);
value($node, 'CREATE EXTENSION pageinspect');
# Without positions in WAL, and without checksums, of which these are a part.
value($node, <<'SQL');
CREATE FUNCTION digest(index regclass) RETURNS text LANGUAGE sql AS $$
	SELECT count(*) || ' pages, ' || md5(string_agg(md5(substr(page, 11)), '' ORDER BY block))
	FROM (SELECT block, get_raw_page(index::text, block::int) AS page
		FROM generate_series(0, pg_relation_size(index) / 8192 - 1) AS block) AS p
$$;
SQL

sub build
{
	my ($executor, $workers, $statement) = @_;
	my $words;
	value($node, "ALTER TABLE t SET (parallel_workers = $workers)");
	$node->psql('postgres', "SET client_min_messages = debug1;\nSET pgwarp.build_executor = '$executor';
		SET max_parallel_maintenance_workers = $workers;\n$statement", stderr => \$words, on_error_stop => 1);
	return $words;
}

# The file is lost in the crash: what comes back is what WAL has of it.
sub survives
{
	my ($index, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = value($node, "SELECT digest('$index')");
	my $path = value($node, "SELECT pg_relation_filepath('$index')");
	$node->stop('immediate');
	truncate($node->data_dir . "/$path", 0) or die "cannot truncate $path: $!";
	# Recovery would sync every file there is.
	$node->append_conf('postgresql.conf', 'fsync = off');
	$node->start;
	return is(value($node, "SELECT digest('$index')"), $before, $name);
}

# Many short lists: a page each, and enough of them for everybody.
my $options = 'USING ivfpq (v) WITH (lists = 600, m = 6)';
my %numbers = (cpu => [ 0, 8 ], gpu => [ 1, 8 ]);
for my $executor ('cpu', 'gpu')
{
	for my $workers (@{ $numbers{$executor} })
	{
		value($node, 'CHECKPOINT');
		my $words = build($executor, $workers, "CREATE INDEX t_v ON t $options");
		if ($workers > 0)
		{
			like($words, qr/to log and measure, .* to wait for $workers workers/, "$workers workers");
			my $ahead = qr/WAL written ahead: \d+ times/;
			$workers >= 4 ? like($words, $ahead, 'of which one writes WAL')
				: unlike($words, $ahead, 'which have better things to do than to write WAL');
		}
		survives('t_v', "$executor, $workers workers: WAL has the index");
		compares($node, 't', 'v <-> vec(0, 24)', 'with every row');
		value($node, 'CHECKPOINT');
		build($executor, $workers, 'REINDEX INDEX CONCURRENTLY t_v');
		survives('t_v', 'built again beside itself');
		indexes_are_sound($node);
		value($node, 'DROP INDEX t_v');
	}
}

# Full pages, more than WAL has buffers for: those who log, and the one who writes, wait for each other.
make_table($node, 'wide', 32, 30000);
value($node, 'ALTER TABLE wide SET (parallel_workers = 6)');
for my $buffers ('64kB', '4MB')
{
	$node->append_conf('postgresql.conf', "wal_buffers = $buffers");
	$node->restart;
	for my $executor ('cpu', 'gpu')
	{
		$node->append_conf('postgresql.conf', 'fsync = on');
		$node->reload;
		wait_until($node, "current_setting('fsync') = 'on'");
		value($node, 'CHECKPOINT');
		my $words = build($executor, 6, 'CREATE INDEX wide_v ON wide USING ivfpq (v) WITH (lists = 20, m = 32)');
		like($words, qr/WAL written ahead: \d+ times/, "$buffers, $executor");
		survives('wide_v', 'WAL has the index');
		compares($node, 'wide', 'v <-> vec(0, 32)', 'with every row');
		indexes_are_sound($node);
		value($node, 'DROP INDEX wide_v');
	}
}

# Cut short, also while the last pages are written and logged: no process goes on. A build that ends before
# its timeout shows how long builds take now.
my $command = 'CREATE INDEX wide_v ON wide USING ivfpq (v) WITH (lists = 20, m = 32)';
my $whole = elapsed(sub { build('gpu', 6, $command) });
value($node, 'DROP INDEX wide_v');
my ($builds, $cut_short) = (0, 0);
for my $percent (40, 60, 70, 80, 85, 90, 95, (40) x 10)
{
	last if $builds >= 7 && $cut_short >= 2;
	++$builds;
	my $timeout = int($whole * 10 * $percent) + 1;
	my $words;
	my $seconds = elapsed(sub { $words = build('gpu', 6, "SET statement_timeout = $timeout; $command") });
	my $cut = $words =~ /canceling statement due to statement timeout/;
	$cut ? ++$cut_short : ($whole = min($whole, $seconds));
	is(value($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'"), 0,
		"after $timeout ms: no worker is left");
	is(value($node, "SELECT count(*) FROM pg_class WHERE relname = 'wide_v'"), $cut ? 0 : 1, 'and no half of an index');
	value($node, 'DROP INDEX IF EXISTS wide_v');
}
cmp_ok($cut_short, '>=', 2, "$cut_short of $builds builds were cut short");

# More entries than memory has room for are sorted in files.
value($node, 'CHECKPOINT');
build('gpu', 0, "SET maintenance_work_mem = '2MB'; CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 60, m = 6)");
survives('t_v', 'with little memory');
indexes_are_sound($node);
# An index that is not trained.
value($node, 'CREATE TABLE few AS SELECT * FROM t LIMIT 700; CREATE INDEX few_v ON few USING ivfpq (v)');
survives('few_v', 'without a model');

# Without WAL there is only the file.
value($node, "CREATE UNLOGGED TABLE u AS SELECT * FROM t; ALTER TABLE u SET (parallel_workers = 5)");
unlike(build('cpu', 5, "CREATE INDEX u_v ON u $options"), qr/WAL written ahead/, 'no WAL to write');
my $before = value($node, "SELECT digest('u_v')");
$node->stop;
command_ok(['pg_checksums', '--check', '-D', $node->data_dir], 'checksums are right');
$node->start;
is(value($node, "SELECT digest('u_v')"), $before, 'an unlogged index after a shutdown');
compares($node, 'u', 'v <-> vec(0, 24)', 'with every row');
indexes_are_sound($node);
$node->stop;
done_testing();
