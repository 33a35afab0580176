# scripts/map draws a table: the page loads nothing, no text of a row gets out of its place, and, where
# chromium is installed, a browser draws the points, tells rows below the pointer and finds what is searched.
use strict;
use warnings;
use File::Temp ();
use IPC::Run ();
use JSON::PP ();
use MIME::Base64 ();
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('map');
my $folder = File::Temp::tempdir(CLEANUP => 1);
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGDATABASE} = 'postgres';

# Runs the script: its exit code, the page, what it says.
sub draw
{
	my ($page, $said) = ('', '');
	IPC::Run::run([ 'perl', 'scripts/map', @_ ], '>', \$page, '2>', \$said);
	return ($? >> 8, $page, $said);
}

my $evil = "</script><script>document.title = 'broken into'</script><img src=x onerror=alert(1)> \\N \\t\t\n\"'&amp;";
value($node, 'CREATE TABLE "odd names" (x int PRIMARY KEY, kind int, "what it is" text, v vector(3))');
value($node, q{INSERT INTO "odd names" SELECT i, CASE WHEN i % 10 = 0 THEN -1 WHEN i % 10 = 1 THEN NULL ELSE i % 2 END,
	'row number ' || i, ARRAY[(i % 2) * 100, i % 7, i % 11]::vector FROM generate_series(1, 200) AS i});
value($node, q{UPDATE "odd names" SET "what it is" = convert_from(decode('} . unpack('H*', $evil) . q{', 'hex'), 'UTF8') WHERE x = 7});
value($node, q{UPDATE "odd names" SET "what it is" = U&'Stra\00DFe \4E2D\6587' WHERE x = 8});
value($node, q{UPDATE "odd names" SET "what it is" = NULL WHERE x = 9});
value($node, q{SELECT knn_graph_create('"odd names_graph"', '"odd names"', 'x', 'v', 8)});

my @drawing = ('"odd names"', '--graph', '"odd names_graph"', '--label', 'kind', '--text', '"what it is"', '--title', "<b>$evil",
	'--epochs', '50', '--seed', '3');
my ($code, $page, $said) = draw(@drawing);
is($code, 0, 'a page is drawn') or diag $said;
like($said, qr/^map: 200 rows, 3 labels, /, 'and told of');
my @again = draw(@drawing);
is($again[1], $page, 'the same again');

# What the page holds.
my %data = map { $_ => $page =~ /<script[^>]* id="data-$_">([^<]*)</ ? MIME::Base64::decode_base64($1) : '' }
  qw(points numbers labels names);
my @names = split /\0/, $data{names}, -1;
is(scalar(@names), 401, 'a key and a text of each row');
is($names[ 2 * 6 + 1 ], $evil, 'a text that would like to be a tag');
is($names[ 2 * 7 + 1 ], "Stra\xc3\x9fe \xe4\xb8\xad\xe6\x96\x87", 'a text that is no ASCII');
is($names[ 2 * 8 + 1 ], '', 'no text');
is_deeply([ @names[ map { 2 * $_ } 0 .. 199 ] ], [ 1 .. 200 ], 'keys in order');
is(length($data{points}), 200 * 8, 'coordinates of each');
my @points = unpack('f<*', $data{points});
is(join(',', map { sprintf '%.4f', $_ } @points[ 0 .. 1 ]),
	value($node, q{SELECT round(x::numeric, 4) || ',' || round(y::numeric, 4)
		FROM embedding_layout('"odd names_graph"', epochs => 50, seed => 3) WHERE key = 1}), 'as the layout has them');
my @labels = split /\0/, $data{labels}, -1;
is(join(' ', map { "'$labels[$_]'" } unpack('v*', substr($data{numbers}, 0, 20))), "'' '0' '1' '0' '1' '0' '1' '0' '1' ''",
	'labels; null and negative ones are none');
unlike($page =~ s/data-\w+">[^<]*//gr, qr/broken into'<\/script>|<b>|<img|https?:|src=(?!x)|url\(|import/,
	'no text is a tag, and nothing is asked of others');
like($page, qr/Content-Security-Policy" content="default-src 'none'/, 'nor could it be');

