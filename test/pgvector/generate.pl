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
my ($types) = $script =~ /^DO \$own_types\$\nBEGIN\n.*?^END IF;\n(.*)^END\n\$own_types\$;/ms
  or die "$source has no block of types";
my %symbol;
$types =~ s/'MODULE_PATHNAME', 'pgwarp_(\w+)'/$symbol{$1} = 1; "'MODULE_PATHNAME', '$1'"/ge;
die "$source has types whose functions have no symbol" if !%symbol || $types =~ /MODULE_PATHNAME'\s+LANG/;

# What concerns halfvec came with 0.7.0.
my @statements = $types =~ /((?:--[^\n]*\n|\s)*\S(?:'(?:[^']|'')*'|[^';])*;)/g;
my $old = join('', grep { !/halfvec/ } @statements) . "\n";
my $halfvec = join('', grep { /halfvec/ } @statements) . "\n";
die "$source has statements that were not understood"
  if join('', @statements) =~ s/\s//gr ne $types =~ s/\s//gr;
die "$source has no halfvec" if $halfvec !~ /\S/;
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
