# A full disk: an error that says so, nothing lost, and all goes on when there is room again.
#
# A limit on the size of files is the small disk that everybody has, root or not: the postmaster gets
# one, and its backends inherit it. An index with many short lists is larger than its table.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

plan skip_all => 'there is no prlimit' unless -x '/usr/bin/prlimit';
my $node = new_node('disk_full', initdb => ['--wal-segsize=1'],
	conf => "max_wal_size = 64MB\nmin_wal_size = 2MB\nmaintenance_work_mem = 64MB");
make_table($node, 't', 8, 12000);
value($node, 'CHECKPOINT');

my $pid = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
sub disk
{
	my ($bytes) = @_;
	system_or_bail('prlimit', "--pid=$pid", "--fsize=$bytes:unlimited");
	return;
}
my $room = 8 * 1024 * 1024;
my $full = qr/could not (extend|write) .*: File too large|could not (extend|write).*wrote only/;
my $whole = 'SET enable_seqscan = off; SELECT count(*), count(DISTINCT id) FROM
	(SELECT id FROM %s ORDER BY v <-> vec(0, 8)) AS s';

# CREATE INDEX
disk($room);
like(error_of($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 3000)'), $full, 'CREATE INDEX');
is(value($node, "SELECT count(*) FROM pg_class WHERE relname = 't_v'"), 0, 'leaves nothing');
like(error_of($node, 'CREATE INDEX CONCURRENTLY t_v ON t USING ivfpq (v) WITH (lists = 3000)'), $full,
	'concurrently');
is(value($node, "SELECT indisvalid FROM pg_index WHERE indexrelid = 't_v'::regclass"), 'f',
	'leaves an invalid index');
value($node, 'DROP INDEX t_v');

# Training inside VACUUM.
value($node, 'CREATE TABLE w (id bigint, v vector(8))');
value($node, 'CREATE INDEX w_v ON w USING ivfpq (v) WITH (lists = 3000)');
value($node, 'INSERT INTO w SELECT * FROM t');
like(error_of($node, 'VACUUM w'), $full, 'VACUUM that trains');
is(value($node, sprintf($whole, 'w')), '12000|12000', 'every row is there');
is(value($node, "SELECT count(*) FROM ivfpq_check('w_v', true)"), 0, 'the index is sound');
is(value($node, "SELECT trained, pending_rows > 0 FROM ivfpq_info('w_v')"), 't|t', 'and half way');
# INSERT: lists that are empty want a page.
like(error_of($node, 'INSERT INTO w SELECT -id, vec(-id, 8) FROM t'), $full, 'INSERT');
is(value($node, sprintf($whole, 'w')), '12000|12000', 'its rows are not there, others are');
is(value($node, "SELECT count(*) FROM ivfpq_check('w_v', true)"), 0, 'the index is sound');
like(error_of($node, 'VACUUM w'), $full, 'VACUUM again');
is(value($node, sprintf($whole, 'w')), '12000|12000', 'every row is still there');

# Room again.
disk('unlimited');
is(error_of($node, 'VACUUM w'), '', 'VACUUM finishes');
is(value($node, "SELECT trained, pending_rows FROM ivfpq_info('w_v')"), 't|0', 'the training');
is(value($node, sprintf($whole, 'w')), '12000|12000', 'with every row');
value($node, 'INSERT INTO w SELECT -id, vec(-id, 8) FROM t');
compares($node, 'w', 'v <-> vec(0, 8)', 'inserts go on');
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v) WITH (lists = 3000)');
compares($node, 't', 'v <-> vec(0, 8)', 'so do builds');
value($node, 'VACUUM w');
is(value($node, "SELECT 8192 + model_bytes + list_bytes + pending_bytes + free_bytes = bytes
	FROM ivfpq_info('w_v')"), 't', 'no page is lost');

indexes_are_sound($node);
$node->stop;
done_testing();
