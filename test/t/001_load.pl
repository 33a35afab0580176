# The library loads in a backend and in the postmaster, and starts no thread there: a postmaster
# with threads may not fork backends safely (a threaded OpenBLAS would start some when loaded).
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('load');
$node->init;
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pgwarp');
$node->safe_psql('postgres', "LOAD 'pgwarp'");
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_extension WHERE extname = 'pgwarp'"),
	1, 'the extension is there and its library loads');

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pgwarp'");
$node->restart;
my $pid = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
like(slurp_file("/proc/$pid/maps"), qr/pgwarp\.so/, 'the postmaster has the library');
is(scalar(my @threads = glob("/proc/$pid/task/*")), 1, 'and one thread');

$node->safe_psql('postgres', 'DROP EXTENSION pgwarp');
is($node->safe_psql('postgres', 'SELECT 1'), 1, 'dropping the extension leaves a working server');
$node->stop;
done_testing();
