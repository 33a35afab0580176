# ivfpq.target_recall = 1 is an exact search: an index gives the rows that a scan of the table gives,
# in that order, but for rows that are as far as each other. Data and queries are random.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $seed = seed_of();
my $node = new_node('exact', service => 1, conf => "maintenance_work_mem = 128MB\njit = off");
value($node, 'ALTER DATABASE postgres SET ivfpq.target_recall = 1');

value($node, <<'SQL');
CREATE FUNCTION dot(i bigint, seed bigint, dims int DEFAULT 12) RETURNS vector LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT ARRAY(SELECT (hashint8extended(i * 1000 + d, seed) & 65535) / 65536.0 - 0.5 FROM generate_series(1, dims) AS d)::real[]::vector
$$;
-- Runs a query "SELECT id, DISTANCE AS d ... ORDER BY DISTANCE" by the index and by the table, with one
-- snapshot; what differs. Rows as far as the last one may be others, with OFFSET those as far as the first.
CREATE FUNCTION differs(query text, index text DEFAULT 't_v') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	gather text := 'SELECT coalesce(array_agg(id), ''{}''), coalesce(array_agg(d), ''{}'') FROM (' || query || ') AS s';
	ids int[];
	distances float8[];
	true_ids int[];
	true_distances float8[];
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
		set_config('enable_indexscan', 'on', true), set_config('enable_bitmapscan', 'off', true);
	IF scans_of(query) NOT LIKE '%Index Scan ' || index || '%' THEN RAISE 'scans are %', scans_of(query); END IF;
	EXECUTE gather INTO ids, distances;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
		set_config('enable_indexscan', 'off', true);
	EXECUTE gather INTO true_ids, true_distances;
	IF distances IS DISTINCT FROM true_distances THEN
		RETURN format('%s: %s rows, %s; not %s rows, %s', query, cardinality(ids), distances[:20],
			cardinality(true_ids), true_distances[:20]);
	END IF;
	IF cardinality(ids) <> (SELECT count(DISTINCT id) FROM unnest(ids) AS u (id)) THEN
		RETURN 'of ' || query || ': a row comes twice';
	END IF;
	IF EXISTS (SELECT FROM unnest(ids, distances) AS u (id, d) WHERE d < distances[cardinality(ids)] AND (d > distances[1] OR query !~ 'OFFSET') AND id NOT IN (SELECT unnest(true_ids))) THEN
		RETURN 'of ' || query || ': other rows';
	END IF;
	RETURN '';
END
$$;
SQL

my %operators = (l2 => '<->', ip => '<#>', cosine => '<=>');
my %last = (l2 => 0.9, ip => -0.4, cosine => 0.5);

