# The adapters of bench/adapters find what exact search finds, at the recall that they ask for: loaded, built and
# searched one by one, in batches and with filters, each in a stand-in of its benchmark, or in the benchmark's own
# sources where PGWARP_ANN_BENCHMARKS, PGWARP_VECTORDBBENCH or PGWARP_CUVS_BENCH names a checkout.
# Needs Python 3 with numpy and psycopg 3, and for a part of it yaml, pydantic and click.
use strict;
use warnings;
use File::Temp;
use IPC::Run ();
use IvfpqTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Output and exit status of a call of Python.
sub run_python
{
	my $out = '';
	IPC::Run::run(\@_, '>', \$out, '2>&1');
	return ($out, $? >> 8);
}

# The one in PATH may be another than the system's, which has the packages.
my ($python) = grep { -x $_ && (run_python($_, '-c', 'import numpy, psycopg'))[1] == 0 } '/usr/bin/python3',
  map { "$_/python3" } split /:/, $ENV{PATH};
plan skip_all => 'no Python 3 with numpy and psycopg 3 here' if !$python;

my $node = new_node('adapters');
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGDATABASE} = 'postgres';
local $ENV{PGUSER} = $node->safe_psql('postgres', 'SELECT current_user');

for my $part ('table', 'ann-benchmarks', 'vectordbbench', 'cuvs-bench')
{
	SKIP:
	{
		my $folder = File::Temp->newdir;
		my $checkout = $ENV{ 'PGWARP_' . uc($part =~ s/-/_/gr) };
		my ($out, $status) =
		  run_python($python, 'test/adapters/adapters_test.py', $part, "$folder", $checkout // ());
		skip "$part: $out", 1 if $status == 3;
		ok($status == 0 && $out =~ /^done$/m, $part) or diag($out);
		note($out);
	}
}

indexes_are_sound($node);
$node->stop;
done_testing();
