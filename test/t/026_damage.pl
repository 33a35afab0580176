# Damaged pages. Whatever is wrong with an index, nothing crashes, hangs, or gives wrong rows where that
# can be noticed: a query, insert or VACUUM ends with an error that names the index, or does its work;
# ivfpq_check finds what is wrong; REINDEX makes it good; and the table itself is out of danger.
use strict;
use warnings;
use File::Copy;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

# --- the format, as far as it is damaged here: see extension/index/format.h

my $page = 8192;
my $none = 0xffffffff;
my %kind = (meta => 1, centroids => 2, codebook => 3, directory => 4, list => 5, free => 6,
	refinement => 8, parents => 9, parent_places => 10);
my %tail = (list => [ 8176, 'V' ], next => [ 8180, 'V' ], prev => [ 8184, 'V' ], count => [ 8188, 'v' ],
	kind => [ 8190, 'v' ]);
my %meta = (magic => [ 24, 'V' ], version => [ 28, 'V' ], dims => [ 40, 'V' ], lists => [ 44, 'V' ],
	m => [ 48, 'V' ], bits => [ 52, 'C' ], metric => [ 53, 'C' ], quantizer => [ 54, 'C' ],
	centroids => [ 56, 'V' ], codebook => [ 60, 'V' ], directory => [ 64, 'V' ],
	asked_lists => [ 68, 'V' ], asked_m => [ 72, 'V' ], pending_head => [ 104, 'V' ],
	pending_tail => [ 108, 'V' ], pending_pages => [ 116, 'V' ], free_head => [ 120, 'V' ],
	free_pages => [ 124, 'V' ], first_queries => [ 128, 'V' ], first_steps => [ 132, 'V' ],
	first_probes => [ 136, 'V' ], probe_steps => [ 1564, 'V' ], by_query_steps => [ 1568, 'V' ],
	probes => [ 1572, 'V' ], list_rule => [ 7174, 'C' ],
	code_dims => [ 1416, 'V' ], rotation => [ 1420, 'V' ], search_rounds => [ 1424, 'V' ],
	attributes => [ 1428, 'V' ], attribute_bytes => [ 1432, 'C' ], attribute_kind => [ 1464, 'C' ],
	refinement => [ 7216, 'C' ], refinement_pages => [ 7220, 'V' ],
	parents => [ 7432, 'V' ], parent_rows => [ 7440, 'V' ], parent_places => [ 7444, 'V' ],
	has_undirected_list => [ 7448, 'C' ]);
my %place = (head => 0, tail => 4, generation => 8, pages => 12);
my $dims = 16;
my $m = 16;
# Entries a page: a code of m bytes, a float, a TID, in groups of eight.
my $capacity = int((8192 - 24 - 16) / ($m + 10));
$capacity -= $capacity % 8;
my $tids_at = 24 + $m * $capacity + 4 * $capacity;

# An index with one attribute, a bigint: eight bytes more, and one for nulls.
my $attribute = 'v, id';
my $wide_capacity = int((8192 - 24 - 16) / ($m + 9 + 10));
$wide_capacity -= $wide_capacity % 8;
my $numbers_at = 24 + $m * $wide_capacity;
my $nulls_at = $numbers_at + 8 * $wide_capacity;

# An index with refinements: on a list page the numbers of its refinement pages, on these records of a
# head, a TID and a byte for each dimension.
my $refined = 'refine = int8';
my $refinements_at = $tids_at + 6 * $capacity;
my $record_bytes = 24 + $dims;

# An index whose lists have parents: eight bytes for each, the first list and a radius.
my $with_parents = 'parents = 3';
sub first_list { my ($parent) = @_; return [ 24 + 8 * $parent, 'V' ]; }

# The file of one index, in memory.
sub at { my ($file, $block, $field) = @_;
	return unpack($field->[1], substr($$file, $block * $page + $field->[0], 8)); }
sub put { my ($file, $block, $field, $value) = @_;
	my $bytes = pack($field->[1], $value);
	substr($$file, $block * $page + $field->[0], length $bytes) = $bytes;
	return; }
sub blocks_of { my ($file, $kind) = @_;
	return grep { at($file, $_, $tail{kind}) == $kind{$kind} } 0 .. length($$file) / $page - 1; }
