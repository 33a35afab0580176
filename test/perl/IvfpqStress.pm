# Connections that change rows at random, vacuum and search for a while. Every search is compared with
# an exact one in the same snapshot: a whole scan has the table's rows, each once; what comes out
# first are rows of the table, with their distances, in order. The index starts untrained and is
# trained on the way.
package IvfpqStress;
use strict;
use warnings;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

our @EXPORT = qw(stress prepare_stress start_clients finish_clients);

my $setup = <<'SQL';
CREATE TABLE t (id bigserial PRIMARY KEY, note text, v vector(6)) WITH (fillfactor = 80);
CREATE INDEX t_l2 ON t USING ivfpq (v) WITH (lists = 30, refine = int8);
CREATE INDEX t_cosine ON t USING ivfpq (v vector_cosine_ops) WITH (lists = 40, parents = 6, m = 2);
CREATE INDEX t_part ON t USING ivfpq (v vector_ip_ops) WHERE id % 3 = 0;
INSERT INTO t (v) SELECT vec(i, 6) FROM generate_series(1, 11000) AS i;

-- Compares a whole scan, in pieces of a cursor, with the table. In a transaction with one snapshot.
CREATE FUNCTION compare_whole(distance text, condition text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	c refcursor;
	ids bigint[];
	exact bigint[];
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
			set_config('enable_bitmapscan', 'off', true);
	EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM t WHERE %s ORDER BY %s) AS s',
				   condition, distance) INTO ids;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_indexscan', 'off', true);
	EXECUTE format('SELECT array_agg(id ORDER BY id) FROM t WHERE %s', condition) INTO exact;
	PERFORM set_config('enable_indexscan', 'on', true);
	IF cardinality(ids) <> (SELECT count(DISTINCT i) FROM unnest(ids) AS i) THEN
		RAISE 'scan by % has rows twice: %', distance,
			(SELECT array_agg(i) FROM (SELECT i FROM unnest(ids) AS i GROUP BY i HAVING count(*) > 1
									   LIMIT 10) AS s);
	END IF;
	IF (SELECT array_agg(i ORDER BY i) FROM unnest(ids) AS i) IS DISTINCT FROM exact THEN
		RAISE 'scan by % where % has % rows, the table %; missing %, too many %', distance,
			condition, cardinality(ids), cardinality(exact),
			(SELECT array_agg(i) FROM (SELECT unnest(exact) EXCEPT SELECT unnest(ids) LIMIT 10) AS s(i)),
			(SELECT array_agg(i) FROM (SELECT unnest(ids) EXCEPT SELECT unnest(exact) LIMIT 10) AS s(i));
	END IF;
END
$$;

