# Every function on every kind of table, as docs/functions.md has it in a table: right, or an error that says what to do
# instead. Columnar and distributed tables need Citus, which is looked for among the extensions of the server.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

# --- what the page says: by the first cell's names, by kind
my (%said, @kinds);
for my $line (split /\n/, slurp_file('docs/functions.md'))
{
	my @cells = map { s/^\s+|\s+$//gr } split /\|/, $line =~ s/^\||\|$//gr;
	if (@cells == 7 && $cells[0] eq 'what') { @kinds = @cells[1 .. 6]; next }
	last if @kinds && $line !~ /^\|/;
	next if !@kinds || $cells[0] =~ /^-/;
	for my $what (split /, /, $cells[0])
	{
		$said{$what} = { map { $kinds[$_] => $cells[ $_ + 1 ] } 0 .. 5 };
	}
}

# --- calls: %1$s is the table, %2$s its index, or the table where it has none. Of graphs distances are compared: rows as
# far as each other come in any order.
my %calls = (
	'`ORDER BY` and `LIMIT`' => "SELECT id FROM %1\$s ORDER BY v <-> vec(3, 8, 5) LIMIT 7",
	'`LATERAL` join' => "SELECT q.id, s.id FROM q, LATERAL (SELECT id FROM %1\$s AS t ORDER BY t.v <-> q.v LIMIT 3) AS s ORDER BY 1, 2",
	'`knn_join`' => "SELECT query_key, rank, key, distance FROM knn_join('q', 'id', 'v', '%2\$s', 'id', 4) ORDER BY 1, 2",
	'`knn_search`' => "SELECT s.query, s.rank, t.id, s.distance FROM knn_search('%2\$s', ARRAY[vec(3, 8, 5), vec(4, 8, 5)], 4) AS s
		JOIN %1\$s AS t ON t.tableoid = s.tableoid AND t.ctid = s.ctid ORDER BY 1, 2",
	'`knn_shards`' => "SELECT rank, key, distance FROM knn_shards('%1\$s', 'id', 'v', vec(3, 8, 5), 6) ORDER BY 1",
	'`ivfpq_info`' => "SELECT sum(rows), bool_and(dims = 8) FROM ivfpq_info('%2\$s')",
	'`ivfpq_recall_curve`' => "SELECT DISTINCT k, recall BETWEEN 0 AND 1 FROM ivfpq_recall_curve('%2\$s') ORDER BY 1",
	'`ivfpq_check`' => "SELECT count(*) FROM ivfpq_check('%2\$s', true)",
	'`ivfpq_learn`' => "SELECT DISTINCT k, used FROM ivfpq_learn('%2\$s', 'q', 'v') ORDER BY 1",
	'`ivfpq_recall`' => "SELECT ivfpq_recall('%2\$s')",
	'`ivfpq_forget`' => "SELECT ivfpq_forget('%2\$s')",
	'`pgwarp_prewarm`' => "SELECT pgwarp_prewarm('%2\$s') > 0",
	'`knn_graph` with `method => \'ivfpq\'`' => "SELECT src, rank, distance FROM knn_graph('%1\$s', 'id', 'v', 3, method => 'ivfpq') ORDER BY 1, 2",
	'`knn_graph`' => "SELECT src, rank, distance FROM knn_graph('%1\$s', 'id', 'v', 3, method => 'exact') ORDER BY 1, 2",
	'`knn_graph_create`' => "DROP TABLE IF EXISTS made; SELECT edges, recall FROM knn_graph_create('made', '%1\$s', 'id', 'v', 3, method => 'exact');
		SELECT src, rank, distance FROM made ORDER BY 1, 2",
	'`knn_graph_append`' => "DELETE FROM short; INSERT INTO short SELECT * FROM graph WHERE src > 100 AND dst > 100;
		SELECT * FROM knn_graph_append('short', '%1\$s', 'id', 'v', 3, seed => 1); SELECT src, rank, distance FROM short WHERE src < 200 ORDER BY 1, 2",
	'`knn_graph_merge`' => "SELECT count(*), count(DISTINCT src), min(src), max(src) FROM knn_graph_merge('graph', '%1\$s', 'other_graph', 'other', 'id', 'v', 3)",
	'`knn_graph_recall`' => "SELECT knn_graph_recall('graph', '%1\$s', 'id', 'v', 200)",
	# One cluster: the mean of all rows, in whatever order they come.
	'`kmeans`' => "SELECT cluster, size, (SELECT array_agg(round(e::numeric, 2)) FROM unnest(centroid::real[]) AS e) FROM kmeans('%1\$s', 'v', 1)",
	'`ivfpq_compare`' => "SELECT quantizer, bits, recall_at_100 FROM ivfpq_compare('%1\$s', 'v', 4, 1000) ORDER BY 1, 2",
	'queries of `knn_join`' => "SELECT query_key, rank, key, distance FROM knn_join('%1\$s', 'id', 'v', 'copy_v', 'id', 2) ORDER BY 1, 2",
	'queries of `ivfpq_learn`' => "SELECT k, used FROM ivfpq_learn('copy_v', '%1\$s', 'v', 300) ORDER BY 1",
	'`CREATE INDEX`' => "CREATE INDEX another ON %1\$s USING ivfpq (v) WITH (lists = 5); DROP INDEX another");
is_deeply([ sort keys %said ], [ sort keys %calls ], 'every line of the page has its call');

my $rows = 2600;
sub make_tables
{
	my ($node) = @_;
	value($node, <<"SQL");
ALTER DATABASE postgres SET ivfpq.target_recall = 1;
ALTER DATABASE postgres SET client_min_messages = warning;
CREATE TABLE copy AS SELECT i AS id, vec(i, 8)::vector(8) AS v FROM generate_series(1, $rows) AS i;
CREATE INDEX copy_v ON copy USING ivfpq (v) WITH (lists = 5);
CREATE TABLE other AS SELECT i AS id, vec(i, 8)::vector(8) AS v FROM generate_series(10001, 10200) AS i;
CREATE TABLE q AS SELECT i AS id, vec(i, 8, 5)::vector(8) AS v FROM generate_series(1, 70) AS i;
SQL
	value($node, "SELECT edges FROM knn_graph_create('graph', 'copy', 'id', 'v', 3, method => 'exact');
		SELECT edges FROM knn_graph_create('other_graph', 'other', 'id', 'v', 3, method => 'exact'); CREATE TABLE short (LIKE graph INCLUDING ALL); ANALYZE");
	return;
}

sub first_difference
{
	my @found = split /\n/, shift;
	my @expected = split /\n/, shift;
	my ($at) = grep { ($found[$_] // '') ne ($expected[$_] // '') } 0 .. ($#found > $#expected ? $#found : $#expected);
	return 'found: ' . ($found[$at] // 'nothing') . "\nexpected: " . ($expected[$at] // 'nothing');
}

my %expected;

# Compares what the page says with what calls return, for one kind.
sub try_kind
{
	my ($node, $kind, $table, $has_index) = @_;
	for my $what (sort keys %calls)
	{
		my $says = $said{$what}{$kind};
		my $call = sprintf($calls{$what}, $table, $has_index ? "${table}_v" : $table);
		if ($says =~ /^right/)
		{
			my $expected = $expected{ $node->name }{$what} //= value($node, sprintf($calls{$what}, 'copy', 'copy_v'));
			my $found = eval { value($node, $call) } // "error: $@";
			ok($found eq $expected, "$kind, $what: right") or diag(first_difference($found, $expected));
		}
		else
		{
			# Without places, which not every kind of table has.
			$call =~ s/SELECT s\.query.*(FROM knn_search.*) AS s.*/SELECT count(*) $1/s;
			my $error = error_of($node, $call);
			like($error, qr/ERROR:  /, "$kind, $what: an error");
			like($error, qr/HINT:  |has no ivfpq index/, "$kind, $what: it says what to do") if $says !~ /of (Citus|PostgreSQL)/;
		}
	}
	return;
}

my $node = new_node('kinds', service => 1);
make_tables($node);
value($node, <<"SQL");
CREATE EXTENSION postgres_fdw;
CREATE SERVER loop FOREIGN DATA WRAPPER postgres_fdw
	OPTIONS (host '${\$node->host}', port '${\$node->port}', dbname 'postgres', extensions 'pgwarp');
CREATE USER MAPPING FOR CURRENT_USER SERVER loop;
CREATE FOREIGN TABLE far (id int, v vector(8)) SERVER loop OPTIONS (table_name 'copy');
CREATE VIEW seen AS SELECT * FROM copy;
CREATE MATERIALIZED VIEW kept AS SELECT * FROM copy;
CREATE INDEX kept_v ON kept USING ivfpq (v) WITH (lists = 5);
CREATE TABLE parts (id int, v vector(8)) PARTITION BY HASH (id);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO parts SELECT * FROM copy;
CREATE INDEX parts_v ON parts USING ivfpq (v) WITH (lists = 5);
ANALYZE;
SQL
try_kind($node, 'partitioned', 'parts', 1);
try_kind($node, 'materialized view', 'kept', 1);
try_kind($node, 'view', 'seen', 0);
try_kind($node, 'foreign table', 'far', 0);
indexes_are_sound($node);
$node->stop;

SKIP:
{
	chomp(my $share = `pg_config --sharedir`);
	skip 'Citus is not installed', 1 unless -e "$share/extension/citus.control";
	my $conf = <<'END';
shared_preload_libraries = 'citus,pgwarp'
pgwarp.devices = 'host'
listen_addresses = '127.0.0.1'
citus.node_conninfo = 'sslmode=prefer'
citus.enable_statistics_collection = off
END
	my @nodes = map { new_node($_, conf => $conf) } 'coordinator', 'worker_1', 'worker_2';
	my $coordinator = $nodes[0];
	for my $each (@nodes)
	{
		value($each, 'CREATE EXTENSION citus');
		value($each, 'CREATE EXTENSION citus_columnar');
		value($each, 'ALTER DATABASE postgres SET ivfpq.target_recall = 1');
	}
	value($coordinator, "SELECT citus_set_coordinator_host('127.0.0.1', ${\$coordinator->port})");
	value($coordinator, "SELECT citus_add_node('127.0.0.1', ${\$_->port})") for @nodes[ 1, 2 ];
	make_tables($coordinator);
	value($coordinator, "CREATE TABLE columns (id int, v vector(8)) USING columnar; INSERT INTO columns SELECT * FROM copy");
	# Rows that stay behind in the shell, and are none of the table's any more.
	value($coordinator, "CREATE TABLE spread AS SELECT id + 100000 AS id, v FROM copy");
	value($coordinator, "SELECT create_distributed_table('spread', 'id', shard_count => 2); DELETE FROM spread; INSERT INTO spread SELECT * FROM copy");
	value($coordinator, "CREATE INDEX spread_v ON spread USING ivfpq (v) WITH (lists = 5); ANALYZE spread");
	try_kind($coordinator, 'columnar table', 'columns', 0);
	try_kind($coordinator, 'distributed table', 'spread', 1);
	is(value($coordinator, "SELECT string_agg(result, ' ') FROM run_command_on_shards('spread', \$\$ SELECT count(*) FROM ivfpq_check(
		(SELECT indexrelid FROM pg_index WHERE indrelid = '%s'::regclass)) \$\$)"), '0 0', 'indexes of shards are sound');
}
done_testing();