# Keys that are no integers, clusters by a query or none at all, a layout of one's own.
value($node, q{CREATE TABLE named AS SELECT 'n' || x AS id, v FROM "odd names"});
value($node, q{SELECT knn_graph_create('named_graph', 'named', 'id', 'v', 8)});
($code, $page, $said) = draw('named', '--key', 'id', '--epochs', '5');
like($said, qr/^map: 200 rows, 2 labels, /, 'names, by component') or diag $said;
($code, $page, $said) = draw('"odd names"', '--layout', 'SELECT x, x, -x FROM "odd names" WHERE x < 50', '--labels',
	'SELECT x, x % 5 FROM "odd names"');
like($said, qr/^map: 49 rows, 5 labels, /, 'a layout and labels by query') or diag $said;

# More labels than the page can number: as many components as a graph without edges has rows, but for two.
value($node, 'CREATE TABLE many (id int PRIMARY KEY)');
value($node, 'INSERT INTO many SELECT generate_series(1, 70000)');
($code, $page, $said) = draw('many', '--layout', 'SELECT id, id, id FROM many', '--labels',
	q{SELECT id, CASE WHEN id % 1000 = 0 THEN -1 WHEN id > 69990 THEN 1 ELSE id END FROM many});
is($code, 0, 'a map of more labels than it can have') or diag $said;
like($said, qr/^map: 4386 labels of few rows are drawn in grey\nmap: 70000 rows, 65536 labels, /, 'says so');
%data = map { $_ => $page =~ /<script[^>]* id="data-$_">([^<]*)</ ? MIME::Base64::decode_base64($1) : '' } qw(numbers labels);
@labels = split /\0/, $data{labels}, -1;
my @drawn = map { $labels[$_] } unpack('v*', $data{numbers});
is(scalar(@drawn), 70000, 'a label of each row');
is(join(' ', map { "'$_'" } @drawn[ 0, 1, 998, 999, 65599, 65600, 69998, 69999 ]),
	"'1' '2' '999' '' '65600' '' '1' ''",
	'the largest stay, the rest is grey');

# Mistakes.
for my $case (
	[ [], qr/^usage:/, 'no table' ], [ ['nothing'], qr/relation "nothing" does not exist/, 'no such table' ],
	[ ['named'], qr/"named" has no primary key of one column; name one with --key/, 'no key' ],
	[ [ 'named', '--key', 'id', '--graph', 'none' ], qr/relation "none" does not exist/, 'no such graph' ],
	[ [ 'named', '--key', 'id', '--graph', 'named' ], qr/"named" is not a graph/, 'no graph' ],
	[ [ 'named', '--key', 'id', '--text', 'nothing' ], qr/column "nothing" does not exist/, 'no such column' ],
	[ [ 'named', '--key', 'id', '--epochs', '1); DROP TABLE named; --' ], qr/--epochs must be a number/, 'no number' ],
	[ [ 'named', '--key', 'id', '--min-dist', '-1' ], qr/min_dist must be between 0 and spread/, 'a bad distance' ],
	[ [ 'named', '--key', 'id', '--label', '1', '--labels', 'SELECT 1, 1' ], qr/exclude each other/, 'two labels' ],
	[ [ 'named', '--key', 'id', '--layout', "SELECT 'n1', 'NaN'::real, 1" ], qr/row n1 has no coordinates/, 'no place' ],
	[ [ 'named', '--key', 'id', '--layout', 'SELECT 1, 1, 1' ], qr/no rows to draw/, 'no rows' ])
{
	my ($arguments, $message, $name) = @$case;
	my ($failed, $nothing, $why) = draw(@$arguments);
	ok($failed != 0 && $nothing eq '', "$name: no page");
	like($why, $message, "$name: said so");
}

