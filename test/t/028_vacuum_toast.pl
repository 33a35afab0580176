# Training reads rows inside VACUUM, which PostgreSQL lets others clean up behind: vectors long enough
# to lie in the TOAST table must not be removed from under it.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $node = new_node('vacuum_toast', conf => 'maintenance_work_mem = 64MB');
# The index's expression waits at a row, so that others can work meanwhile.
value($node, <<'SQL');
CREATE FUNCTION pass(id int, v vector) RETURNS vector LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF id = 2000 THEN PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1); END IF;
	RETURN v;
END
$$;
CREATE TABLE long (id int, v vector(600));
ALTER TABLE long ALTER v SET STORAGE EXTERNAL;
CREATE INDEX long_v ON long USING ivfpq ((pass(id, v)::vector(600))) WITH (lists = 4, m = 4);
INSERT INTO long SELECT i, array_fill(i, ARRAY[600])::vector FROM generate_series(1, 10200) AS i;
SQL
my $toast = value($node, "SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'long'");

my $gate = session($node);
my $vacuum = session($node);
my $pid = $vacuum->query_safe('SELECT pg_backend_pid()');
for my $stage ('sampling', 'moving')
{
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	start($vacuum, 'VACUUM (PROCESS_TOAST OFF) long');
	wait_until($node, "count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'advisory'");
	if ($stage eq 'moving')
	{
		# Past the sample, on to where rows are moved.
		$gate->query_safe('SELECT pg_advisory_unlock(1); SELECT pg_advisory_lock(1)');
		$node->poll_query_until('postgres', "SELECT (SELECT trained FROM ivfpq_info('long_v')) AND
			(SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'advisory')")
		  or die 'it does not get there';
	}
	# Rows that VACUUM has not read yet go, and another VACUUM cleans up the TOAST table.
	value($node, "DELETE FROM long WHERE id > 2000 AND id % 4 = "
		. ($stage eq 'sampling' ? 0 : 1));
	value($node, "VACUUM $toast");
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	my (undef, $complaints) = finish($vacuum);
	is($complaints, '', "$stage: VACUUM reads what it needs");
	is(value($node, "SELECT trained FROM ivfpq_info('long_v')"), 't', 'and trains the index');
	is(value($node, "SET enable_seqscan = off; SELECT count(*) = (SELECT count(*) FROM long) FROM
		(SELECT id FROM long ORDER BY pass(id, v)::vector(600) <-> array_fill(7, ARRAY[600])::vector) AS s"),
		't', 'with every row');
	if ($stage eq 'sampling')
	{
		# Once more, from the beginning.
		value($node, 'TRUNCATE long; INSERT INTO long SELECT i, array_fill(i, ARRAY[600])::vector
			FROM generate_series(1, 10200) AS i');
	}
}
# Once it is over, VACUUM is as before.
value($node, 'VACUUM long');
value($node, "VACUUM $toast");
is(value($node, "SELECT rows = (SELECT count(*) FROM long) FROM ivfpq_info('long_v')"), 't',
	'and everything dead is gone');

# What went, TOAST and all, before VACUUM came to the index: a BRIN index, which VACUUM brings up to
# date before, waits at a row.
value($node, <<'SQL');
CREATE FUNCTION pass(id int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF id = 2000 THEN PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1); END IF;
	RETURN id;
END
$$;
CREATE TABLE before (id int, v vector(600));
ALTER TABLE before ALTER v SET STORAGE EXTERNAL;
CREATE INDEX before_pass ON before USING brin (pass(id)) WITH (pages_per_range = 1);
CREATE INDEX before_v ON before USING ivfpq (v) WITH (lists = 4, m = 4);
INSERT INTO before SELECT i, array_fill(i, ARRAY[600])::vector FROM generate_series(1, 13000) AS i;
SQL
$toast = value($node, "SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'before'");
$gate->query_safe('SELECT pg_advisory_lock(1)');
start($vacuum, 'VACUUM (PROCESS_TOAST OFF, PARALLEL 0) before');
wait_until($node, "count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'advisory'");
value($node, 'DELETE FROM before WHERE id > 2000 AND id % 4 = 0');
value($node, "VACUUM $toast");
$gate->query_safe('SELECT pg_advisory_unlock(1)');
my (undef, $complaints) = finish($vacuum);
is($complaints, '', 'VACUUM does not look for what is gone');
is(value($node, "SELECT trained, pending_rows FROM ivfpq_info('before_v')"), 't|2750',
	'it trains the index, and leaves the dead alone');
compares($node, 'before', 'v <-> array_fill(7, ARRAY[600])::vector', 'every row is there');

$_->quit for $gate, $vacuum;
indexes_are_sound($node);
$node->stop;
done_testing();
