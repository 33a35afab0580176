# The code of an index's expression never runs while a page is locked: it may take its time, be
# cancelled, and catch errors, which lets go of every lock.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('locks');
value($node, <<'SQL');
CREATE FUNCTION parse(t text) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN t::public.vector(3);
EXCEPTION WHEN others THEN
	RETURN translate(t, '()', '[]')::public.vector(3);
END
$$;
CREATE TABLE t (id int, t text);
INSERT INTO t SELECT i, format('(%s,%s,%s)', i % 100, i % 7, i) FROM generate_series(1, 900) AS i;
CREATE INDEX t_v ON t USING ivfpq ((parse(t)::vector(3)));
SQL
compares($node, 't', "parse(t)::vector(3) <-> '[1,2,3]'", 'a build catches errors on its way');

# Scans of an index that VACUUM trains: once VACUUM has made them walk the pending list a few times,
# they lock it.
value($node, "INSERT INTO t SELECT i, format('(%s,%s,%s)', i % 100, i % 7, i)
	FROM generate_series(901, 30000) AS i");
my $vacuum = session($node);
my $reader = session($node);
my $scan = q{SELECT count(*) FROM
	(SELECT id FROM t ORDER BY parse(t)::vector(3) <-> '[1,2,3]' LIMIT 5) AS s};
my $pid = $vacuum->query_safe('SELECT pg_backend_pid()');
$reader->query_safe('SET enable_seqscan = off');
start($vacuum, 'VACUUM t');
my ($rounds, %results) = (0);
do
{
	my $result = $reader->query($scan);
	$results{ $result . $reader->{stderr} }++;
	$reader->{stderr} = '';
	$rounds++;
} while (value($node, "SELECT state FROM pg_stat_activity WHERE pid = $pid") eq 'active');
my (undef, $complaints) = finish($vacuum);
is($complaints, '', 'VACUUM comes to its end');
is_deeply([ keys %results ], ['5'], "and so do $rounds scans beside it");
is(value($node, "SELECT trained, pending_rows FROM ivfpq_info('t_v')"), 't|0', 'it is trained');

$_->quit for $vacuum, $reader;
indexes_are_sound($node);
$node->stop;
done_testing();
