# The Makefile, on a tree with one small source a half: what is missing is said before anything is
# compiled, and other CUDA settings compile neither the extension nor the CPU's kernels again. And
# scripts/test, with a program that there is not.
use strict;
use warnings;

use File::Copy qw(copy);
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{CCACHE_DISABLE} = 1;
delete @ENV{qw(CUDA CUDA_ARCHITECTURES MAKEFLAGS MAKELEVEL BUILD)};
chomp(my $pg_config = `sh -c 'command -v pg_config'`);
chomp(my $pgxs = `$pg_config --pgxs`);
plan skip_all => 'no server headers or no cmake'
  if !-e $pgxs || system('cmake --version >/dev/null 2>&1');

my $tree = PostgreSQL::Test::Utils::tempdir;
make_path(map { "$tree/$_" } qw(extension kernels/cpu kernels/cuda bench scripts sql bin));
copy($_, "$tree/$_") or die "$_: $!"
  for qw(Makefile CMakeLists.txt pgwarp.control pgwarp_pgvector.control scripts/needs scripts/common.sh),
  glob('sql/*');
chmod 0755, "$tree/scripts/needs";

sub spew
{
	my ($file, $text) = @_;
	open(my $handle, '>', "$tree/$file") or die "$file: $!";
	print $handle $text;
	close $handle;
}
spew('extension/one.cpp', 'extern "C" int one(int);' . "\n" . 'int two(int x) { return 2 * one(x); }' . "\n");
spew('kernels/cpu/one.cpp', 'extern "C" int one(int x) { return x; }' . "\n");
spew('extension/precompiled.h', "#include <cstddef>\n");
spew('bench/CMakeLists.txt', '');
# A compiler that has never heard of Highway.
spew('bin/poor', <<'END');
#!/bin/sh
for argument; do if [ "$argument" = - ]; then
    if grep -q hwy/; then exit 1; else exit 0; fi
fi; done
echo "compiles $*" >&2
exit 1
END
# An nvcc that does not know C++20.
spew('bin/nvcc', "#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n");
chmod 0755, "$tree/bin/poor", "$tree/bin/nvcc";

