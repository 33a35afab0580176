#!/usr/bin/perl
# The order of the folders, held by the #include lines: a file includes files of its own folder and
# of folders that stand before it here, and no two modules include each other, directly or around
# corners. (A module is a header and the source file of the same name.) Headers that have the layout
# of a type of vectors stay inside its folder.
#
# Prints "ok" or "not ok" for each rule, and each line that breaks one.
use strict;
use warnings;

# Lower ones first. "top" is the folder itself.
my %order = (
	extension => [qw(top util types table device index service scan audit curve create am conditions inspect knn join graph)],
	kernels   => [qw(top common cpu host cuda/base cuda/select cuda/products cuda/lists cuda/train
		cuda/graph cuda)]);
# The file that registers everything stands above everything.
my %above_all = ('extension/pgwarp.cpp' => 1);
# What the CPU does stays apart from what a GPU does.
my @apart = (['cuda', 'cpu'], ['cuda', 'host']);

# Headers with the layout of a type of vectors.
my %layouts = ('extension/types/vector.h' => 1, 'extension/types/halfvec.h' => 1);

my %includes;    # file => [[line, included file], ...]
my @files = split /\0/, `find extension kernels -name '*.h' -print0 -o -name '*.cpp' -print0 -o -name '*.cu' -print0 -o -name '*.cuh' -print0`;
for my $file (@files)
{
	open my $source, '<', $file or die "$file: $!\n";
	while (my $line = <$source>)
	{
		push @{ $includes{$file} }, [ $., $1 ] if $line =~ /^\s*#\s*include\s*[<"]([^>"]+)[>"]/;
	}
}

my @broken;

sub report
{
	my ($rule) = @_;
	print @broken ? 'not ok' : 'ok', " $rule\n";
	print "    $_\n" for @broken;
	@broken = ();
}

sub each_include
{
	my ($check) = @_;
	for my $file (sort keys %includes)
	{
		$check->($file, @$_) for @{ $includes{$file} };
	}
}

# extension/index/page.h => ("extension", "index"); kernels/mirror.h => ("kernels", "top")
sub room
{
	my ($half, $folder) = $_[0] =~ m{^(extension|kernels)/(?:(.+)/)?[^/]+$} or return;
	return ($half, $folder // 'top');
}

sub rank
{
	my ($half, $folder) = @_;
	my $folders = $order{$half};
	for my $i (0 .. $#$folders) { return $i if $folders->[$i] eq $folder; }
	return undef;
}

each_include(sub {
	my ($file, $line, $included) = @_;
	push @broken, "$file:$line: $included"
	  if $file =~ m{^kernels/} && $included =~ m{^(postgres|fmgr\.h|extension/)}
	  || $file =~ m{^extension/} && $included =~ m{^(cuda|cublas|kernels/(cuda|cpu|common|host)/)};
});
report('kernels know nothing of PostgreSQL, the extension includes only the public headers of kernels');

for my $file (sort keys %includes)
{
	push @broken, "$file: its folder has no place in the order" unless defined rank(room($file));
}
report('every folder has its place in the order');

each_include(sub {
	my ($file, $line, $included) = @_;
	return if $above_all{$file};
	my ($half, $folder) = room($file);
	my ($other_half, $other) = room($included);
	return unless defined $other_half && $other_half eq $half;
	my ($mine, $theirs) = (rank($half, $folder), rank($half, $other));
	push @broken, "$file:$line: $folder comes before $other"
	  if defined $mine && (!defined $theirs || $theirs > $mine);
	for my $pair (@apart)
	{
		push @broken, "$file:$line: $pair->[0] must not use $pair->[1]"
		  if $half eq 'kernels' && $folder =~ m{^$pair->[0]\b} && $other =~ m{^$pair->[1]\b};
	}
});
report('no file includes one of a higher folder');

# How a type stores its values is known where the type is: others include types/vector_type.h.
each_include(sub {
	my ($file, $line, $included) = @_;
	push @broken, "$file:$line: $included"
	  if $layouts{$included} && $file !~ m{^extension/types/};
});
report('only types/ knows how vectors are stored');

# Modules that reach each other, by Tarjan's algorithm.
my %uses;
each_include(sub {
	my ($file, undef, $included) = @_;
	return unless $included =~ m{^(extension|kernels)/};
	my ($from, $to) = map { s/\.\w+$//r } $file, $included;
	$uses{$from}{$to} = 1 if $from ne $to;
});
my (%number, %lowest, %on_stack, @stack);
my $next = 0;

sub visit
{
	my ($module) = @_;
	$number{$module} = $lowest{$module} = $next++;
	push @stack, $module;
	$on_stack{$module} = 1;
	for my $used (sort keys %{ $uses{$module} || {} })
	{
		visit($used) unless defined $number{$used};
		$lowest{$module} = $lowest{$used}
		  if $on_stack{$used} && $lowest{$used} < $lowest{$module};
	}
	return if $lowest{$module} != $number{$module};
	my @ring;
	do { push @ring, pop @stack; delete $on_stack{ $ring[-1] }; } until $ring[-1] eq $module;
	push @broken, join ', ', sort @ring if @ring > 1;
}
no warnings 'recursion';
for my $module (sort keys %uses) { visit($module) unless defined $number{$module}; }
report('no modules include each other');
