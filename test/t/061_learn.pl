# ivfpq_learn: searches that are like the given queries get the recall that was asked for. What was
# learned is there after a crash and on a standby. VACUUM and other learners wait, writers do not.
use strict;
use warnings;
use List::Util qw(sum);
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('learn', streaming => 1);
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;

# Rows in clusters. Two kinds of queries that are no such rows.
value($node, <<'SQL');
CREATE FUNCTION clustered(i bigint) RETURNS vector LANGUAGE sql IMMUTABLE AS $$
	SELECT vec(i % 150, 8, 5) + (SELECT array_agg(e / 4) FROM unnest(vec(i, 8, 6)::real[]) AS e)::vector
$$;
CREATE TABLE t (id bigint, v vector(8));
INSERT INTO t SELECT i, clustered(i) FROM generate_series(1, 15000) AS i;
CREATE TABLE midpoints AS SELECT i AS id,
	(SELECT avg(v) FROM (VALUES (clustered(20000 + i)), (clustered(30000 + 7 * i))) AS p (v))::vector(8) AS v
	FROM generate_series(1, 800) AS i;
CREATE TABLE scaled AS SELECT i AS id,
	(SELECT array_agg(e * 1.5) FROM unnest(clustered(20000 + i)::real[]) AS e)::vector(8) AS v
	FROM generate_series(1, 800) AS i;
CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 120, m = 4);
SQL
my @kinds = ('midpoints', 'scaled');
# The first 500 are for learning, the others show what it is worth.
for my $kind (@kinds)
{
	value($node, "CREATE VIEW ${kind}_given AS SELECT v FROM $kind WHERE id <= 500");
	value($node, "SET enable_indexscan = off;
		CREATE TABLE ${kind}_truth AS SELECT q.v, d FROM $kind AS q CROSS JOIN LATERAL
			(SELECT array_agg(d) AS d FROM
				(SELECT t.v <-> q.v AS d FROM t ORDER BY t.v <-> q.v LIMIT 1000) AS n) AS n
		WHERE id > 500");
}

sub recalls
{
	my ($kind) = @_;
	return map {
		value($node, "SET enable_seqscan = off;
			SELECT avg((SELECT count(*) FROM (SELECT t.v <-> q.v AS d FROM t ORDER BY t.v <-> q.v LIMIT $_) AS n
				WHERE n.d <= q.d[$_]) / $_.0)::numeric(6, 4) FROM ${kind}_truth AS q")
	} (1, 10, 100, 1000);
}
# All that a scan chooses its effort by.
my $curve = "SELECT md5(string_agg(c::text, ',')) FROM
		(SELECT * FROM ivfpq_recall_curve('t_v') UNION ALL SELECT * FROM ivfpq_recall_curve('t_v', true)) AS c;
	SELECT curve_source, curve_queries, curve_at, expected_recall FROM ivfpq_info('t_v')";

for my $kind (@kinds)
{
	value($node, 'REINDEX INDEX t_v');
	my @before = recalls($kind);
	is(value($node, "SELECT string_agg(k || ' ' || used, ', ' ORDER BY k) FROM ivfpq_learn('t_v', '${kind}_given', 'v')"),
		'1 500, 10 500, 100 500, 1000 500', "learns from $kind");
	my @after = recalls($kind);
	note("$kind: @before before, @after after");
	for my $i (0 .. 3)
	{
		cmp_ok($after[$i], '>=', 0.945, "$kind: recall\@" . 10**$i . " is as asked, $before[$i] before");
	}
	# One row of 300 queries each is too few to tell.
	my ($off_before, $off_after) = map { my $of = $_; sum(map { abs($of->[$_] - 0.95) } 1 .. 3) } \@before, \@after;
	cmp_ok($off_before, '>', $off_after, 'and nearer to it than before');
	my $learned = value($node, $curve);
	like($learned, qr/\nqueries\|500\|/, 'the index says so');
	crash($node);
	is(value($node, $curve), $learned, 'the same after a crash');
	$node->wait_for_catchup($standby);
	is(value($standby, $curve), $learned, 'and on a standby');
}
like(error_of($standby, "SELECT ivfpq_learn('t_v', 'midpoints', 'v')"),
	qr/cannot execute ivfpq_learn\(\) during recovery/, 'which does not learn itself');

# --- beside others

# The pass over the table waits at one row.
value($node, <<'SQL');
CREATE FUNCTION wait_at(id bigint, v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF id = 9000 THEN
		PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
	END IF;
	RETURN v;
END
$$;
CREATE INDEX t_wait ON t USING ivfpq ((wait_at(id, v)::vector(8))) WITH (lists = 50);
SQL
my $learn = "SELECT count(*) FROM ivfpq_learn('t_wait', 'midpoints', 'v', 200)";
sub held_learner
{
	my $gate = session($node);
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $learner = session($node);
	my $pid = $learner->query_safe('SELECT pg_backend_pid()');
	start($learner, $learn);
	wait_until($node, "count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'advisory'");
	return ($gate, $learner, $pid);
}
my $about = "SELECT curve_source, curve_queries, probes FROM ivfpq_info('t_wait')";
my $before = value($node, $about);
my ($gate, $learner, $pid) = held_learner();
value($node, "SELECT pg_cancel_backend($pid)");
like((finish($learner))[1], qr/canceling statement/, 'can be cancelled');
$gate->quit;
is(value($node, $about), $before, 'and then has changed nothing');
$learner->quit;

($gate, $learner, $pid) = held_learner();
my %waiting = (VACUUM => session($node), learn => session($node));
start($waiting{VACUUM}, 'VACUUM t');
start($waiting{learn}, $learn);
wait_until($node, "count(*) = 2 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass");
pass('VACUUM and another learner wait');
value($node, 'INSERT INTO t SELECT i, clustered(i) FROM generate_series(40001, 41000) AS i');
value($node, 'DELETE FROM t WHERE id % 10 = 1');
pass('writers do not');
$gate->quit;
is((finish($learner))[0], 4, 'it ends');
is((finish($waiting{$_}))[1], '', "$_ ends") for 'VACUUM', 'learn';
like(value($node, $about), qr/^queries\|200\|/, 'and the index has its curve');
compares($node, 't', 'v <-> vec(3, 8)', 'each row once');
indexes_are_sound($node, 'all of it');

# The query is so long that what is added to its distances is infinite, but not its products.
value($node, <<'SQL');
CREATE TABLE products (id int, v vector(8));
INSERT INTO products SELECT i, ARRAY[i % 100 / 100.0, i % 37, i % 41, i % 43, i % 47, i % 53, i % 59, i % 61]::real[]::vector(8)
	FROM generate_series(1, 2000) AS i;
CREATE INDEX products_v ON products USING ivfpq (v vector_ip_ops) WITH (lists = 20);
CREATE TABLE longest AS SELECT i AS id, '[3e37,0,0,0,0,0,0,0]'::vector(8) AS v FROM generate_series(1, 100) AS i;
SQL
is(value($node, "SELECT count(*) FROM ivfpq_learn('products_v', 'longest', 'v', 100)"), 4, 'an infinite shift');

done_testing();