sub make
{
	my @arguments = @_;
	my $output = '';
	IPC::Run::run([ 'make', '-C', $tree, "PG_CONFIG=$pg_config", @arguments ], '>&', \$output);
	return ($?, $output);
}
my @objects = qw(extension/one.o build/kernels/CMakeFiles/pgwarp_kernels.dir/kernels/cpu/one.cpp.o);
sub times_of { return join ' ', map { (stat "$tree/$_")[9] // 'missing' } @objects }

# --- what is missing

my ($status, $output) = make("CXX=$tree/bin/poor", 'CUDA=OFF');
isnt($status, 0, 'no Highway: make fails');
like($output, qr/hwy\/highway\.h.*\n.*apt-get install libhwy-dev/, 'no Highway: it names the package');
unlike($output, qr/compiles/, 'no Highway: nothing is compiled before');

($status, $output) = make("CXX=$tree/bin/none", 'CUDA=ON', "PATH=$tree/bin:/usr/bin:/bin");
isnt($status, 0, 'no compiler: make fails');
like($output, qr/compiler .*\/none\n(.*\n)*.*apt-get install .*g\+\+/, 'no compiler: it names the package');
like($output, qr/CUDA 12 or later: .* release 11/, 'and in the same message that nvcc is too old');
like($output, qr/cuBLAS, <cublas_v2\.h>, beside /, 'and that the toolkit is not whole');
SKIP:
{
	skip 'nvcc is there', 2 if -e '/usr/local/cuda/bin/nvcc' || -e '/usr/bin/nvcc';
	unlink "$tree/bin/nvcc";
	($status, $output) = make('CUDA=ON');
	isnt($status, 0, 'CUDA=ON without nvcc: make fails');
	like($output, qr/nvcc, neither in PATH nor in/, 'CUDA=ON without nvcc: it says so');
}
($status, $output) = make('CUDA=MAYBE');
like($output, qr/CUDA=MAYBE: it is AUTO, ON or OFF/, 'a value that CUDA does not have');
($status, $output) = make('PG_CONFIG=/none/pg_config');
isnt($status, 0, 'no PostgreSQL: make fails');
like($output, qr/server headers of PostgreSQL.*\n.*postgresql-server-dev-15/, 'no PostgreSQL: it names the package');

# --- in parallel

spew('extension/three.cpp', "int three() { return 3; }\n");
# A compiler that takes its time for objects, and tells when.
spew('bin/slow', <<'END');
#!/bin/sh
case "$*" in *" -c "*extension/*) echo begins; sleep 1; g++ "$@"; echo ends ;; *) exec g++ "$@" ;; esac
END
chmod 0755, "$tree/bin/slow";
sub order_of { my ($text) = @_; return join ' ', $text =~ /^(begins|ends)$/mg }
($status, $output) = make("CXX=$tree/bin/slow", 'CUDA=OFF', 'JOBS=3');
is(order_of($output), 'begins begins ends ends', 'in parallel by itself') or diag($output);
unlink "$tree/extension/three.o", "$tree/extension/one.o";
($status, $output) = make('-j1', "CXX=$tree/bin/slow", 'CUDA=OFF');
is(order_of($output), 'begins ends begins ends', 'or as the caller says') or diag($output);
unlink "$tree/extension/three.cpp", "$tree/extension/three.o";

# --- what is compiled again

($status, $output) = make('CUDA=OFF');
is($status, 0, 'it builds') or diag($output);
my $before = times_of();
unlike($before, qr/missing/, 'an object of each half');
sleep 1;
# An empty folder kernels/cuda: nothing to compile there, whether nvcc is here or not.
for my $setting ('CUDA=AUTO', 'CUDA=AUTO CUDA_ARCHITECTURES=90', 'CUDA=OFF')
{
	($status, $output) = make(split / /, $setting);
	is("$status " . times_of(), "0 $before", "$setting compiles nothing again");
}
spew('build/kernels/pgwarp_cuda.so', '');
make('CUDA=AUTO', 'CUDA_ARCHITECTURES=80');
ok(!-e "$tree/build/kernels/pgwarp_cuda.so", 'other CUDA settings remove the library of the old ones');
make('CUDA=OFF', 'CXXFLAGS=-O0 -fPIC');
my ($extension, $kernels) = split / /, times_of();
my ($extension_before, $kernels_before) = split / /, $before;
ok($extension > $extension_before, 'other flags compile the extension again');
is($kernels, $kernels_before, 'but not the kernels, which have their own');

# --- what debuggers get

# Whether each object knows its functions, and the parameters of these.
sub known_of
{
	return join ' ', map {
		my $known = `readelf --debug-dump=info $tree/$_`;
		($known =~ /DW_TAG_subprogram/ ? 'functions' : 'nothing') . ($known =~ /DW_TAG_formal_parameter/ ? ',parameters' : '')
	} @objects;
}
make('CUDA=OFF');
is(known_of(), 'functions functions', 'functions by default, in both halves');
make('CUDA=OFF', 'DEBUG_INFO=-g');
is(known_of(), 'functions,parameters functions,parameters', 'variables with DEBUG_INFO=-g');

# --- a unit test that there is not

IPC::Run::run([ 'scripts/test', 'unit', 'kernels_tests' ], '>&', \$output);
is($? >> 8, 2, 'scripts/test unit with a wrong name: the status of wrong arguments');
is($output, "kernels_tests: no such program; there are: bench_test, cuda_test, kernels_test\n",
	'it names the programs, and builds nothing');

# --- the packages that README.md names

sub slurp { local (@ARGV, $/) = @_; return scalar <> }
my ($named) = slurp('README.md') =~ /apt-get install ([-a-z0-9+ ]+)\n/;
my ($group) = slurp('scripts/packages') =~ /# to build[^\n]*\n(.*?)\n\n/s;
is($named, join(' ', $group =~ /^([-a-z0-9+]+)/mg), 'README.md names the packages of scripts/packages');

done_testing();