-- Compares the first rows of a scan: found rows are rows of the table that fit, with the distance
-- the table has for them, each once. In strict order they are in order; else, as many as wanted.
CREATE FUNCTION compare_first(distance text, condition text, k int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	ids bigint[];
	distances float8[];
	wrong int;
	ordered boolean := random() < 0.5;
BEGIN
	PERFORM set_config('ivfpq.iterative_scan',
					   CASE WHEN ordered THEN 'strict_order' ELSE 'relaxed_order' END, true);
	PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
			set_config('enable_bitmapscan', 'off', true);
	EXECUTE format('SELECT array_agg(id), array_agg(d) FROM
			(SELECT id, %2$s AS d FROM t WHERE %1$s ORDER BY %2$s LIMIT %3$s) AS s',
			condition, distance, k) INTO ids, distances;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true);
	EXECUTE format('SELECT count(*) FROM unnest($1, $2) AS f(id, d)
			LEFT JOIN (SELECT id, %s AS d FROM t WHERE %s) AS e USING (id)
			WHERE e.d IS DISTINCT FROM f.d', distance, condition) INTO wrong USING ids, distances;
	IF wrong > 0 THEN
		RAISE 'search by %: % of % rows are not as in the table', distance, wrong, cardinality(ids);
	END IF;
	IF ordered AND distances <> (SELECT array_agg(d ORDER BY d) FROM unnest(distances) AS d) THEN
		RAISE 'search by % is out of order: %', distance, distances;
	END IF;
	IF cardinality(ids) <> (SELECT count(DISTINCT i) FROM unnest(ids) AS i) THEN
		RAISE 'search by % has a row twice', distance;
	END IF;
	EXECUTE format('SELECT least(%s, count(*)) FROM t WHERE %s', k, condition) INTO wrong;
	IF NOT ordered AND coalesce(cardinality(ids), 0) <> wrong THEN
		RAISE 'search by % has % rows, not %', distance, cardinality(ids), wrong;
	END IF;
END
$$;

-- Compares a batch with the table: rows that are there, with their distances, each once for a query,
-- in order, and as many as wanted.
CREATE FUNCTION compare_batch(n int, k int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	queries vector[] := (SELECT array_agg(vec(n + i, 6)) FROM generate_series(1, 60) AS i);
	found record;
	expected bigint;
BEGIN
	PERFORM set_config('maintenance_work_mem', CASE WHEN random() < 0.5 THEN '1MB' ELSE '64MB' END,
					   true);
	SELECT count(*) AS rows, count(*) FILTER (WHERE s.before_it > 0) AS twice,
		count(*) FILTER (WHERE (t.v <-> queries[s.query])::real IS DISTINCT FROM s.distance) AS wrong,
		count(*) FILTER (WHERE s.distance < s.before) AS unordered,
		string_agg(s.query || ' ' || s.ctid, ', ') FILTER (WHERE s.before_it > 0) AS which
	INTO found FROM
		(SELECT *, lag(distance) OVER (PARTITION BY query ORDER BY rank) AS before,
			row_number() OVER (PARTITION BY query, ctid ORDER BY rank) - 1 AS before_it
		 FROM knn_search('t_l2', queries, k)) AS s LEFT JOIN t ON t.ctid = s.ctid;
	SELECT 60 * least(k, count(*)) INTO expected FROM t;
	IF (found.rows, found.twice, found.wrong, found.unordered) IS DISTINCT FROM (expected, 0::bigint, 0::bigint, 0::bigint) THEN
		RAISE 'a batch of 60 queries with k = % and memory of % is %, not % rows', k, current_setting('maintenance_work_mem'), found, expected;
	END IF;
END
$$;
SQL

my %scripts = (
	writes => [ 40, <<'END' ],
\set n random(1, 20000)
\set what random(1, 6)
\if :what = 1
UPDATE t SET v = vec(:n * 7, 6) WHERE id = :n;
\elif :what = 2
UPDATE t SET note = 'x' WHERE id = :n;
\elif :what = 3
DELETE FROM t WHERE id BETWEEN :n AND :n + 20;
\elif :what = 4
INSERT INTO t (v) SELECT vec(:n + i, 6) FROM generate_series(1, 30) AS i;
\elif :what = 5
BEGIN;
INSERT INTO t (v) SELECT vec(:n - i, 6) FROM generate_series(1, 5) AS i;
SAVEPOINT a;
DELETE FROM t WHERE id = :n;
ROLLBACK TO a;
ROLLBACK;
\else
BEGIN;
SAVEPOINT a;
INSERT INTO t (v) VALUES (vec(:n, 6));
RELEASE a;
UPDATE t SET v = vec(:n * 3, 6) WHERE id = :n + 1;
COMMIT;
\endif
END
	whole => [ 6, <<'END' ],
\set n random(1, 20000)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT compare_whole(format('v <-> vec(%s, 6)', :n), 'true');
SELECT compare_whole(format('v <=> vec(%s, 6)', :n), 'true');
SELECT compare_whole(format('v <#> vec(%s, 6)', :n), 'id % 3 = 0');
COMMIT;
END
	first => [ 12, <<'END' ],
\set n random(1, 20000)
\set k random(1, 200)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT compare_first(format('v <-> vec(%s, 6)', :n), 'true', :k);
SELECT compare_first(format('v <-> vec(%s, 6)', :n), 'id % 50 = 0', 10);
COMMIT;
END
	batch => [ 6, <<'END' ],
\set n random(1, 20000)
\set k random(1, 50)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT compare_batch(:n, :k);
COMMIT;
END
	cursor => [ 3, <<'END' ],
\set n random(1, 20000)
BEGIN ISOLATION LEVEL REPEATABLE READ;
DECLARE c CURSOR FOR SELECT id FROM t ORDER BY v <-> vec(:n, 6);
MOVE FORWARD 20 IN c;
\sleep 200 ms
MOVE FORWARD 500 IN c;
\sleep 300 ms
MOVE FORWARD ALL IN c;
COMMIT;
END
	# Truncating waits for seconds where others read the table, and fifty wait one behind another.
	vacuum => [ 4, "VACUUM (TRUNCATE OFF) t;\n" ],);

# The table and the functions that compare.
sub prepare_stress
{
	my ($node) = @_;
	value($node, $setup);
	return;
}

# Starts clients that run these scripts, or all, for a while. finish_clients() waits for them, and returns
# pgbench's exit status, the number of transactions, and the lines that tell of errors.
sub start_clients
{
	my ($node, $clients, $seconds, $seed, @names) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	@names = sort keys %scripts unless @names;
	my @arguments;
	for my $name (@names)
	{
		my ($weight, $script) = @{ $scripts{$name} };
		append_to_file("$folder/$name.sql", $script);
		push @arguments, "--file=$folder/$name.sql\@$weight";
	}
	my $run = { out => '', complaints => '' };
	$run->{process} = IPC::Run::start([ 'pgbench', '--no-vacuum', "--client=$clients", '--jobs=2', "--time=$seconds",
		"--random-seed=$seed", @arguments, '--port=' . $node->port, '--host=' . $node->host,
		'postgres' ], '>', \$run->{out}, '2>', \$run->{complaints});
	return $run;
}

sub finish_clients
{
	my ($run) = @_;
	$run->{process}->finish;
	my ($transactions) = $run->{out} =~ /number of transactions actually processed: (\d+)/;
	my @errors = grep { /ERROR|error/ } split /\n/, $run->{complaints};
	return ($run->{process}->result(0), $transactions // 0, @errors);
}

# $meanwhile->() is called again and again while they run.
sub stress
{
	my ($node, $clients, $seconds, $meanwhile) = @_;
	prepare_stress($node);
	my $seed = seed_of();
	my ($status, $transactions, @errors) = (0, 0);
	# A busy machine takes longer for as much.
	for my $turn (0 .. 19)
	{
		my $run = start_clients($node, $clients, $seconds, $seed + $turn);
		my $end = time + $seconds;
		while ($meanwhile && time < $end) { $meanwhile->(); }
		my ($how, $done, @complaints) = finish_clients($run);
		$status ||= $how;
		$transactions += $done;
		push @errors, @complaints;
		last if $status || $transactions > 100;
	}
	is($status, 0, 'every search agrees with an exact one');
	is(join("\n", @errors), '', 'no error');
	note("$transactions transactions");
	cmp_ok($transactions, '>', 100, 'there was something to compare');
	is(value($node, "SELECT bool_and(trained) FROM unnest(ARRAY['t_l2', 't_cosine']) AS i,
		ivfpq_info(i::regclass)"), 't', 'the indexes were trained on the way');

	compares($node, 't', 'v <-> vec(0, 6)', 'at rest');
	vacuum_all($node, 't');
	for my $index ('t_l2', 't_cosine')
	{
		is(value($node, "SELECT rows FROM ivfpq_info('$index')"),
			value($node, 'SELECT count(*) FROM t'), "$index: none left over");
	}
	is(value($node, "SELECT rows FROM ivfpq_info('t_part')"),
		value($node, 'SELECT count(*) FROM t WHERE id % 3 = 0'), 't_part: none left over');
	indexes_are_sound($node);
	return;
}

1;
