#!/usr/bin/perl
# Writes the stand-in for pgvector, see install: generate.pl SCRIPT-OF-PGWARP FOLDER
use strict;
use warnings;

my ($source, $folder) = @ARGV;

sub spew
{
	my ($name, $text) = @_;
	# A file that stays as it is keeps its time, for make.
	my $old = -e "$folder/$name" ? do { local (@ARGV, $/) = "$folder/$name"; <> } : '';
	return if $old eq $text;
	open(my $file, '>', "$folder/$name") or die "$name: $!";
	print $file $text;
	close $file or die "$name: $!";
}

my $script = do { local (@ARGV, $/) = $source; <> };
my ($all) = $script =~ /^(DO \$own_types\$\n.*?^\$own_types\$;\n)/ms or die "$source has no block of types";
$all =~ s/^IF pgwarp_bind_types.*?^END IF;\n//ms or die "$source does not look for types";
# The symbols of pgvector's library have our names without this.
$all =~ s/pgwarp_//g;
$all =~ /^FOREACH of_type IN ARRAY '\{vector,halfvec\}'.*?^END LOOP;\n(.*?)^FOR made IN SELECT \* FROM \(VALUES\n(.*?)\)\n    AS v/ms
  or die "$source has types in another form";
my ($statements, $casts) = ($1, $2);
my @statements = $statements =~ /((?:--[^\n]*\n|\s)*\S(?:'(?:[^']|'')*'|[^';])*;)/g;
my @casts = split /,\n/, $casts;

# The script of one type. What concerns halfvec came with 0.7.0.
sub script_of
{
	my ($type, $wanted) = @_;
	my ($of_type, $kept, $rows) = ($all, join('', grep { $wanted->($_) } @statements) . "\n", join(",\n", grep { $wanted->($_) } @casts));
	$of_type =~ s/\{vector,halfvec\}/{$type}/;
	$of_type =~ s/\Q$statements\E/$kept/;
	$of_type =~ s/\Q$casts\E/$rows/;
	return $of_type;
}
my $old = script_of('vector', sub { $_[0] !~ /halfvec/ });
my $halfvec = script_of('halfvec', sub { $_[0] =~ /halfvec/ });
my %symbol = map { $_ => 1 } $statements =~ /'MODULE_PATHNAME', '(\w+)'/g;
my ($functions_of_types) = $all =~ /\(VALUES\n(.*?)AS v \(name, arguments, result, description\)/s or die "$source has no functions";
for my $name ($functions_of_types =~ /^\s*\('([@\w]+)',/mg, 'vector_norm', 'l2_norm')
{
	my %name = map { $_ => $name =~ s/@/$_/r } qw(vector halfvec);
	$symbol{$name{vector}} = 1 if $name ne 'l2_norm';
	$symbol{$name =~ /@/ ? $name{halfvec} : $name eq 'vector_dims' ? 'halfvec_dims' : "halfvec_$name"} = 1 if $name ne 'vector_norm';
}
die "$source has few functions" if keys %symbol < 60;
my $sum = "COMMENT ON TYPE vector IS 'vector of the stand-in, 0.8.0';\n";

spew('vector--0.6.2.sql', $old);
spew('vector--0.6.2--0.7.0.sql', $halfvec);
spew('vector--0.7.0.sql', "$old$halfvec");
spew('vector--0.7.0--0.8.0.sql', $sum);
spew('vector--0.8.0.sql', "$old$halfvec$sum");
spew('vector.control', <<'END');
comment = 'stand-in for pgvector in tests of pgwarp'
default_version = '0.8.0'
module_pathname = '$libdir/vector'
relocatable = true
trusted = true
END

spew('Makefile', <<'END');
EXTENSION = vector
MODULES = vector
DATA = $(wildcard vector--*.sql)
override with_llvm := no
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
END

# Ours would find values that a scan has read in its cache. pgvector's distances read them from the table, and
# so must these, for tests of what spares that.
my @distances = grep { /distance$|inner_product$/ } sort keys %symbol;
die "$source has no distances" if !@distances;
delete @symbol{@distances};
my $functions = join("\n", (map { "FORWARD($_)" } sort keys %symbol), map { "DISTANCE($_)" } @distances);
spew('vector.c', <<"END");
#include "postgres.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

#define FORWARD(name) \\
	PG_FUNCTION_INFO_V1(name); \\
	Datum name(PG_FUNCTION_ARGS) \\
	{ \\
		static PGFunction function; \\
		if (!function) \\
			function = load_external_function("\$libdir/pgwarp", "pgwarp_" #name, true, NULL); \\
		return function(fcinfo); \\
	}

#define DISTANCE(name) \\
	PG_FUNCTION_INFO_V1(name); \\
	Datum name(PG_FUNCTION_ARGS) \\
	{ \\
		static PGFunction function; \\
		Datum a = PG_GETARG_DATUM(0), b = PG_GETARG_DATUM(1), distance; \\
		if (!function) \\
			function = load_external_function("\$libdir/pgwarp", "pgwarp_" #name, true, NULL); \\
		fcinfo->args[0].value = PointerGetDatum(PG_DETOAST_DATUM(a)); \\
		fcinfo->args[1].value = PointerGetDatum(PG_DETOAST_DATUM(b)); \\
		distance = function(fcinfo); \\
		fcinfo->args[0].value = a; \\
		fcinfo->args[1].value = b; \\
		return distance; \\
	}

$functions
END
