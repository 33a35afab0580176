# The examples of README.md and docs/*.md work, and print what the pages say; the pages name every
# setting, option, function and view; their links lead to files; tables of figures are of this minor version;
# META.json describes this version.
#
# How a page is read:
#   ```sql    runs in psql, in a database of the page's own that is empty at first, one block after the
#             other in one session. A block without output of its own may print anything but an error
#             or a warning.
#   ```text   directly behind such a block is what psql prints for it, notices and errors included.
#             Spaces at the ends of lines do not count.
#   ```ini    goes into postgresql.conf before the page runs; the server restarts for it, and again
#             without it for the next page. The service gets the host in a device's place, or what
#             PGWARP_TEST_DEVICES names.
#   ```       anything else is not run: shell commands, and SQL that needs what a test has not.
use strict;
use warnings;
use File::Basename qw(dirname);
use IPC::Run ();
use JSON::PP ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @pages = ('README.md', sort glob('docs/*.md'));
my %text = map { $_ => slurp_file($_) } @pages;
my $node = PostgreSQL::Test::Cluster->new('docs');
$node->init;
$node->append_conf('postgresql.conf', "autovacuum = off\nfsync = off\nlog_statement = none\n");
my $plain_conf = slurp_file($node->data_dir . '/postgresql.conf');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pgwarp');

