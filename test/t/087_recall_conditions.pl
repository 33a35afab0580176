# The target is kept with conditions that hang together with the vector, in the index and outside it. Sets are those of
# test/include/recall_sets.sql; bench/golden measures the same on larger ones. Bars are the target less 0.015.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;
use RecallSets;

my $node = recall_node('recall_conditions');
make_set('zipf', 20000);
make_index($_) for qw(plain condition);
# With its columns the index is no worse than without, up to the target.
my %conditions = (
	(map { ("chance, $_ of 10000" => ['chance', $_ / 10000]) } 5000, 1000, 100, 10),
	(map { ("along, $_ of 10000" => ['along', $_ / 10000]) } 5000, 1000, 100, 10),
	(map { ("against, $_ of 10000" => ['against', $_ / 10000]) } 5000, 1000, 100, 10),
	category => ['category', 0], 'far category' => ['far_category', 0]);
value($node, 'ALTER TABLE asked ADD low int, ADD high int');
for my $name (sort keys %conditions)
{
	my ($condition, $share) = @{ $conditions{$name} };
	my $column = value($node, "SELECT recall.column_of('$condition')");
	value($node, "UPDATE asked AS a SET (low, high) = (SELECT low, high FROM
		recall.window_of('$condition', $share, a.id, a.along, a.category, a.far_category)); VACUUM ANALYZE asked");
	my $where = "r.$column >= q.low AND r.$column < q.high";
	find_truth($name, $where);
	my $filtered = recall_of($name, nearest('plain', $where), $sources{pages});
	is_at_least($filtered, 0.935, "condition $name, not in the index");
	for my $source (qw(pages mirror))
	{
		my $indexed = recall_of($name, nearest('condition', $where), $sources{$source});
		is_at_least($indexed, 0.935, "condition $name, in the index, $source");
		my $least = $filtered < 0.96 ? $filtered - 0.01 : 0.95;
		is_at_least($indexed, $least, "condition $name: the index finds as much as a filter, $source");
	}
}


$node->stop;
done_testing();