sub place_field { my ($list, $name) = @_; return [ 24 + 16 * $list + $place{$name}, 'V' ]; }
sub place { my ($file, $list, $name) = @_;
	my ($directory) = blocks_of($file, 'directory');
	return at($file, $directory, place_field($list, $name)); }
sub put_place { my ($file, $list, $name, $value) = @_;
	my ($directory) = blocks_of($file, 'directory');
	put($file, $directory, place_field($list, $name), $value);
	return; }
sub put_meta { my ($file, $name, $value) = @_; put($file, 0, $meta{$name}, $value); return; }
sub zero { my ($file, $block) = @_; substr($$file, $block * $page, $page) = "\0" x $page; return; }
# List 0 has several pages: head, a middle one, the tail.
sub pages_of_list { my ($file, $list) = @_;
	my @pages;
	for (my $block = place($file, $list, 'head'); $block != $none; $block = at($file, $block, $tail{next}))
	{
		push @pages, $block;
	}
	return @pages; }
sub put_tid { my ($file, $block, $slot, $high, $low, $offset) = @_;
	substr($$file, $block * $page + $tids_at + 6 * $slot, 6) = pack('vvv', $high, $low, $offset);
	return; }

sub put_number { my ($file, $block, $slot, $number) = @_;
	substr($$file, $block * $page + $numbers_at + 8 * $slot, 8) = pack('Q<', $number);
	return; }
sub put_null { my ($file, $block, $slot, $bits) = @_;
	substr($$file, $block * $page + $nulls_at + $slot, 1) = chr($bits);
	return; }

sub refinement_field { my ($number) = @_; return [ $refinements_at + 4 * $number, 'V' ]; }
# The first refinement page of a page of list 0.
sub refinement { my ($file, $number) = @_;
	return at($file, (pages_of_list($file, 0))[$number], refinement_field(0)); }
sub put_record { my ($file, $slot, $from, $bytes) = @_;
	substr($$file, refinement($file, 1) * $page + 24 + $slot * $record_bytes + $from, length $bytes) = $bytes;
	return; }

# --- what is done to an index, and what its scans must do: 'error', 'right' (all rows, for the damage
# does not concern them), or 'any' (what is damaged cannot be told from what is not). `check` says
# that ivfpq_check must complain, which is so unless the damage is none. `columns` are those of the
# index, `problem` what ivfpq_check must say, `options` more of the index's.

