# Eight connections change rows, vacuum and search at once.
use strict;
use warnings;
use Test::More;
use IvfpqStress;
use IvfpqTest;

my $node = new_node('stress', conf => "max_connections = 40\nshared_buffers = 2MB\nwork_mem = 256kB");
stress($node, 8, $ENV{STRESS_SECONDS} // 6);
$node->stop;
done_testing();