# Whether all these queries give the same rows. `conditions` on the table, `limits` of the queries.
sub all_exact
{
	my ($name, $metric, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $settings = $options{settings} // '';
	my $index = $options{index} // 't_v';
	# A row, a point like the rows, one far away, none at all.
	my $some = int(rand(2000)) + 1;
	my $row = "(SELECT v FROM t WHERE id >= $some AND v IS NOT NULL ORDER BY id LIMIT 1)";
	my @queries = ($row, "dot(-$some, $seed)", "$row * array_fill(30.0, ARRAY[12])::real[]::vector",
		'array_fill(0.0, ARRAY[12])::real[]::vector');
	my (@differences, @statements);
	for my $query (@queries)
	{
		$query = value($node, "SELECT quote_literal($query)");
		my $distance = "v $operators{$metric} $query";
		for my $condition (@{ $options{conditions} // ['true'] })
		{
			(my $where = $condition) =~ s/DISTANCE/$distance/;
			for my $limit (@{ $options{limits} // [ 'LIMIT 10' ] })
			{
				push @statements, "SELECT differs(\$\$SELECT id, $distance AS d FROM t WHERE v IS NOT NULL AND $where
					ORDER BY $distance $limit\$\$, '$index');";
			}
		}
	}
	my $differences = value($node, "$settings @statements");
	$differences =~ s/^\n+|\n+$//g;
	return is($differences, '', $name);
}

# Rows one after the other, duplicates, some near to each other, a few zero vectors and nulls. `a` and
# `b` are in the index. Half of the rows come after the index was built, and some have changed.
sub make_rows
{
	my ($first, $last) = @_;
	value($node, "INSERT INTO t SELECT i, CASE WHEN i % 701 = 0 THEN NULL WHEN i % 499 = 0 THEN (dot(i, 0) - dot(i, 0))
			WHEN i % 4 = 0 THEN dot(i % 97, $seed) WHEN i % 4 = 1 THEN dot(i, $seed) + dot(i % 7, $seed + 1)
			ELSE dot(i, $seed) END, hashint8extended(i, $seed) & 255, CASE WHEN i % 5 > 0 THEN 'b' || i % 30 END, i
		FROM generate_series($first, $last) AS i");
	return;
}
value($node, 'CREATE TABLE t (id int, v vector(12), a int, b text, note int) WITH (fillfactor = 80)');
make_rows(1, 2000);
my @conditions = ('true', 'a < 20', "a = 7 AND b = 'b3'", 'id % 3 = 1', "b IS NULL AND id % 40 < 3", 'a < 0',
	'random() >= 0.0 AND a < 128', "b = 'b7'", 'id > 2900');
my %options = (lsq8 => 'quantizer = lsq, bits = 8', opq4 => 'quantizer = opq, bits = 4', opq8 => 'quantizer = opq, bits = 8',
	pq4 => 'quantizer = pq, bits = 4', pq8 => 'quantizer = pq, bits = 8');
my $built = 0;
# Every kind of code with every metric takes long: EXACT_ALL=1. A run of all tests has each code and each metric.
my $turn = int(rand(3));
my @metrics = sort keys %operators;
for my $codes (sort keys %options)
{
	# The last index is that of the tests below.
	for my $metric ($ENV{EXACT_ALL} ? @metrics : $codes eq 'pq8' ? 'l2' : $metrics[ $turn++ % @metrics ])
	{
		value($node, 'DROP INDEX IF EXISTS t_v');
		# Codes of one or two bytes for 12 dimensions tell little.
		my $m = 1 + int(rand(2));
		value($node, "CREATE INDEX t_v ON t USING ivfpq (v vector_${metric}_ops, a, b)
			WITH (lists = 30, m = $m, $options{$codes})");
		if (!$built++)
		{
			make_rows(2001, 3000);
			value($node, 'UPDATE t SET note = note + 1 WHERE id % 9 = 2');
			value($node, "UPDATE t SET a = (a + 100) % 256, v = dot(-id, $seed) WHERE id % 31 = 5 AND v IS NOT NULL");
			value($node, 'DELETE FROM t WHERE id % 13 = 4');
			value($node, 'VACUUM (INDEX_CLEANUP ON) t') if rand(2) < 1;
			value($node, 'UPDATE t SET note = note + 1 WHERE id % 9 = 2; ANALYZE t');
		}
		all_exact("$codes, $metric", $metric, conditions => \@conditions,
			limits => [ 'LIMIT 1', 'LIMIT 10', 'LIMIT 300 OFFSET 5' ]);
		all_exact("$codes, $metric: all rows", $metric, conditions => [ 'true', 'a < 100 AND id % 2 = 0' ],
			limits => [ 'LIMIT 100000', '' ]);
		all_exact("$codes, $metric: within a distance", $metric,
			conditions => [ "DISTANCE < $last{$metric}", "DISTANCE <= $last{$metric} AND a < 100 AND id % 2 = 0" ],
			limits => [ 'LIMIT 10', 'LIMIT 100000' ]);
		# More rows than memory holds, in rounds or at once.
		all_exact("$codes, $metric: small memory, $_", $metric, settings => "SET work_mem = '64kB'; SET ivfpq.iterative_scan = $_;",
			conditions => [ 'true', 'random() >= 0.0 AND id % 100 = 7' ], limits => [ 'LIMIT 10', 'LIMIT 2000', '' ])
		  for qw(relaxed_order strict_order off);
	}
}

# Inserted later into an index that was built before, and seen by the transaction that does it.
is(value($node, "BEGIN; INSERT INTO t SELECT 9000 + i, dot(5, $seed + 3) FROM generate_series(1, 20) AS i;
	SELECT differs('SELECT id, v <-> dot(5, $seed + 3) AS d FROM t ORDER BY v <-> dot(5, $seed + 3) LIMIT 30'); ROLLBACK"),
	'', 'rows of the own transaction');

# --- what the scan says

my $query = "SELECT id FROM t ORDER BY v <-> dot(1, $seed) LIMIT 5";
my $by_index = 'SET enable_seqscan = off;';
value($node, "SELECT pgwarp_prewarm('t_v')");
my $visible = value($node, 'SELECT count(*) FROM t WHERE v IS NOT NULL');
like(value($node, "$by_index $query; SELECT path, reason, rounds, probes, ranked_rows FROM ivfpq_last_scan()"),
	qr/\ncpu\|an exact search ranks all rows\|1\|30\|$visible$/, 'all rows are ranked, by the session itself');
like(value($node, "$by_index SET ivfpq.executor = service; $query; SELECT path, reason FROM ivfpq_last_scan()"),
	qr/\ncpu\|an exact search ranks all rows$/, 'whatever the executor is');
like(value($node, "$by_index SET ivfpq.$_; $query; SELECT path, reason FROM ivfpq_last_scan()"), qr/\nservice\|$/,
	"$_: not exact, by the service")
  for 'probes = 30', 'candidates = 100', 'max_probes = 29', 'max_scan_tuples = 1000000', 'target_recall = 0.999';
like(value($node, "$by_index SET ivfpq.max_probes = 30; $query; SELECT reason FROM ivfpq_last_scan()"),
	qr/\nan exact search ranks all rows$/, 'max_probes that allow all lists do no harm');
is(value($node, "SELECT probes, candidates = rows FROM ivfpq_info('t_v')"), '30|t', 'ivfpq_info says so');
like(value($node, "$by_index EXPLAIN ANALYZE SELECT id FROM t WHERE id % 3 = 1 ORDER BY v <-> dot(1, $seed) LIMIT 5"),
	qr/Rows Removed by Filter: [12]\d{3}\n/, 'EXPLAIN counts the rows that a filter drops');
cmp_ok(value($node, 'SELECT ivfpq_recall(\'t_v\', 200, 10)'), '==', 1, 'recall is 1');

# --- plans: all rows by a scan of the table, few of them by the index

value($node, 'CREATE TABLE p AS SELECT id, dot(id, 1) AS v, id % 500 AS a FROM generate_series(1, 30000) AS id');
value($node, 'ALTER TABLE p ALTER v TYPE vector(12); CREATE INDEX p_v ON p USING ivfpq (v, a); ANALYZE p;');
my $order = 'ORDER BY v <-> dot(1, 2) LIMIT 10';
is(value($node, "SELECT scans_of('SELECT id FROM p $order')"), 'Seq Scan', 'all rows: the table is read');
is(value($node, "SELECT scans_of('SELECT id FROM p WHERE a = 3 $order')"), 'Index Scan p_v', 'few rows: the index has them');
is(value($node, "SET ivfpq.target_recall = 0.95; SELECT scans_of('SELECT id FROM p $order')"), 'Index Scan p_v',
	'all rows, not exactly');

# --- cursors, rescans

is(value($node, "SET work_mem = '64kB'; $by_index BEGIN; DECLARE c CURSOR FOR SELECT id, v <-> dot(3, $seed) AS d FROM t
		WHERE v IS NOT NULL ORDER BY v <-> dot(3, $seed);
	CREATE TEMP TABLE got (n serial, id int, d float8);
	CREATE FUNCTION pg_temp.take(n int) RETURNS void LANGUAGE plpgsql AS \$\$
	DECLARE c refcursor := 'c'; r record;
	BEGIN FOR i IN 1 .. n LOOP FETCH c INTO r; EXIT WHEN NOT FOUND; INSERT INTO got (id, d) VALUES (r.id, r.d); END LOOP; END \$\$;
	DO 'BEGIN PERFORM pg_temp.take(10); PERFORM pg_temp.take(1500); PERFORM pg_temp.take(10000); END';
	SELECT count(*) - $visible, count(DISTINCT id) - $visible, bool_and(d >= before) FROM (SELECT *, lag(d) OVER (ORDER BY n) AS before FROM got) AS g"),
	'0|0|t', 'a cursor has all rows in order');
is(value($node, "$by_index SELECT count(*), count(*) FILTER (WHERE n.d = (SELECT min(t.v <-> o.v) FROM t WHERE a = o.a AND t.id <> o.id))
	FROM (SELECT * FROM t WHERE id BETWEEN 100 AND 150 AND v IS NOT NULL) AS o, LATERAL
		(SELECT t.v <-> o.v AS d FROM t WHERE a = o.a AND t.id <> o.id ORDER BY t.v <-> o.v LIMIT 1) AS n") =~ /^(\d+)\|\1$/,
	1, 'a nested loop');

# --- the pending list: of an index that is not trained, and of one that is

value($node, 'DROP TABLE t; CREATE TABLE t (id int, v vector(12), a int, b text, note int)');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v, a, b) WITH (lists = 20, m = 1)');
make_rows(1, 3000);
value($node, 'ANALYZE t');
all_exact('not trained', 'l2', conditions => \@conditions, limits => [ 'LIMIT 10', '' ]);
make_rows(3001, 12000);
my $writer = session($node);
$writer->query_safe('BEGIN');
$writer->query_safe("INSERT INTO t SELECT 20000 + i, dot(i, $seed + 5), i % 256, 'b' || i % 30 FROM generate_series(1, 1500) AS i");
value($node, 'VACUUM t');
$writer->query_safe('COMMIT');
is(value($node, "SELECT trained, pending_rows FROM ivfpq_info('t_v')"), 't|1500', 'trained, with pending entries');
value($node, 'ANALYZE t');
all_exact('some pending', 'l2', conditions => \@conditions, limits => [ 'LIMIT 10', 'LIMIT 3000', '' ]);
all_exact('some pending, small memory', 'l2', settings => "SET work_mem = '64kB';", conditions => \@conditions, limits => [ 'LIMIT 10', '' ]);

# --- many queries in one call

value($node, "CREATE TABLE q AS SELECT i AS id, CASE WHEN i % 3 = 0 THEN (SELECT v FROM t WHERE t.id = q.i + 30) ELSE dot(-i, $seed) END AS v
	FROM generate_series(1, 60) AS q (i)");
for my $pending (1500, 0)
{
	value($node, 'VACUUM t') if !$pending;
	is(value($node, "SELECT pending_rows FROM ivfpq_info('t_v')"), $pending, 'pending rows');
	for my $case ([ 'batch', '64MB', '' ], [ 'batch, small memory', '1MB', '' ], [ 'condition', '64MB', ", condition => 'a < 30 AND id % 2 = 0'" ])
	{
		my ($name, $memory, $more) = @$case;
		my $where = $more ? 'a < 30 AND id % 2 = 0' : 'true';
		is(value($node, "SET maintenance_work_mem = '$memory'; SET enable_indexscan = off; WITH truth AS MATERIALIZED
			(SELECT q.id, n.rank, n.d FROM q, LATERAL (SELECT row_number() OVER (ORDER BY d) AS rank, d::real FROM
				(SELECT t.v <-> q.v AS d FROM t WHERE v IS NOT NULL AND $where ORDER BY 1 LIMIT 20) AS s) AS n WHERE q.v IS NOT NULL)
			SELECT count(*) - (SELECT count(*) FROM truth), count(*) FILTER (WHERE j.distance IS DISTINCT FROM truth.d),
				count(*) - count(DISTINCT (j.query_key, j.key))
			FROM knn_join('q', 'id', 'v', 't_v', 'id', 20$more) AS j LEFT JOIN truth ON truth.id = j.query_key AND truth.rank = j.rank"),
			'0|0|0', "knn_join, $name");
		is(value($node, "SET maintenance_work_mem = '$memory'; SELECT count(*) FROM
			knn_search('t_v', ARRAY(SELECT v FROM q WHERE v IS NOT NULL ORDER BY id LIMIT 1), 5$more) AS s
			WHERE s.distance = (SELECT (t.v <-> q.v)::real FROM t, (SELECT v FROM q ORDER BY id LIMIT 1) AS q WHERE t.v IS NOT NULL AND $where
				ORDER BY (t.v <-> q.v) + 0 OFFSET s.rank - 1 LIMIT 1)"), 5, "knn_search, $name");
	}
}

# --- distances that are infinite or not a number come in the order of a sort

value($node, "CREATE TABLE h AS SELECT i AS id, ARRAY[(i % 5 - 2) * 1e38, (i % 7 - 3) * 1e38]::real[]::vector AS v FROM generate_series(1, 1500) AS i");
value($node, "ALTER TABLE h ALTER v TYPE vector(2); CREATE INDEX h_$_ ON h USING ivfpq (v vector_${_}_ops)") for qw(ip l2 cosine);
my $huge = 'ARRAY[3e38, 3e38]::real[]::vector';
is(value($node, "SELECT differs('SELECT id, v $operators{$_} $huge AS d FROM h ORDER BY v $operators{$_} $huge LIMIT 1200', 'h_$_')"), '',
	"$_ of huge vectors")
  for qw(ip l2 cosine);

indexes_are_sound($node);
done_testing();
