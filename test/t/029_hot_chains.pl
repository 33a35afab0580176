# A row that was changed in place before the index was made may belong into it by its old version
# alone. The index has the new one only, so it must stay out of the hands of older snapshots,
# whichever process of a parallel build met the row.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('hot_chains', conf => 'max_parallel_maintenance_workers = 4');
my $rows = 12000;
# Six rows a page, with room for another version. So little memory that training looks at a part of
# the table only: the pass over all of it has to find the row.
my @blocks = map { int(rand(1990)) } 1 .. 10;
my $make = sub {
	my ($table) = @_;
	value($node, "CREATE TABLE $table (id int, active bool, v vector(200))
		WITH (fillfactor = 70, parallel_workers = 4)");
	value($node, "ALTER TABLE $table ALTER v SET STORAGE PLAIN");
	value($node, "INSERT INTO $table SELECT i, true, array_fill(i % 97, ARRAY[200])::vector
		FROM generate_series(1, $rows) AS i");
};
$make->("t$_") for 0 .. $#blocks;
my $old = session($node);
$old->query_safe('SET enable_seqscan = off');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->query_safe('SELECT 1');
for my $i (0 .. $#blocks)
{
	my $block = $blocks[$i];
	value($node, "UPDATE t$i SET active = false
		WHERE ctid = (SELECT ctid FROM t$i WHERE ctid >= '($block,0)' ORDER BY ctid LIMIT 1)");
	value($node, "SET maintenance_work_mem = '1MB'; CREATE INDEX t${i}_v ON t$i USING ivfpq (v)
		WITH (lists = 1, m = 1) WHERE active");
	is(value($node, "SELECT indcheckxmin FROM pg_index WHERE indexrelid = 't${i}_v'::regclass"), 't',
		"block $block: not for older snapshots");
	is($old->query_safe("SELECT count(*) FROM (SELECT id FROM t$i WHERE active
		ORDER BY v <-> array_fill(1, ARRAY[200])::vector) AS s"), $rows, 'which see every row');
}
my (undef, $complaints) = do
{
	start($old, "SELECT * FROM ivfpq_check('t0_v', true)");
	finish($old);
};
like($complaints, qr/cannot be checked with a snapshot older than it/, 'nor can they check it');
$old->query_safe('ROLLBACK');
is($old->query_safe("SELECT * FROM ivfpq_check('t0_v', true)"), '', 'a new one can');
$old->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
