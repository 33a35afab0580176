# What the TAP tests of ivfpq share: servers, sessions, seeds, and the last word of every test.
package IvfpqTest;
use strict;
use warnings;
use Exporter 'import';
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# Sessions note down every statement, which fills logs where a test asks a thousand times.
{
	no warnings 'redefine';
	*PostgreSQL::Test::BackgroundPsql::note = sub { };
}

our @EXPORT = qw(new_node server_version seed_of value session start finish error_of crash kill_backend wait_until
  set_fault make_table make_recall_function same_clusters vacuum_all compares indexes_are_sound elapsed soon messages);

# A running server with the extension and test/include/ivfpq.sql in database postgres.
#   conf       lines for postgresql.conf
#   streaming  a primary for standbys
#   initdb     arguments for initdb
#   server     the folder above the programs of another server than the tests'
#   checksums  0: pages have none, so that a test may write them into files
#   service    the library is preloaded, with the host in a device's place, or what
#              PGWARP_TEST_DEVICES names
#   stopped    leave it stopped, without the extension
sub new_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, $options{server} ? (install_path => $options{server}) : ());
	my $devices = $ENV{PGWARP_TEST_DEVICES} // 'host';
	my $service = $options{service}
	  ? "shared_preload_libraries = 'pgwarp'\npgwarp.devices = '$devices'" : '';
	my @initdb = @{ $options{initdb} // [] };
	# 18 and later have checksums unless told otherwise.
	push @initdb, '--no-data-checksums' if !($options{checksums} // 1) && server_version($options{server}) >= 18;
	$node->init(allows_streaming => $options{streaming}, extra => \@initdb);
	# A plan that a test forces has the cost of what it disables, for which PostgreSQL would compile every statement.
	$node->append_conf('postgresql.conf', <<"END");
autovacuum = off
jit = off
max_parallel_maintenance_workers = 2
log_statement = none
$service
${\($options{conf} // '')}
END
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION pgwarp');
	$node->safe_psql('postgres', 'ALTER DATABASE postgres SET search_path = public, ivfpq_test');
	$node->safe_psql('postgres', slurp_file('test/include/ivfpq.sql'));
	return $node;
}

# Sets pgwarp.debug_fault, and waits until workers have it: one, or as many as `workers` says. A worker that starts just then
# has it from the start, and says nothing of it.
#   device   the one that it is for
sub set_fault
{
	my ($node, $name, %options) = @_;
	my $from = -s $node->logfile;
	value($node, "ALTER SYSTEM SET pgwarp.debug_fault_device = $options{device}") if defined $options{device};
	value($node, "ALTER SYSTEM SET pgwarp.debug_fault = '$name'");
	value($node, 'SELECT pg_reload_conf()');
	for (1 .. 100)
	{
		my $said = () = slurp_file($node->logfile, $from) =~ /pgwarp.debug_fault is now $name|pgwarp serves from /g;
		last if $said >= ($options{workers} // 1);
		usleep(50_000);
	}
	return;
}

# The major version of the servers that tests start, or of another.
sub server_version
{
	my ($server) = @_;
	my $program = $server ? "$server/bin/pg_config" : 'pg_config';
	my ($version) = `$program --version` =~ /PostgreSQL (\d+)/ or die 'no version of PostgreSQL';
	return $version;
}

# A seed for what is random in a test: the same every time, so that a failure is one of the code, or as SEED says.
sub seed_of
{
	my $seed = $ENV{SEED} // 1;
	srand($seed);
	diag("SEED=$seed");
	return $seed;
}

sub value
{
	my ($node, $query) = @_;
	return $node->safe_psql('postgres', $query);
}

# A connection that stays. query() runs a statement and dies of an error.
sub session
{
	my ($node, %options) = @_;
	my $session = $node->background_psql($options{database} // 'postgres', on_error_stop => 0);
	$session->set_query_timer_restart;
	return $session;
}

# What statements say on standard error, with messages for developers.
sub messages
{
	my ($node, $statements) = @_;
	my $words;
	$node->psql('postgres', "SET client_min_messages = debug1;\n$statements", stderr => \$words, on_error_stop => 1);
	return $words;
}

# Tests that $got returns something that matches $wanted, soon. $work, if given, is done before each try.
sub soon
{
	my ($wanted, $name, $got, $work) = @_;
	my $is = '';
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for (1 .. 1000)
	{
		$work->() if $work;
		$is = $got->();
		last if $is =~ /^$wanted$/;
		usleep(25_000);
	}
	like($is, qr/^$wanted$/, $name);
	return;
}

# Sends a statement and does not wait for it. finish() waits, and returns what came and what was said
# on standard error.
sub start
{
	my ($session, $statement) = @_;
	my $seen = $session->query_until(qr/begins\n/, "\\echo begins\n$statement\n;\n");
	# A statement that is quick has answered by now, and query_until() takes all that has come.
	$session->{stdout} = $seen =~ s/^.*?begins\n//sr;
	return;
}

sub finish
{
	my ($session) = @_;
	my $result = $session->query('');
	my $complaints = $session->{stderr};
	$session->{stderr} = '';
	return ($result, $complaints);
}

# What a statement says on standard error.
sub error_of
{
	my ($node, $statement) = @_;
	my ($status, $result, $complaints) = $node->psql('postgres', $statement);
	return $complaints;
}

sub crash
{
	my ($node) = @_;
	$node->stop('immediate');
	$node->start;
	return;
}

# Kills a backend as the kernel would, and waits until the server has recovered.
sub kill_backend
{
	my ($node, $pid) = @_;
	kill('KILL', $pid) or die "cannot kill $pid: $!";
	# Not before the postmaster has noticed: the old postmaster answers until then.
	for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default / 10)
	{
		last unless -d "/proc/$pid";
		Time::HiRes::usleep(100_000);
	}
	# A psql that is turned away may end before it has read the query, and IPC::Run dies of that.
	my $back;
	for (1 .. 100)
	{
		$back = eval { $node->poll_query_until('postgres',
				"SELECT pg_postmaster_start_time() < now() AND NOT pg_is_in_recovery()") };
		last if defined $back;
		usleep(100_000);
	}
	die 'the server does not come back' unless $back;
	return;
}

sub wait_until
{
	my ($node, $condition) = @_;
	$node->poll_query_until('postgres', "SELECT $condition") or die "never true: $condition";
	return;
}

# A table with columns id and v, and that many rows of random vectors.
sub make_table
{
	my ($node, $table, $dims, $rows, %options) = @_;
	my $kind = $options{kind} // '';
	value($node, "CREATE $kind TABLE $table (id bigint, v vector($dims))");
	value($node, "INSERT INTO $table SELECT i, vec(i, $dims) FROM generate_series(1, $rows) AS i");
	return;
}

# recall_of(table, condition, seeds, rows): the mean recall of searches by an index on column v, of queries
# vec(seed), compared with sorting the table.
sub make_recall_function
{
	my ($node, $dims) = @_;
	value($node, <<"SQL");
CREATE FUNCTION recall_of(relation text, condition text, seeds int4range, rows int) RETURNS float8 AS \$\$
DECLARE
	hits int := 0;
	query vector;
	farthest float8;
	found int;
BEGIN
	FOR seed IN lower(seeds) .. upper(seeds) - 1 LOOP
		query := vec(seed, $dims);
		SET LOCAL enable_seqscan = on;
		SET LOCAL enable_indexscan = off;
		EXECUTE format('SELECT max(d) FROM (SELECT v <-> \$1 AS d FROM %s WHERE %s ORDER BY 1 LIMIT %s) AS s',
			relation, condition, rows) INTO farthest USING query;
		SET LOCAL enable_seqscan = off;
		SET LOCAL enable_indexscan = on;
		EXECUTE format('SELECT count(*) FROM (SELECT v <-> \$1 AS d FROM %s WHERE %s ORDER BY v <-> \$1 LIMIT %s)
			AS s WHERE d <= \$2', relation, condition, rows) INTO found USING query, farthest;
		hits := hits + found;
	END LOOP;
	RETURN hits::float8 / (rows * (upper(seeds) - lower(seeds)));
END
\$\$ LANGUAGE plpgsql
SQL
	return;
}

# Two tables of clusters of t.v: of the host the same, of a device, whose sums have other last digits,
# as good ones.
sub same_clusters
{
	my ($node, $table, $ours, $theirs, $host) = @_;
	if ($host)
	{
		is(value($node, "SELECT count(*) FROM $ours AS c JOIN $theirs AS g USING (cluster)
			WHERE abs(c.size - g.size) > 30 OR c.centroid <-> g.centroid > 0.1"), 0, 'the same clusters');
		return;
	}
	my ($our_error, $their_error) = map
	{
		value($node, "SELECT avg((SELECT min(v <-> centroid) FROM $_)) FROM $table WHERE v IS NOT NULL AND id % 20 = 3")
	} $ours, $theirs;
	cmp_ok(abs($our_error - $their_error), '<', 0.01 * $our_error, 'clusters that are as good');
	return;
}

# VACUUM that takes every dead row out of the indexes. A plain one leaves them in where they are on
# less than 2% of the table's pages, and passes over pages that another process, perhaps the
# checkpointer, has pinned.
sub vacuum_all
{
	my ($node, $table) = @_;
	my $words;
	for (1 .. 20)
	{
		$node->psql('postgres', "VACUUM (VERBOSE, INDEX_CLEANUP ON) $table", stderr => \$words,
			on_error_die => 1);
		return if $words !~ /tuples missed: [1-9]|[1-9]\d* are dead but not yet removable/;
		usleep(100_000);
	}
	diag($words);
	return;
}

# compare_scan(): whole scans through an index have every row once.
sub compares
{
	my ($node, $table, $distance, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $condition = $options{condition} // 'true';
	my $got = value($node, "SELECT scan LIKE '%Index Scan%', same_rows, each_once
		FROM compare_scan('$table', \$\$$distance\$\$, \$\$$condition\$\$)");
	return is($got, 't|t|t', $name);
}

# The last word: every valid ivfpq index of the database is sound and has every row.
sub indexes_are_sound
{
	my ($node, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $from = "FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam JOIN pg_index AS i
		ON i.indexrelid = c.oid WHERE a.amname = 'ivfpq' AND c.relkind = 'i' AND i.indisvalid";
	isnt(value($node, "SELECT count(*) $from"), 0, 'there is an index to check') or return 0;
	my $problems = value($node, "SELECT c.relname, p.* FROM
		(SELECT c.oid, c.relname $from) AS c, ivfpq_check(c.oid, true) AS p LIMIT 20");
	return is($problems, '', $name // 'every index is sound');
}

# Seconds that something takes.
sub elapsed
{
	my ($work) = @_;
	my $begin = time;
	$work->();
	return time - $begin;
}

1;