# The fenced blocks of a page: kind, text, line, and whether nothing but space is before it up to the
# block before.
sub blocks_of
{
	my ($page) = @_;
	my ($end, @blocks) = (0);
	while ($text{$page} =~ /^```(\w*)[^\n]*\n(.*?)^```[ \t]*$/msg)
	{
		my ($kind, $content, $from, $to) = ($1, $2, $-[0], $+[0]);
		my $line = 1 + (substr($text{$page}, 0, $from) =~ tr/\n//);
		my $behind = @blocks && substr($text{$page}, $end, $from - $end) !~ /\S/;
		push @blocks, { kind => $kind, text => $content, line => $line, behind => $behind };
		$end = $to;
	}
	return @blocks;
}

sub trimmed
{
	my ($output) = @_;
	$output =~ s/[ \t]+$//mg;
	$output =~ s/^\n+|\n+\z//g;
	return $output;
}

sub restart_with
{
	my ($lines) = @_;
	my $devices = $ENV{PGWARP_TEST_DEVICES} // 'host';
	$lines .= "\npgwarp.devices = '$devices'\n" if $lines =~ /shared_preload_libraries/;
	my $file = $node->data_dir . '/postgresql.conf';
	unlink($file);
	append_to_file($file, "$plain_conf\n$lines\n");
	$node->restart;
	# A worker opens its device after the server has started.
	$node->poll_query_until('postgres', 'SELECT serves FROM pgwarp_service()')
	  if $lines =~ /shared_preload_libraries/;
	return;
}

# One session of psql for all blocks, with a line between them; its notices and errors are where they
# came.
sub outputs_of
{
	my ($database, @statements) = @_;
	my $mark = '=== end of block ===';
	my $input = join('', map { "$_\n\\echo $mark\n" } @statements);
	my $output = '';
	IPC::Run::run(['psql', '-XqP', 'pager=off', '-d', $node->connstr($database)],
		'<', \$input, '>&', \$output);
	return split(/^\Q$mark\E\n/m, $output, -1);
}

my $number = 0;
for my $page (@pages)
{
	my @blocks = blocks_of($page);
	my $settings = join('', map { $_->{text} } grep { $_->{kind} eq 'ini' } @blocks);
	my @sql = grep { $blocks[$_]{kind} eq 'sql' } 0 .. $#blocks;
	my $database = 'page_' . ++$number;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	restart_with($settings) if $settings;
	my @outputs = outputs_of($database, map { $blocks[$_]{text} } @sql);
	my $compared = 0;
	for my $i (0 .. $#sql)
	{
		my ($block, $next) = @blocks[$sql[$i], $sql[$i] + 1];
		my $name = "$page, line $block->{line}";
		if (!defined $outputs[$i + 1])
		{
			fail("$name: the session has ended before");
		}
		elsif ($next && $next->{kind} eq 'text' && $next->{behind})
		{
			is(trimmed($outputs[$i]), trimmed($next->{text}), $name);
			$compared++;
		}
		else
		{
			unlike($outputs[$i], qr/^(ERROR|FATAL|PANIC|WARNING):|^psql:/m, $name);
		}
	}
	# Some pages have commands for other machines only.
	ok($compared, "$page has an example with its output") if @sql;
	restart_with('') if $settings;
}

# Every link to a file of the tree, relative to its page, and to a heading there.
sub has_heading
{
	my ($file, $anchor) = @_;
	return grep { lc(s/[^\w\s-]//gr) =~ s/\s/-/gr eq $anchor } slurp_file($file) =~ /^#+ +(.+)$/mg;
}
for my $page (@pages, 'CHANGELOG.md')
{
	my @wrong;
	for my $link (grep { !/^\w+:/ } slurp_file($page) =~ /\]\(([^)\s]+)\)/g)
	{
		my ($file, $anchor) = split(/#/, $link);
		$file = length($file) ? dirname($page) . "/$file" : $page;
		push @wrong, $link if !-e $file || ($anchor && !has_heading($file, $anchor));
	}
	is("@wrong", '', "the links of $page");
}

# Tables that scripts/figures writes name the version that was measured. Patches keep them.
my ($minor) = slurp_file('pgwarp.control') =~ /^default_version = '(\d+\.\d+)\./m;
for my $page ('README.md', 'docs/comparison.md')
{
	my @blocks = $text{$page} =~ /^<!-- figures \w+ -->\n.*?^<!-- \/figures -->$/msg;
	is(scalar @blocks, scalar(() = $text{$page} =~ /<!-- figures/g), "$page: figures stand between marks");
	ok(@blocks, "$page has figures");
	for my $block (@blocks)
	{
		my ($name) = $block =~ /figures (\w+)/;
		is(join(' ', $block =~ /\bpgwarp (\d+\.\d+)\./g), $minor, "$page: the figures '$name' are of version $minor");
	}
	# Anything that is measured belongs there.
	(my $rest = $text{$page}) =~ s/^<!-- figures.*?^<!-- \/figures -->$|^```.*?^```$//msg;
	is(join('; ', $rest =~ /([^\n]*\d(?: x\b| ms\b| MB\b| queries\/s)[^\n]*)/g), '', "$page has no figures elsewhere");
}

# What the extension has and no page names.
my $all = join("\n", values %text);
sub names_all
{
	my ($what, $query) = @_;
	my @names = split(/\n/, $node->safe_psql('postgres', $query));
	ok(@names > 0, "there are $what");
	is(join(' ', grep { $all !~ /\b\Q$_\E\b/ } @names), '', "pages name all $what");
	return;
}
names_all('views', "SELECT c.relname FROM pg_depend AS d JOIN pg_class AS c ON c.oid = d.objid
	WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e' AND c.relkind = 'v'");
names_all('columns', "SELECT DISTINCT a.attname FROM pg_depend AS d JOIN pg_class AS c ON c.oid = d.objid
		JOIN pg_attribute AS a ON a.attrelid = c.oid
	WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e' AND c.relkind = 'v'
	UNION SELECT unnest(proargnames[pronargs + 1:]) FROM pg_proc
	WHERE proname IN ('ivfpq_info', 'ivfpq_last_scan', 'ivfpq_check', 'ivfpq_recall_curve', 'ivfpq_learn', 'ivfpq_compare',
		'pgwarp_service', 'pgwarp_devices')");
# Functions that stand behind a type, an operator, an aggregate, a cast, an access method or a view
# have a name of their own there.
names_all('functions', "SELECT DISTINCT p.proname FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
	WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgwarp')
		AND p.oid NOT IN (SELECT oprcode FROM pg_operator WHERE oprcode NOT IN
			('l2_distance(vector, vector)'::regprocedure, 'cosine_distance(vector, vector)'::regprocedure,
			 'l1_distance(vector, vector)'::regprocedure))
		AND p.oid NOT IN (SELECT amproc FROM pg_amproc)
		AND p.oid NOT IN (SELECT castfunc FROM pg_cast)
		AND p.oid NOT IN (SELECT unnest(ARRAY[aggtransfn, aggcombinefn, aggfinalfn]) FROM pg_aggregate)
		AND p.oid NOT IN (SELECT unnest(ARRAY[typinput, typoutput, typreceive, typsend, typmodin]) FROM pg_type)
		AND p.oid NOT IN (SELECT amhandler FROM pg_am)
		AND p.proname NOT IN ('pgwarp_stat_indexes', 'pgwarp_stat_copies', 'pgwarp_graph_progress')");
my @settings = split(/\n/, $node->safe_psql('postgres',
	"LOAD 'pgwarp'; SELECT name FROM pg_settings WHERE name ~ '^(ivfpq|pgwarp)\\.'"));
ok(@settings > 0, 'there are settings');
for my $setting (@settings)
{
	like($all, qr/^\| `\Q$setting\E` \|/m, "a table has the setting $setting");
}
my @sources = glob("extension/*.cpp extension/*/*.cpp");
for my $option (map { slurp_file($_) =~ /add_\w+_reloption\(\w+, "(\w+)"/g } @sources)
{
	like($all, qr/^\| `$option` \|/m, "a table has the option $option");
}

my $meta = JSON::PP::decode_json(slurp_file('META.json'));
is(join(' ', sort keys %{ $meta->{provides} }), join(' ', sort map { /(\w+)\.control/ } glob('*.control')),
	'META.json has every extension');
for my $name (sort keys %{ $meta->{provides} })
{
	my $extension = $meta->{provides}{$name};
	my ($version) = slurp_file("$name.control") =~ /^default_version = '(.*)'/m;
	is("$extension->{version} $meta->{version}", "$version $version", "META.json has the version of $name");
	is($extension->{file}, "sql/$name--$version.sql", "and its script");
	ok(-e $extension->{file} && -e $extension->{docfile}, "and its files are there");
	like(slurp_file('debian/changelog'), qr/\Apgwarp \(\Q$version\E-/, 'debian/changelog, too') if $name eq 'pgwarp';
	like(slurp_file('CHANGELOG.md'), qr/^## \Q$version\E/m, 'CHANGELOG.md has a part about it');
}

$node->stop;
done_testing();
