# Writes measured figures into the pages: scripts/figures write calls it with the tree and the files that
# scripts/figures measure made. A table stands between <!-- figures NAME --> and <!-- /figures -->, and its
# last line names the version and the machine.
use strict;
use warnings;
use JSON::PP ();

my ($tree, @files) = @ARGV;
my %figures;    # name => { head, objects of pgwarp_bench or the line itself }
for my $file (@files)
{
	my ($head, $figure);
	open(my $lines, '<', $file) or die "$file: $!\n";
	while (my $line = <$lines>)
	{
		my $object = eval { JSON::PP::decode_json($line) } or die "$file, line $.: no JSON object\n";
		if ($object->{figures}) { $head = $object; }
		elsif (!$head) { die "$file does not begin with the version and the machine\n"; }
		elsif ($object->{figure}) { $figure = $figures{ $object->{figure} } = { head => $head, line => $object }; }
		else
		{
			die "$file: $object->{system} failed: $object->{error}\n" if $object->{error};
			push @{ $figure->{ $object->{kind} } }, $object;
		}
	}
}

sub commas { my ($n) = @_; 1 while $n =~ s/^(\d+)(\d{3})/$1,$2/; return $n; }
sub digits { my ($n) = @_; return $n >= 100 ? commas(sprintf('%.0f', $n)) : $n >= 10 ? sprintf('%.1f', $n) : sprintf('%.2f', $n); }
sub ratio { my ($n) = @_; return $n >= 1 ? sprintf($n >= 9.95 ? '%.0f x' : '%.1f x', $n) : sprintf(1 / $n >= 9.95 ? '1/%.0f' : '1/%.1f', 1 / $n); }
sub range { my @n = sort { $a <=> $b } @_; return $n[0] == $n[-1] ? digits($n[0]) : digits($n[0]) . ' to ' . digits($n[-1]); }
sub of { my ($figure, $kind, $system, $clients) = @_;
	my ($found) = grep { $_->{system} eq $system && (!defined $clients || $_->{clients} == $clients) } @{ $figure->{$kind} };
	return $found // die "there is no $kind of $system\n"; }
sub caption { my ($figure) = @_; my $head = $figure->{head};
	return "\npgwarp $head->{version}, pgvector $head->{peer}, PostgreSQL $head->{server}; $head->{machine}.\n"; }

# What both systems have, of each data set: what, and a value of each system
sub pairs
{
	my ($figure) = @_;
	my ($hnsw, $ivfpq) = map { my $system = $_; {
			recall => of($figure, 'search', $system)->{recall}, rate => of($figure, 'search', $system)->{queries_per_second},
			build => of($figure, 'build', $system)->{build_seconds}[0], size => of($figure, 'build', $system)->{index_bytes} / 2**20,
			inserts => of($figure, 'insert', $system)->{rows_per_second} } } qw(hnsw ivfpq);
	return map { [ $_, $hnsw->{$_}, $ivfpq->{$_} ] } qw(recall rate build size inserts);
}
my %names = (recall => 'recall@10', rate => 'queries/s', build => 'build time', size => 'index size', inserts => 'single-row inserts/s');
my %units = (build => ' s', size => ' MB');

sub beside_hnsw
{
	my ($cell, @rows) = @_;
	my @sets = map { $figures{"hnsw $_"} // return } qw(glove fashion-mnist);
	my @columns = map { { map { $_->[0] => $_ } pairs($_) } } @sets;
	my $table = '| |' . join('', map { my $run = $_->{run}[0];
			' ' . { glove => 'GloVe', 'fashion-mnist' => 'Fashion-MNIST' }->{ $run->{data} } . ', ' . commas($run->{rows}) . " x $run->{dims} |" } @sets) . "\n| --- | --- | --- |\n";
	for my $row (@rows)
	{
		$table .= "| $names{$row} |" . join('', map { ' ' . $cell->(@{ $_->{$row} }) . ' |' } @columns) . "\n";
	}
	return $table . caption($sets[0]);
}

my %tables = (
	# README.md: ratios only
	ratios => sub { return beside_hnsw(sub { my ($what, $hnsw, $ivfpq) = @_; return ratio($ivfpq / $hnsw); }, qw(rate build size inserts)); },
	hnsw => sub {
		return beside_hnsw(sub { my ($what, $hnsw, $ivfpq) = @_;
				return sprintf('%.3f, %.3f', $hnsw, $ivfpq) if $what eq 'recall';
				my $unit = $units{$what} // '';
				return digits($hnsw) . "$unit, " . digits($ivfpq) . "$unit: " . ratio($ivfpq / $hnsw); },
			qw(recall rate build size inserts));
	},
	join => sub {
		my $figure = $figures{join} // return;
		my $line = $figure->{line};
		my $table = '| ' . commas($line->{queries}) . " queries, k = 10 | processor time | recall\@10 |\n| --- | --- | --- |\n";
		my @ways = ('one scan after the other (`ivfpq.enable_batched_join = off`)', 'a LATERAL join', '`knn_join`');
		$table .= "| $ways[$_] | " . digits($line->{seconds}[$_]) . ' s | ' . sprintf('%.3f', $line->{recall}[$_]) . " |\n" for 0 .. 2;
		return $table . caption($figure);
	},
	service => sub {
		my $figure = $figures{service} // return;
		my (%seen, @clients, @systems);
		for my $search (@{ $figure->{search} })
		{
			push @clients, $search->{clients} unless $seen{"clients $search->{clients}"}++;
			push @systems, $search->{system} unless $seen{ $search->{system} }++;
		}
		my $table = '| GloVe, queries/s | recall@10 |' . join('', map { " $_ client" . ($_ > 1 ? 's' : '') . ' |' } @clients) . " index |\n" . '| --- | --- |' . ' --- |' x @clients . " --- |\n";
		for my $system (@systems)
		{
			$table .= "| $system | " . sprintf('%.3f', of($figure, 'search', $system)->{recall}) . ' |' . join('', map {
					my $search = of($figure, 'search', $system, $_);
					' ' . digits($search->{queries_per_second}) . ', p50 ' . digits($search->{p50_ms}) . ' ms |' } @clients)
			  . ' ' . digits(of($figure, 'build', $system)->{index_bytes} / 2**20) . " MB |\n";
		}
		return $table . caption($figure);
	},
	builds => sub {
		my $figure = $figures{builds} // return;
		my $line = $figure->{line};
		my ($rows, $many) = (commas($line->{rows}), commas(10 * $line->{rows}));
		my @later = ([ @{ $line->{join} } ], [ @{ $line->{kmeans} } ]);
		my @first = map { shift @$_ } @later;
		return "| | |\n| --- | --- |\n"
		  . "| `CREATE INDEX`, $rows x 128, the device's start included | " . range(@{ $line->{index} }) . ' s; hnsw takes ' . digits($line->{hnsw}[0]) . " s |\n"
		  . "| `CREATE INDEX`, $many x 96 | " . range(@{ $line->{large} }) . " s |\n"
		  . '| `knn_join`, ' . commas($line->{rows} / 10) . " queries, k = 10 | " . digits($first[0]) . ' s, then ' . range(@{ $later[0] }) . " s on the device that the session kept |\n"
		  . "| `kmeans`, 1,024 clusters, 20 iterations | " . digits($first[1]) . ' s, then ' . range(@{ $later[1] }) . " s |\n" . caption($figure);
	},
	# README.md: one sentence of both
	gpu => sub {
		my ($service, $builds) = @figures{qw(service builds)};
		return unless $service && $builds;
		my ($most) = sort { $b->{queries_per_second} <=> $a->{queries_per_second} } grep { $_->{system} eq 'ivfpq' } @{ $service->{search} };
		my ($device) = split(/, /, $service->{head}{machine});
		return "With the service on one $device, GloVe has " . digits($most->{queries_per_second}) . " queries/s from $most->{clients} clients, and an index of "
		  . commas($builds->{line}{rows}) . ' vectors is built in ' . range(@{ $builds->{line}{index} }) . " s (pgwarp $service->{head}{version}).\n";
	},
);

my %written;
for my $page (map { "$tree/$_" } 'README.md', 'docs/comparison.md')
{
	open(my $from, '<', $page) or die "$page: $!\n";
	my $text = join('', <$from>);
	$text =~ s{(<!-- figures (\w+) -->\n).*?(<!-- /figures -->)}{
		my ($begin, $name, $end) = ($1, $2, $3);
		my $all = $&;
		my $table = ($tables{$name} // die "$page: there is no figure $name\n")->();
		$written{$name} = 1 if defined $table;
		defined $table ? "$begin$table$end" : $all;
	}egs;
	open(my $to, '>', $page) or die "$page: $!\n";
	print $to $text;
	close($to) or die "$page: $!\n";
}
print 'written: ', join(' ', sort keys %written), "\n";