my @damages = (
	[ 'magic', 'error', sub { put_meta($_[0], magic => 0x12345678) } ],
	[ 'version', 'error', sub { put_meta($_[0], version => 99) } ],
	[ 'an index of version 1', 'right', sub {
		put_meta($_[0], version => 1); put_meta($_[0], code_dims => 0);
		put_meta($_[0], rotation => 0) }, 'no check' ],
	[ 'an index of version 2', 'right', sub { put_meta($_[0], version => 2) }, 'no check' ],
	[ 'an index of version 3', 'right', sub { put_meta($_[0], version => 3) }, 'no check' ],
	[ 'an index of version 4', 'right', sub {
		put_meta($_[0], version => 4); put_meta($_[0], first_queries => 512);
		put_meta($_[0], first_steps => 1); put_meta($_[0], first_probes => 3) }, 'no check' ],
	[ 'thresholds of another rule', 'right', sub { put_meta($_[0], list_rule => 0) }, 'no check' ],
	[ 'probe steps of version 4', 'error', sub {
		put_meta($_[0], version => 4); put_meta($_[0], first_steps => 99) } ],
	[ 'two lists without codes', 'error', sub { put_meta($_[0], has_undirected_list => 2) } ],
	[ 'search rounds', 'error', sub { put_meta($_[0], search_rounds => 16) } ],
	[ 'additive codes', 'error', sub {
		put_meta($_[0], quantizer => 2); put_meta($_[0], search_rounds => 16) } ],
	[ 'code dims', 'error', sub { put_meta($_[0], code_dims => 15) } ],
	[ 'rotation elsewhere', 'error', sub { put_meta($_[0], rotation => $none) } ],
	[ 'no dims', 'error', sub { put_meta($_[0], dims => 0) } ],
	[ 'more dims', 'error', sub { put_meta($_[0], dims => 17) } ],
	[ 'fewer dims', 'error', sub { put_meta($_[0], dims => 15) } ],
	[ 'many dims', 'error', sub { put_meta($_[0], dims => $none) } ],
	[ 'no lists', 'any', sub { put_meta($_[0], lists => 0) } ],
	[ 'more lists', 'error', sub { put_meta($_[0], lists => 4) }, 'any check' ],
	[ 'many lists', 'error', sub { put_meta($_[0], lists => $none) } ],
	[ 'm is 0', 'error', sub { put_meta($_[0], m => 0) } ],
	[ 'other m', 'error', sub { put_meta($_[0], m => 8) } ],
	[ 'large m', 'error', sub { put_meta($_[0], m => 1 << 31) } ],
	[ 'bits', 'error', sub { put_meta($_[0], bits => 4) } ],
	[ 'metric', 'error', sub { put_meta($_[0], metric => 77) } ],
	[ 'quantizer', 'error', sub { put_meta($_[0], quantizer => 1) } ],
	[ 'centroids elsewhere', 'error', sub { put_meta($_[0], centroids => 1 << 20) } ],
	[ 'codebook nowhere', 'error', sub { put_meta($_[0], codebook => $none) } ],
	[ 'directory elsewhere', 'error', sub { put_meta($_[0], directory => 3) } ],
	[ 'asked lists', 'error', sub { put_meta($_[0], asked_lists => 1 << 30) } ],
	[ 'asked m', 'error', sub { put_meta($_[0], asked_m => 1 << 30) } ],
	[ 'pending head', 'error', sub { put_meta($_[0], pending_head => place($_[0], 0, 'head')) } ],
	[ 'pending pages', 'error', sub { put_meta($_[0], pending_pages => 1) } ],
	[ 'many pending pages', 'error', sub { put_meta($_[0], pending_pages => $none) } ],
	[ 'free head', 'right', sub { put_meta($_[0], free_head => place($_[0], 0, 'head')) } ],
	[ 'free head nowhere', 'right', sub { put_meta($_[0], free_head => 1 << 25) } ],
	[ 'many free pages', 'error', sub { put_meta($_[0], free_pages => $none) } ],
	[ 'probe steps', 'error', sub { put_meta($_[0], probe_steps => 99) } ],
	[ 'steps by query', 'error', sub { put_meta($_[0], by_query_steps => 99) } ],
	[ 'probes', 'error', sub { put_meta($_[0], probes => 1 << 30) } ],
	[ 'no lists, but steps', 'error', sub { put_meta($_[0], lists => 0); put_meta($_[0], probe_steps => 99) } ],
	[ 'metapage of another kind', 'error', sub { put($_[0], 0, $tail{kind}, $kind{list}) } ],
	[ 'metapage zeroed', 'error', sub { zero($_[0], 0) } ],
	[ 'metapage is a list page', 'error', sub {
		substr(${ $_[0] }, 0, $page) = substr(${ $_[0] }, $page * place($_[0], 0, 'head'), $page) } ],
	[ 'head of another list', 'error', sub { put_place($_[0], 0, head => place($_[0], 1, 'head')) } ],
	[ 'no head', 'error', sub { put_place($_[0], 0, head => $none) } ],
	[ 'head behind the end', 'error', sub { put_place($_[0], 0, head => 1 << 24) } ],
	[ 'head at the metapage', 'error', sub { put_place($_[0], 0, head => 0) } ],
	[ 'head skips a page', 'error', sub { put_place($_[0], 0, head => (pages_of_list($_[0], 0))[1]) } ],
	[ 'rows without a direction in a list', 'error', sub { put_place($_[0], 3, head => place($_[0], 0, 'head')) } ],
	[ 'tail in the middle', 'right', sub { put_place($_[0], 0, tail => (pages_of_list($_[0], 0))[1]) } ],
	[ 'tail of another list', 'right', sub { put_place($_[0], 0, tail => place($_[0], 1, 'tail')) } ],
	[ 'tail at its place', 'right', sub {
		put_place($_[0], 0, tail => (blocks_of($_[0], 'directory'))[0]) } ],
	[ 'no tail', 'right', sub { put_place($_[0], 0, tail => $none) } ],
	[ 'more pages', 'error', sub { put_place($_[0], 0, pages => 77) } ],
	[ 'fewer pages', 'right', sub { put_place($_[0], 0, pages => 1) } ],
	[ 'directory zeroed', 'error', sub { zero($_[0], (blocks_of($_[0], 'directory'))[0]) } ],
	[ 'loop of one', 'error', sub { my ($head) = pages_of_list($_[0], 0);
		put($_[0], $head, $tail{next}, $head) } ],
	[ 'loop of all', 'error', sub { my @pages = pages_of_list($_[0], 0);
		put($_[0], $pages[-2], $tail{next}, $pages[0]) } ],
	[ 'chain cut', 'error', sub { my @pages = pages_of_list($_[0], 0);
		put($_[0], $pages[1], $tail{next}, $none) } ],
	[ 'chain to another list', 'error', sub { my ($head) = pages_of_list($_[0], 0);
		put($_[0], $head, $tail{next}, place($_[0], 1, 'head')) } ],
	[ 'chain behind the end', 'error', sub { my ($head) = pages_of_list($_[0], 0);
		put($_[0], $head, $tail{next}, 1 << 22) } ],
	[ 'chain to the directory', 'error', sub { my ($head) = pages_of_list($_[0], 0);
		put($_[0], $head, $tail{next}, (blocks_of($_[0], 'directory'))[0]) } ],
	[ 'prev', 'right', sub { my @pages = pages_of_list($_[0], 0);
		put($_[0], $pages[-1], $tail{prev}, $pages[0]) } ],
	[ 'many entries', 'error', sub { put($_[0], (pages_of_list($_[0], 0))[1], $tail{count}, 65535) } ],
	[ 'few entries', 'error', sub { put($_[0], (pages_of_list($_[0], 0))[1], $tail{count}, 5) } ],
	[ 'few entries at the tail', 'any', sub { put($_[0], place($_[0], 0, 'tail'), $tail{count}, 1) } ],
	[ 'names another list', 'error', sub { put($_[0], (pages_of_list($_[0], 0))[1], $tail{list}, 1) } ],
	[ 'list page of another kind', 'error', sub {
		put($_[0], (pages_of_list($_[0], 0))[1], $tail{kind}, $kind{free}) } ],
	[ 'kind of no page', 'error', sub { put($_[0], (pages_of_list($_[0], 0))[1], $tail{kind}, 999) } ],
	[ 'list page zeroed', 'error', sub { zero($_[0], (pages_of_list($_[0], 0))[1]) } ],
	[ 'a hole', 'error', sub { put($_[0], (pages_of_list($_[0], 0))[1], [ 12, 'v' ], 100) } ],
	[ 'special space', 'error', sub { put($_[0], (pages_of_list($_[0], 0))[1], [ 16, 'v' ], 8000) } ],
	[ 'TID of no block', 'error', sub {
		put_tid($_[0], (pages_of_list($_[0], 0))[0], 3, 0xffff, 0xffff, 5) } ],
	[ 'TID behind the table', 'error', sub {
		put_tid($_[0], (pages_of_list($_[0], 0))[0], 3, 0, 40000, 5) } ],
	[ 'TID of no line', 'error', sub { put_tid($_[0], (pages_of_list($_[0], 0))[0], 3, 0, 1, 0) } ],
	[ 'TID twice', 'any', sub { my ($head) = pages_of_list($_[0], 0);
		substr(${ $_[0] }, $head * $page + $tids_at, 6) =
		  substr(${ $_[0] }, $head * $page + $tids_at + 6, 6) } ],
	[ 'centroids zeroed', 'error', sub { zero($_[0], (blocks_of($_[0], 'centroids'))[0]) } ],
	[ 'centroids lack a row', 'error', sub {
		put($_[0], (blocks_of($_[0], 'centroids'))[0], $tail{count}, 2) }, 'any check' ],
	[ 'codebook zeroed', 'error', sub { zero($_[0], (blocks_of($_[0], 'codebook'))[0]) } ],
	[ 'codebook of another kind', 'error', sub {
		put($_[0], (blocks_of($_[0], 'codebook'))[0], $tail{kind}, $kind{centroids}) } ],
	[ 'free page of another kind', 'right', sub {
		put($_[0], at($_[0], 0, $meta{free_head}), $tail{kind}, $kind{codebook}) } ],
	[ 'free list has a loop', 'right', sub { my $free = at($_[0], 0, $meta{free_head});
		put($_[0], $free, $tail{next}, $free) } ],
	[ 'free list leads to a list', 'right', sub {
		put($_[0], at($_[0], 0, $meta{free_head}), $tail{next}, place($_[0], 0, 'head')) } ],
	[ 'file cut in half', 'error', sub {
		${ $_[0] } = substr(${ $_[0] }, 0, $page * int(length(${ $_[0] }) / $page / 2)) } ],
	[ 'file cut to its metapage', 'error', sub { ${ $_[0] } = substr(${ $_[0] }, 0, $page) } ],
	[ 'file cut to nothing', 'error', sub { ${ $_[0] } = '' } ],
	[ 'file with an empty page more', 'right', sub { ${ $_[0] } .= "\0" x $page }, 'any check' ],
	[ 'attributes of version 3', 'error', sub { put_meta($_[0], version => 3) }, undef, $attribute ],
	[ 'no attributes', 'error', sub { put_meta($_[0], attributes => 0) }, undef, $attribute ],
	[ 'more attributes', 'error', sub { put_meta($_[0], attributes => 2) }, undef, $attribute ],
	[ 'many attributes', 'error', sub { put_meta($_[0], attributes => 32) }, undef, $attribute ],
	[ 'attributes that the index has not', 'error', sub {
		put_meta($_[0], attributes => 1); put_meta($_[0], attribute_bytes => 8);
		put_meta($_[0], attribute_kind => 1) } ],
	[ 'short attribute', 'error', sub { put_meta($_[0], attribute_bytes => 4) }, undef, $attribute ],
	[ 'attribute of three bytes', 'error', sub { put_meta($_[0], attribute_bytes => 3) }, undef, $attribute ],
	[ 'attribute of another kind', 'error', sub { put_meta($_[0], attribute_kind => 3) }, undef, $attribute ],
	[ 'attribute of no kind', 'error', sub { put_meta($_[0], attribute_kind => 5) }, undef, $attribute ],
	[ 'wrong attribute', 'right', sub { put_number($_[0], (pages_of_list($_[0], 0))[1], 3, 12345) }, undef,
		$attribute, qr/^\d+\|entry 3 of row \(\d+,\d+\) has another "id" than the row$/ ],
	[ 'attribute is null', 'right', sub { my $block = (pages_of_list($_[0], 0))[1];
		put_number($_[0], $block, 3, 0); put_null($_[0], $block, 3, 1) }, undef,
		$attribute, qr/^\d+\|entry 3 of row \(\d+,\d+\) has another "id" than the row$/ ],
	[ 'null with a number', 'right', sub { put_null($_[0], (pages_of_list($_[0], 0))[1], 3, 1) }, undef,
		$attribute, qr/^\d+\|entry 3 of row \(\d+,\d+\) has a number for "id", which is null$/m ],
	[ 'null of no attribute', 'right', sub { put_null($_[0], (pages_of_list($_[0], 0))[1], 3, 2) }, undef,
		$attribute, qr/^\d+\|entry 3 of row \(\d+,\d+\) has nulls of attributes that do not exist$/ ],
	[ 'nothing, with an attribute', 'right', sub { }, 'no check', $attribute ],
	[ 'an index of version 5', 'right', sub { put_meta($_[0], version => 5) }, 'no check' ],
	[ 'nothing, with parents', 'right', sub { }, 'no check', 'v', undef, $with_parents ],
	[ 'an index of version 6', 'right', sub { put_meta($_[0], version => 6) }, 'no check' ],
	[ 'parents of version 6', 'error', sub { put_meta($_[0], version => 6) }, undef, 'v', undef, $with_parents ],
	[ 'parents of an index without', 'error', sub { put_meta($_[0], parents => 2) } ],
	[ 'more parents than lists', 'error', sub { put_meta($_[0], parents => 1000) }, undef, 'v', undef, $with_parents ],
	[ 'parents elsewhere', 'error', sub { put_meta($_[0], parent_rows => 1) }, undef, 'v', undef, $with_parents ],
	[ 'parents zeroed', 'error', sub { zero($_[0], (blocks_of($_[0], 'parents'))[0]) }, undef, 'v', undef, $with_parents ],
	[ 'parents of another kind', 'error', sub {
		put($_[0], (blocks_of($_[0], 'parents'))[0], $tail{kind}, $kind{centroids}) }, undef, 'v', undef, $with_parents ],
	[ 'lists of parents of another kind', 'error', sub {
		put($_[0], (blocks_of($_[0], 'parent_places'))[0], $tail{kind}, $kind{centroids}) }, undef, 'v', undef, $with_parents ],
	[ 'a list without a parent', 'error', sub {
		put($_[0], (blocks_of($_[0], 'parent_places'))[0], first_list(0), 1) }, undef, 'v',
		qr/^\d+\|the parents do not have all lists, each once$/, $with_parents ],
	[ 'a parent without lists', 'error', sub { my $block = (blocks_of($_[0], 'parent_places'))[0];
		put($_[0], $block, first_list(1), at($_[0], $block, first_list(2))) }, undef, 'v',
		qr/^\d+\|the parents do not have all lists, each once$/, $with_parents ],
	[ 'a parent with lists behind the end', 'error', sub {
		put($_[0], (blocks_of($_[0], 'parent_places'))[0], first_list(2), 1 << 30) }, undef, 'v',
		qr/^\d+\|the parents do not have all lists, each once$/, $with_parents ],
	[ 'refinements of version 5', 'any', sub { put_meta($_[0], version => 5) }, 'any check', 'v', undef, $refined ],
	[ 'refinement of no kind', 'error', sub { put_meta($_[0], refinement => 2) }, undef, 'v', undef, $refined ],
	[ 'refinement of an index without', 'any', sub { put_meta($_[0], refinement => 1) }, 'any check' ],
	[ 'refinement pages without refinements', 'error', sub { put_meta($_[0], refinement_pages => 1) } ],
	[ 'many refinement pages', 'error', sub { put_meta($_[0], refinement_pages => $none) }, undef, 'v', undef, $refined ],
	[ 'fewer refinement pages', 'right', sub { put_meta($_[0], refinement_pages => 1) }, undef, 'v',
		qr/^0\|the index claims 1 refinement pages, \d+ were found$/, $refined ],
	[ 'refinement page zeroed', 'error', sub { zero($_[0], refinement($_[0], 1)) }, undef, 'v', undef, $refined ],
	[ 'refinement page of another kind', 'right', sub {
		put($_[0], refinement($_[0], 1), $tail{kind}, $kind{codebook}) }, undef, 'v', undef, $refined ],
	[ 'refinement page of another list', 'right', sub { put($_[0], refinement($_[0], 1), $tail{list}, 1) }, undef, 'v',
		undef, $refined ],
	[ 'refinement page of no list', 'right', sub { put($_[0], refinement($_[0], 1), $tail{list}, 77) }, undef, 'v',
		undef, $refined ],
	[ 'refinement page of another page', 'right', sub {
		put($_[0], (pages_of_list($_[0], 0))[1], refinement_field(0), refinement($_[0], 0)) }, undef, 'v',
		qr/belongs to another structure too/, $refined ],
	[ 'no refinement page', 'right', sub {
		put($_[0], (pages_of_list($_[0], 0))[1], refinement_field(0), 0) }, undef, 'v', qr/lacks a refinement page/, $refined ],
	[ 'refinement page behind the end', 'error', sub {
		put($_[0], (pages_of_list($_[0], 0))[1], refinement_field(0), 1 << 25) }, undef, 'v', undef, $refined ],
	[ 'refinement of another row', 'right', sub { put_record($_[0], 3, 16, pack('vvv', 0, 1, 2)) }, undef, 'v',
		qr/^\d+\|entry 3 of row \(\d+,\d+\) has the refinement of another row$/, $refined ],
	[ 'codes of another vector', 'right', sub { put_record($_[0], 3, 24, pack('c*', (100, -100) x ($dims / 2))) }, undef,
		'v', qr/^\d+\|entry 3 of row \(\d+,\d+\) has a refinement of another vector$/, $refined ],
	[ 'offset of another vector', 'right', sub { put_record($_[0], 3, 4, pack('f<', 1e7)) }, undef, 'v',
		qr/^\d+\|entry 3 of row \(\d+,\d+\) has a refinement with numbers of another vector$/, $refined ],
	[ 'nothing, with refinements', 'right', sub { }, 'no check', 'v', undef, $refined ],
	[ 'nothing', 'right', sub { }, 'no check' ]);

