# A query decides by itself how many lists it looks into. Easy queries take few, hard ones many, and
# both find what was asked for: also queries between tight clusters, which are unlike the rows that
# the index measured itself with. The CPU and the service follow one rule.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('effort', service => 1, conf => 'maintenance_work_mem = 128MB');

# Two tables of 40,000 rows. In `tight`, the clusters are ten times as far apart as they are wide, and
# each is a list. In `spread` they run into each other. A query is a row that is not in the table, or
# lies halfway between two clusters.
value($node, <<'SQL');
CREATE TABLE center AS SELECT i AS id, vec(i, 16, 5) AS v FROM generate_series(0, 399) AS i;
CREATE FUNCTION rows_of(first bigint, last bigint, step int, narrow real) RETURNS TABLE (id bigint, v vector)
LANGUAGE sql AS $$
	SELECT i, c.v + vec(i, 16, 6) * array_fill(1 / narrow, '{16}')::vector
	FROM generate_series(first, last, step) AS i JOIN center AS c ON c.id = i % 400
$$;
CREATE TABLE tight (id bigint, v vector(16));
CREATE TABLE spread (id bigint, v vector(16));
INSERT INTO tight SELECT * FROM rows_of(1, 40000, 1, 16) ORDER BY id;
INSERT INTO spread SELECT * FROM rows_of(1, 40000, 1, 1) ORDER BY id;
CREATE INDEX tight_v ON tight USING ivfpq (v) WITH (lists = 400);
CREATE INDEX spread_v ON spread USING ivfpq (v) WITH (lists = 200);
CREATE TABLE query (relation text, kind text, id int, v vector(16), farthest float8);
INSERT INTO query SELECT relation, 'like rows', (r.id - 50000) / 7, r.v
	FROM (VALUES ('tight', 16), ('spread', 1)) AS t (relation, narrow), rows_of(50007, 50700, 7, narrow) AS r;
INSERT INTO query SELECT a.relation, 'between', a.id, (SELECT avg(v) FROM (VALUES (a.v), (b.v)) AS p (v))
	FROM query AS a JOIN query AS b ON b.relation = a.relation AND b.id = a.id % 100 + 1;
SET enable_indexscan = off;
UPDATE query SET farthest = (SELECT max(d) FROM (SELECT t.v <-> query.v AS d FROM tight AS t ORDER BY d LIMIT 10) AS n)
	WHERE relation = 'tight';
UPDATE query SET farthest = (SELECT max(d) FROM (SELECT t.v <-> query.v AS d FROM spread AS t ORDER BY d LIMIT 10) AS n)
	WHERE relation = 'spread';
RESET enable_indexscan;
CREATE FUNCTION search(who text) RETURNS TABLE (relation text, kind text, id int, executor text, probes int, hits int,
	score float8, expected float8)