# In a browser, a script behind the page does what a person would. What it finds is in the title.
my $driver = <<'SCRIPT';
<script>
addEventListener('load', () => setTimeout(() => {
  const map = window.pgwarpMap, canvas = document.getElementById('map'), found = {title: document.title};
  const shown = id => document.getElementById(id).textContent;
  const pointer = (kind, [x, y]) => canvas.dispatchEvent(new PointerEvent(kind, {clientX: x, clientY: y, pointerId: 1}));
  const pixels = () => {
    map.draw();
    const gl = map.gl, all = new Uint8Array(4 * canvas.width * canvas.height);
    gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, all);
    let lit = 0;
    for (let i = 0; i < all.length; i += 4) lit += Math.max(all[i], all[i + 1], all[i + 2]) > 90;
    return lit;
  };
  found.heading = shown('side').split('\n')[1];
  found.count = shown('count');
  found.lit = pixels();
  pointer('pointermove', map.screenOf(6));
  found.key = document.querySelector('#tip .key').textContent;
  found.text = document.querySelector('#tip .text').textContent;
  found.tags = document.querySelectorAll('#tip img, #tip script').length;
  pointer('pointermove', [2, 2]);
  found.nowhere = map.hovered();
  map.search('STRASSE'); found.none = map.matches().length;
  map.search('STRAßE'); found.one = map.matches().length;
  map.search('12'); found.several = [...map.matches()].map(map.keyOf);
  found.lit_matches = pixels();
  document.querySelector('#matches .item').click();
  found.went = map.keyOf(map.hovered());
  map.search('');
  const before = map.view.scale, at = map.screenOf(20);
  canvas.dispatchEvent(new WheelEvent('wheel', {clientX: at[0], clientY: at[1], deltaY: -300, cancelable: true}));
  const after = map.screenOf(20);
  found.zoomed = map.view.scale > before;
  found.stays = Math.hypot(at[0] - after[0], at[1] - after[1]) < 1.5;  // the event has whole pixels
  pointer('pointerdown', [300, 300]); pointer('pointermove', [340, 330]); pointer('pointerup', [340, 330]);
  found.panned = map.screenOf(20).map((place, i) => Math.round(place - after[i]));
  document.querySelector('[data-zoom="0"]').click();
  document.querySelectorAll('#labels .item')[0].click();
  found.lit_label = pixels();
  document.title = 'found ' + btoa(unescape(encodeURIComponent(JSON.stringify(found))));
}, 0));
</script>
SCRIPT
SKIP:
{
	my ($browser) = grep { -x } map { my $at = $_; map { "$at/$_" } qw(chromium chromium-browser google-chrome) } split /:/, $ENV{PATH};
	skip 'chromium is not installed', 17 unless $browser;
	my $file = "$folder/map.html";
	open my $out, '>:raw', $file or die "$file: $!";
	print $out $again[1] =~ s/<\/body>/$driver<\/body>/r;
	close $out;
	my ($dom, $log) = ('', '');
	local $ENV{HOME} = $folder;
	my $ran = eval {
		IPC::Run::run([ $browser, qw(--headless --no-sandbox --disable-dev-shm-usage --use-angle=swiftshader --enable-unsafe-swiftshader
			  --window-size=900,600 --virtual-time-budget=3000 --dump-dom), "--user-data-dir=$folder/profile", "file://$file" ],
			'>', \$dom, '2>', \$log, IPC::Run::timeout(120));
	};
	skip "chromium does not run here: $log$@", 17 unless $ran && $dom =~ /pgwarpMap/;
	my ($title) = $dom =~ /<title>found ([^<]*)</;
	ok($title, 'the script came to its end') or do { diag $log; skip 'nothing found', 16; };
	my $found = JSON::PP::decode_json(MIME::Base64::decode_base64($title));
	like($found->{title}, qr/^<b><\/script>/, 'the title is text');
	is($found->{count}, '200 rows, 2 labels', 'rows and labels');
	cmp_ok($found->{lit}, '>', 1000, 'points are drawn');
	is($found->{key}, '7', 'the row below the pointer');
	is($found->{text}, $evil, 'its text');
	is($found->{tags}, 0, 'as text');
	is($found->{nowhere}, -1, 'where nothing is, nothing is shown');
	is($found->{none}, 0, 'nothing is found that is not there');
	is($found->{one}, 1, 'a text is found in any case');
	is(join(' ', @{ $found->{several} }), '12 112 120 121 122 123 124 125 126 127 128 129', 'keys, the exact one first');
	cmp_ok($found->{lit_matches}, '<', $found->{lit} / 2, 'others fade');
	is($found->{went}, '12', 'a match is gone to');
	ok($found->{zoomed} && $found->{stays}, 'the wheel zooms, and keeps what is below the pointer');
	is_deeply($found->{panned}, [ 40, 30 ], 'dragging moves the map');
	cmp_ok($found->{lit_label}, '<', $found->{lit} * 0.7, 'one label alone');
	cmp_ok($found->{lit_label}, '>', 100, 'is drawn');
}

done_testing();