# --- as many tables as there are damages

my $node = new_node('damage', checksums => 0, conf => "restart_after_crash = off\nmaintenance_work_mem = 16MB");
my $rows = 3600;
value($node, "CREATE TABLE original (id bigint, v vector($dims))");
value($node, "INSERT INTO original SELECT i, vec(i, $dims) FROM generate_series(1, 4500) AS i");
# One index of each kind is built. The tables of the others are empty and get its files, and those of its table,
# while the server is down.
my (%made, @tables, @path);
# Before there are rows: a table's relfrozenxid must not be younger than rows that it gets.
value($node, join(';', map { "CREATE TABLE t_$_ (LIKE original)" } 0 .. $#damages));
sub file_of { my ($relation) = @_; return $node->data_dir . '/' . value($node, "SELECT pg_relation_filepath('$relation')"); }
for my $n (0 .. $#damages)
{
	my $columns = $damages[$n][4] // 'v';
	my $more = $damages[$n][6] ? ", $damages[$n][6]" : '';
	my $first = $made{"$columns$more"} //= $n;
	my $fill = $first == $n ? "INSERT INTO t_$n SELECT * FROM original;" : '';
	value($node, "SET client_min_messages = warning; $fill
		CREATE INDEX i_$n ON t_$n USING ivfpq ($columns) WITH (lists = 3, m = $m$more)");
	if ($first == $n)
	{
		# Deleted rows give the index free pages.
		value($node, "DELETE FROM t_$n WHERE id > $rows");
		value($node, "VACUUM t_$n");
	}
	push @tables, [ $first, file_of("t_$n") ];
	push @path, file_of("i_$n");
}
# The place where this file knows the format from.
is(value($node, "SELECT free_bytes > 0 AND shortest_list > 2 * $capacity FROM ivfpq_info('i_0')"), 't',
	'every list has several pages, and there are free pages');
$node->stop;
my %undamaged = map { $_ => slurp_file($path[$_]) } values %made;
# What REINDEX reads of the old index is its metapage: it runs where that is damaged, and once for each kind of index.
my ($format_is_known, %reindexed, @reindexes);
for my $n (0 .. $#damages)
{
	my ($first, $table) = @{ $tables[$n] };
	for my $fork ($first == $n ? () : ('', '_vm', '_fsm'))
	{
		copy("$tables[$first][1]$fork", "$table$fork") or die "cannot copy $tables[$first][1]$fork: $!";
	}
	my $file = $undamaged{$first};
	$format_is_known = at(\$file, 0, $meta{dims}) == $dims && at(\$file, 0, $meta{lists}) == 3
	  && at(\$file, 0, $meta{m}) == $m && at(\$file, 0, $meta{code_dims}) == $dims && at(\$file, 0, $tail{kind}) == $kind{meta}
	  && at(\$file, 0, $meta{directory}) == (blocks_of(\$file, 'directory'))[0]
	  && pages_of_list(\$file, 0) == place(\$file, 0, 'pages') && pages_of_list(\$file, 0) > 2;
	last unless $format_is_known;
	$damages[$n][2]->(\$file);
	$reindexes[$n] = substr($file, 0, $page) ne substr($undamaged{$first}, 0, $page) || !$reindexed{$first}++;
	open(my $handle, '>:raw', $path[$n]) or die $!;
	print $handle $file;
	close $handle;
}
ok($format_is_known, 'the format is as this test knows it') or BAIL_OUT('extension/index/format.h has changed');
$node->start;

# --- what comes of it

# Runs a statement. What it says must be nothing or an error about the index, in a while.
my $session = session($node);
$session->query_safe('SET enable_seqscan = off');
$session->query_safe("SET statement_timeout = '20s'");
sub says
{
	my ($n, $what, $statement) = @_;
	my $result = $session->query($statement);
	my $error = $session->{stderr};
	$session->{stderr} = '';
	fail("$damages[$n][0], $what: $error")
	  if $error ne '' && $error !~ /index "i_$n" (is damaged|has format version)/
	  && $error !~ /invalid page in block \d+ of relation/;    # PostgreSQL's own, of page headers
	return ($result, $error);
}

for my $n (0 .. $#damages)
{
	my ($name, $scans, undef, $checks, $columns, $problem) = @{ $damages[$n] };
	is(value($node, "SELECT (SELECT count(*) FROM ivfpq_recall_curve('i_$n', true)),
		(SELECT count(*) FROM ivfpq_recall_curve('i_$n'))"), '0|0', "$name: not used")
	  if $name eq 'thresholds of another rule';
	my ($found, $error) = says($n, 'check', "SELECT count(*) FROM ivfpq_check('i_$n', true)");
	if (!$checks)
	{
		ok($error ne '' || $found > 0, "$name: noticed by ivfpq_check");
	}
	elsif ($checks eq 'no check')
	{
		is("$found $error", '0 ', "$name: nothing to notice");
	}
	like((says($n, 'check', "SELECT block, problem FROM ivfpq_check('i_$n', true)"))[0], $problem,
		"$name: ivfpq_check tells what and where") if $problem;
	says($n, 'info', "SELECT lists FROM ivfpq_info('i_$n')");
	says($n, 'curve', "SELECT count(*) FROM ivfpq_recall_curve('i_$n')");
	says($n, 'recall', "SELECT ivfpq_recall('i_$n', 5, 5)");
	says($n, 'search', "SELECT id FROM t_$n ORDER BY v <-> vec(7, $dims) LIMIT 20");
	says($n, 'condition', "SELECT id FROM t_$n WHERE id = 7 ORDER BY v <-> vec(7, $dims) LIMIT 20")
	  if $columns;
	my $whole = "SELECT count(*), count(DISTINCT id) FROM
		(SELECT id FROM t_$n ORDER BY v <-> vec(0, $dims)) AS s";
	($found, $error) = says($n, 'scan', $whole);
	if ($scans eq 'error')
	{
		isnt($error, '', "$name: a scan ends with an error") or diag($found);
	}
	elsif ($scans eq 'right')
	{
		is("$found $error", "$rows|$rows ", "$name: a scan has every row");
	}
	# Without the index, and in what else there is on the table, all is well.
	is($session->query_safe("SELECT count(*) FROM t_$n"), $rows, 'the table is there');
	# Many inserts one by one: a damaged list refuses, others do not.
	says($n, 'insert', "INSERT INTO t_$n VALUES ($rows + $_, vec($_, $dims))") for 1 .. 3;
	says($n, 'inserts', "INSERT INTO t_$n SELECT $rows + 10 + i, vec(i * 3, $dims)
		FROM generate_series(1, 700) AS i");
	my $before = $session->query_safe("SELECT count(*) FROM t_$n");
	says($n, 'delete', "DELETE FROM t_$n WHERE id % 2 = 0");
	says($n, 'vacuum', "VACUUM t_$n");
	says($n, 'vacuum again', "VACUUM t_$n");
	($found, $error) = says($n, 'scan after VACUUM', $whole);
	my $expected = $session->query_safe("SELECT count(*), count(DISTINCT id) FROM t_$n");
	is("$found $error", "$expected ", "$name: and VACUUM changes nothing of it")
	  if $scans eq 'right' && $error eq '';
	# Other options for that REINDEX can be given before it, whatever is wrong; those it could not use
	# are refused.
	$session->query_safe('SET client_min_messages = warning');
	$session->query("ALTER INDEX i_$n SET (lists = 3)");
	is($session->{stderr}, '', "$name: it takes other options");
	$session->{stderr} = '';
	$session->query("ALTER INDEX i_$n SET (m = @{[ $dims + 1 ]})");
	like($session->{stderr}, qr/ERROR:.*dimensions/, "$name: and refuses what REINDEX could not use");
	$session->{stderr} = '';
	$session->query_safe('RESET client_min_messages');
	if (!$reindexes[$n])
	{
		$session->query_safe("DROP INDEX i_$n");
		next;
	}
	$session->query_safe("REINDEX INDEX i_$n");
	is($session->query_safe($whole), $expected, "$name: REINDEX makes it good");
}
# Lists are not taken by a threshold that was measured for other scores, until REINDEX measures it.
my ($other) = grep { $damages[$_][0] eq 'thresholds of another rule' } 0 .. $#damages;
is(value($node, "SELECT count(*) > 0 FROM ivfpq_recall_curve('i_$other', true)"), 't',
	'thresholds are there after REINDEX');

like(slurp_file($node->logfile), qr/has format version 99.*?HINT:  Please REINDEX it/s,
	'a format of the future: a hint to REINDEX');
unlike(slurp_file($node->logfile), qr/terminated by signal|PANIC|canceling statement/,
	'no crash, no hang');

$session->quit;
indexes_are_sound($node);
$node->stop;
done_testing();