LANGUAGE plpgsql AS $$
DECLARE
	asked query;
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true), set_config('ivfpq.executor', who, true);
	FOR asked IN SELECT * FROM query AS q ORDER BY q.relation, q.kind, q.id LOOP
		EXECUTE format('SELECT count(*) FILTER (WHERE d <= $2) FROM
			(SELECT v <-> $1 AS d FROM %I ORDER BY v <-> $1 LIMIT 10) AS n', asked.relation)
			INTO hits USING asked.v, asked.farthest;
		SELECT s.path, s.probes, s.score, s.expected_recall INTO executor, probes, score, expected FROM ivfpq_last_scan() AS s;
		relation := asked.relation;
		kind := asked.kind;
		id := asked.id;
		RETURN NEXT;
	END LOOP;
END
$$;
SELECT pgwarp_prewarm('tight_v'), pgwarp_prewarm('spread_v');
CREATE TABLE searched AS SELECT * FROM search('cpu') UNION ALL SELECT * FROM search('service');
SQL

is(value($node, 'SELECT executor, count(*) FROM searched GROUP BY 1 ORDER BY 1'), "cpu|400\nservice|400",
	'both have searched');
# Codes' distances may differ in their last bits, and so may which of the farthest candidates are ranked.
is(value($node, 'SELECT count(*), count(*) FILTER (WHERE a.probes <> b.probes), count(*) FILTER (WHERE a.hits <> b.hits) <= 2
	FROM searched AS a JOIN searched AS b USING (relation, kind, id)
	WHERE a.executor = $$cpu$$ AND b.executor = $$service$$'), '400|0|t', 'CPU and service take the same lists');

# A search tells where it stopped, and what was measured of searches that stop there.
is(value($node, 'SELECT executor, count(*) FILTER (WHERE score > threshold), count(*) FILTER (WHERE score IS NULL),
		count(DISTINCT (relation, expected)) > 2, bool_and(expected BETWEEN 0.9 AND 1)
	FROM searched, ivfpq_info((relation || $$_v$$)::regclass) GROUP BY 1 ORDER BY 1'), "cpu|400|0|t|t\nservice|0|400|f|t",
	'a search on the CPU knows the score at which it stopped');
note(value($node, 'SELECT relation, kind, executor, round(avg(hits) / 10, 3), avg(expected)::numeric(5, 3), min(expected)::numeric(5, 3),
	percentile_cont(ARRAY[0.1, 0.5, 0.9]) WITHIN GROUP (ORDER BY score) FROM searched GROUP BY 1, 2, 3 ORDER BY 1, 2, 3'));

for my $relation (qw(tight spread))
{
	my %lists;
	for my $kind ('like rows', 'between')
	{
		my ($recall, $mean, $least, $most) = split /\|/, value($node,
			"SELECT round(avg(hits) / 10, 3), round(avg(probes), 1), min(probes), max(probes)
			 FROM searched WHERE relation = '$relation' AND kind = '$kind'");
		note("$relation, $kind: recall $recall, $mean lists, $least to $most");
		cmp_ok($recall, '>=', $kind eq 'between' ? 0.9 : 0.94, "$relation, $kind: recall");
		$lists{$kind} = $mean;
	}
	cmp_ok($lists{'between'}, '>', 1.1 * $lists{'like rows'}, "$relation: hard queries take more lists");
}
cmp_ok(value($node, "SELECT count(DISTINCT probes) FROM searched WHERE relation = 'spread' AND kind = 'like rows'"),
	'>', 5, 'and queries alike take as many as they need');

# How many candidates are ranked depends on the query, too: it stops where the next ones are too far by
# their codes. Codes of four bytes tell little, so there are many candidates.
value($node, <<'SQL');
CREATE TABLE coarse AS SELECT * FROM spread;
CREATE INDEX coarse_v ON coarse USING ivfpq (v) WITH (lists = 50, m = 4);
SELECT pgwarp_prewarm('coarse_v');
CREATE FUNCTION rank(who text, given int) RETURNS TABLE (id int, candidates bigint, nearest bigint)
LANGUAGE plpgsql AS $$
DECLARE
	asked query;
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true), set_config('ivfpq.executor', who, true),
		set_config('ivfpq.target_recall', '0.99', true), set_config('ivfpq.candidates', given::text, true);
	FOR asked IN SELECT * FROM query AS q WHERE relation = 'spread' AND kind = 'like rows' ORDER BY q.id LOOP
		SELECT c.id INTO nearest FROM coarse AS c ORDER BY c.v <-> asked.v LIMIT 1;
		SELECT s.candidates INTO candidates FROM ivfpq_last_scan() AS s;
		id := asked.id;
		RETURN NEXT;
	END LOOP;
END
$$;
-- The same with a LIMIT of 10, for both kinds of queries.
CREATE FUNCTION rank_ten(who text, given int) RETURNS TABLE (kind text, id int, candidates bigint, hits int)
LANGUAGE plpgsql AS $$
DECLARE
	asked query;
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true), set_config('ivfpq.executor', who, true),
		set_config('ivfpq.candidates', given::text, true);
	FOR asked IN SELECT * FROM query AS q WHERE relation = 'spread' ORDER BY q.kind, q.id LOOP
		SELECT count(*) FILTER (WHERE d <= asked.farthest) INTO hits FROM
			(SELECT c.v <-> asked.v AS d FROM coarse AS c ORDER BY c.v <-> asked.v LIMIT 10) AS n;
		SELECT s.candidates INTO candidates FROM ivfpq_last_scan() AS s;
		kind := asked.kind;
		id := asked.id;
		RETURN NEXT;
	END LOOP;
END
$$;
CREATE TABLE ten AS SELECT 'cpu' AS who, * FROM rank_ten('cpu', 0) UNION ALL SELECT 'service', * FROM rank_ten('service', 0);
INSERT INTO ten SELECT 'as many', * FROM rank_ten('cpu', (SELECT candidates FROM ivfpq_info('coarse_v')));
CREATE TABLE ranked AS SELECT 'cpu' AS who, * FROM rank('cpu', 0) UNION ALL SELECT 'service', * FROM rank('service', 0);
INSERT INTO ranked SELECT 'all', * FROM rank('cpu', (SELECT max(candidates)::int FROM ranked));
SQL
my ($all, $mean, $least, $most) = split /\|/, value($node, "SELECT (SELECT max(candidates) FROM ranked WHERE who = 'all'),
	round(avg(candidates), 1), min(candidates), max(candidates) FROM ranked WHERE who = 'cpu'");
note("$mean candidates ranked, $least to $most of $all");
cmp_ok($mean, '<', 0.9 * $all, 'queries rank as many candidates as they need');
is(value($node, "SELECT count(*), count(*) FILTER (WHERE a.candidates = b.candidates) > 90 FROM ranked AS a JOIN ranked AS b USING (id, nearest)
	WHERE a.who = 'cpu' AND b.who = 'service'"), '100|t', 'CPU and service find the same; where the first candidates are enough, they rank the same');
cmp_ok(value($node, "SELECT count(*) FROM ranked AS a JOIN ranked AS b USING (id, nearest)
	WHERE a.who = 'cpu' AND b.who = 'all'"), '>=', 99, 'and find what all of them have');

# Between clusters, candidates are hardly nearer than each other, and codes tell them apart less: a query
# ranks more of them.
my %ten;
for my $who ('cpu', 'as many')
{
	for my $kind ('like rows', 'between')
	{
		$ten{$who}{$kind} = [ split /\|/, value($node, "SELECT round(avg(hits) / 10, 3), round(avg(candidates), 1)
			FROM ten WHERE who = '$who' AND kind = '$kind'") ];
		note("$who, $kind: recall $ten{$who}{$kind}[0], $ten{$who}{$kind}[1] candidates");
	}
}
cmp_ok($ten{cpu}{'between'}[1], '>', 1.05 * $ten{cpu}{'like rows'}[1], 'hard queries rank more candidates');
cmp_ok($ten{cpu}{'between'}[0], '>', $ten{'as many'}{'between'}[0], 'and find more by it');
# A hundred queries have a standard error of 0.01.
cmp_ok($ten{cpu}{$_}[0], '>=', 0.92, "$_, coarse codes: recall") for 'like rows', 'between';
is(value($node, "SELECT count(*) FROM ten AS a JOIN ten AS b USING (kind, id, candidates, hits)
	WHERE a.who = 'cpu' AND b.who = 'service'"), 200, 'CPU and service rank the same');

indexes_are_sound($node);
$node->stop;
done_testing();
