# docs/monitoring.yaml: each query runs as a role of pg_monitor, has the columns that the file describes and
# no others, never a null, and labels that tell its rows apart; and its figures are those of the server.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

# The file's own shape, not all of YAML: a name, a query, and columns with usage and description.
sub read_queries
{
	my ($file) = @_;
	my ($name, $column, $in_query, %queries);
	for my $line (split /\n/, slurp_file($file))
	{
		next if !$in_query && $line =~ /^\s*(#|$)/;
		if ($line =~ /^(\w+):$/) { $name = $1; $in_query = 0; $queries{$name} = { query => '', columns => [], usage => {} } }
		elsif ($line =~ /^  query: \|$/) { $in_query = 1 }
		elsif ($line =~ /^  cache_seconds: \d+$/) { }
		elsif ($line =~ /^  metrics:$/) { $in_query = 0 }
		elsif ($in_query && $line =~ /^    (.*)$/) { $queries{$name}{query} .= "$1\n" }
		elsif ($line =~ /^    - (\w+):$/) { $column = $1; push @{ $queries{$name}{columns} }, $column }
		elsif ($line =~ /^        usage: "(LABEL|COUNTER|GAUGE)"$/) { $queries{$name}{usage}{$column} = $1 }
		elsif ($line =~ /^        description: "[^"]+"$/) { }
		else { die "$file: what is '$line'?" }
	}
	return %queries;
}

my %queries = read_queries('docs/monitoring.yaml');
is(join(' ', sort keys %queries), 'pgwarp_audit pgwarp_build pgwarp_device pgwarp_drift pgwarp_graph pgwarp_index '
	. 'pgwarp_index_state pgwarp_service', 'the queries');

my $node = new_node('monitoring', service => 1, conf => "ivfpq.audit_every = 1\nmax_parallel_maintenance_workers = 0");
value($node, 'CREATE ROLE watcher LOGIN; GRANT pg_monitor, pg_read_all_data TO watcher');
value($node, 'CREATE ROLE stranger LOGIN; GRANT pg_monitor TO stranger');
wait_until($node, 'serves FROM pgwarp_service()');

# Rows of a query, a hash each; all that holds of every query is tested here.
sub rows_of
{
	my ($name, $role) = @_;
	my $query = $queries{$name};
	my $output = $node->safe_psql('postgres', "COPY ($query->{query}) TO STDOUT (FORMAT csv, HEADER, NULL 'null', DELIMITER '|')",
		connstr => $node->connstr('postgres') . " user=$role options='-c search_path=public'");
	my ($header, @lines) = split /\n/, $output;
	is($header, join('|', @{ $query->{columns} }), "$name: columns");
	my (@rows, %seen);
	for my $line (@lines)
	{
		my %row;
		@row{ @{ $query->{columns} } } = split /\|/, $line, -1;
		my @wrong = grep { $row{$_} eq 'null' || ($query->{usage}{$_} ne 'LABEL' && $row{$_} !~ /^-?[\d.]+(e[-+]?\d+)?$/) } keys %row;
		is("@wrong", '', "$name: numbers, and no nulls") or diag($line);
		my $labels = join '|', map { $row{$_} } grep { $query->{usage}{$_} eq 'LABEL' } @{ $query->{columns} };
		ok(!$seen{$labels}++, "$name: '$labels' is one row");
		push @rows, \%row;
	}
	return @rows;
}

# With nothing there, and without any rights on tables.
for my $name (sort keys %queries)
{
	is(join(' ', sort keys %{ $queries{$name}{usage} }), join(' ', sort @{ $queries{$name}{columns} }), "$name: every column has a usage");
	rows_of($name, 'stranger');
}

make_table($node, 't', 8, 5000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v, id) WITH (lists = 20)');
value($node, 'CREATE TABLE few (id int, v vector(8)); SET client_min_messages = error; CREATE INDEX few_v ON few USING ivfpq (v);
	INSERT INTO few SELECT id, v FROM t WHERE id <= 30');
$node->safe_psql('postgres', "SET enable_seqscan = off; SET ivfpq.executor = 'cpu';" . join('', map
	{ "SELECT id FROM t ORDER BY v <-> vec(-$_, 8) LIMIT 10; SELECT id FROM t WHERE id < 3000 ORDER BY v <-> vec(-$_, 8) LIMIT 10;" } 1 .. 20));
$node->safe_psql('postgres', "SET enable_seqscan = off; SET ivfpq.executor = 'service'; SET ivfpq.audit_every = 0;" . join('', map
	{ "SELECT id FROM t ORDER BY v <-> vec(-$_, 8) LIMIT 10;" } 1 .. 15));
wait_until($node, '(SELECT audited + conditions_audited + audits_dropped FROM pg_stat_pgwarp WHERE indexname = \'t_v\') >= 40');

my ($service) = rows_of('pgwarp_service', 'watcher');
is($service->{serving}, 1, 'the service serves');
cmp_ok(abs($service->{since_seconds} - time), '<', 3600, 'since it started');
is($service->{last_failure_seconds}, 0, 'and has not failed');
my ($device) = rows_of('pgwarp_device', 'watcher');
cmp_ok($device->{used_bytes}, '>', 0, 'a device with lists');
cmp_ok($device->{memory_bytes}, '>=', $device->{used_bytes}, 'no more than it may use');

my ($index) = grep { $_->{indexname} eq 't_v' } rows_of('pgwarp_index', 'stranger');
is("$index->{datname} $index->{schemaname} $index->{tablename}", 'postgres public t', 'the index is named');
is($index->{cpu_searches} + $index->{service_searches}, 55, 'its searches');
cmp_ok($index->{service_searches}, '>', 0, 'some by the service');
is($index->{lists}, 20, 'its lists');
cmp_ok($index->{resident_lists}, '>', 0, 'on a device');
is($index->{errors}, 0, 'without an error');
cmp_ok($index->{batch_searches}, '>=', $index->{batches}, 'a batch has a search');
is($index->{$_}, value($node, "SELECT $_ FROM pg_stat_pgwarp WHERE indexname = 't_v'"), "$_ of the view")
  for qw(candidates ranked_rows batches reloads appends received_bytes evictions audits_dropped);

my %audit = map { $_->{searches} => $_ } rows_of('pgwarp_audit', 'stranger');
is(join(' ', sort keys %audit), 'conditions plain', 'audits of both kinds');
cmp_ok($audit{plain}{audited} + $audit{conditions}{audited} + $index->{audits_dropped}, '==', 40, 'all searches by the CPU');
cmp_ok($_->{recall_low}, '<=', $_->{recall}, 'an interval') for values %audit;
is(scalar(rows_of('pgwarp_drift', 'stranger')), 0, 'no index needs to be built again');

my %state = map { $_->{indexname} => $_ } rows_of('pgwarp_index_state', 'watcher');
is(join(' ', sort keys %state), 'few_v t_v', 'every index');
is(join(' ', map { "$state{$_}{trained} $state{$_}{rows} $state{$_}{pending_rows} $state{$_}{failing}" } 'few_v', 't_v'),
	'0 30 30 0 1 5000 0 0', 'its rows');
is(scalar(rows_of('pgwarp_index_state', 'stranger')), 0, 'not to those who may not read the table');

# An expression that fails in VACUUM.
value($node, q{CREATE FUNCTION fails(v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS
	'BEGIN IF current_setting(''test.fails'', true) = ''yes'' THEN RAISE ''at will''; END IF; RETURN v; END'});
value($node, 'SET client_min_messages = error; CREATE TABLE failing (v vector(2)); CREATE INDEX failing_v ON failing USING ivfpq ((fails(v)::vector(2)))');
value($node, 'INSERT INTO failing SELECT vec(i, 2) FROM generate_series(1, 10000) AS i');
value($node, "ALTER DATABASE postgres SET test.fails = 'yes'");
value($node, 'SET client_min_messages = error; VACUUM failing');
value($node, 'ALTER DATABASE postgres RESET test.fails');
%state = map { $_->{indexname} => $_ } rows_of('pgwarp_index_state', 'watcher');
is("$state{failing_v}{trained} $state{failing_v}{pending_rows} $state{failing_v}{failing}", '0 10000 1', 'an expression that fails');

# Progress, while something is made.
my $build = session($node);
$build->query_safe('SET client_min_messages = warning');
for my $work ([ 'pgwarp_build', "CREATE INDEX t_again ON t USING ivfpq (v) WITH (lists = 1000)", 't' ],
	[ 'pgwarp_graph', "SELECT count(*) FROM knn_graph('t', 'id', 'v', 20)", 't' ])
{
	my ($name, $statement, $table) = @$work;
	my @seen;
	for my $try (1 .. 5)
	{
		value($node, 'DROP INDEX IF EXISTS t_again');
		start($build, $statement);
		my $active = 1;
		while ($active && !@seen)
		{
			my $output = $node->safe_psql('postgres', "SELECT * FROM ($queries{$name}{query}) AS q",
				connstr => $node->connstr('postgres') . " user=watcher options='-c search_path=public'");
			push @seen, $output if $output ne '';
			$active = value($node, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%$table%' AND query NOT LIKE '%pg_stat_activity%'");
		}
		my ($result, $complaints) = finish($build);
		is($complaints, '', "$name: $statement");
		last if @seen;
	}
	like($seen[0] // '', qr/^postgres\|\d+\|t\|[a-z: ]+\|\d+\|\d+\|\d+\|\d+$/m, "$name: progress is seen");
}
$build->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
