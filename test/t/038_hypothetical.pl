# Indexes that are not there, as extensions for planning make them up: the planner costs them without
# opening them. A small library turns the indexes of a table into such.
use strict;
use warnings;
use PostgreSQL::Test::Utils;
use Test::More;
use IvfpqTest;

my $folder = PostgreSQL::Test::Utils::tempdir();
chmod 0755, $folder;
my $include = `pg_config --includedir-server`;
chomp $include;
append_to_file("$folder/pretend.c", <<'END');
#include "postgres.h"
#include "commands/defrem.h"
#include "commands/explain.h"
#include "fmgr.h"
#include "optimizer/pathnode.h"
#include "optimizer/plancat.h"
PG_MODULE_MAGIC;
void _PG_init(void);
static const char *name_index(Oid index) { return index == 4294967295 ? "pretended" : NULL; }
/* 19 has another hook in place of get_relation_info_hook. */
#if PG_VERSION_NUM >= 190000
#define hook build_simple_rel_hook
static void pretend(PlannerInfo *root, RelOptInfo *rel, RangeTblEntry *entry)
#else
#define hook get_relation_info_hook
static void pretend(PlannerInfo *root, Oid table, bool inherited, RelOptInfo *rel)
#endif
{
	ListCell *cell;
	foreach(cell, rel->indexlist)
	{
		IndexOptInfo *index = (IndexOptInfo *) lfirst(cell);
		if (index->relam != get_am_oid("ivfpq", true))
			continue;
		index->hypothetical = true;
		index->indexoid = 4294967295;
	}
}
void _PG_init(void)
{
	hook = pretend;
	explain_get_index_name_hook = name_index;
}
END
plan skip_all => 'no compiler' if system('cc --version >/dev/null 2>&1') != 0;
system("cc -fPIC -shared -w -I'$include' -o '$folder/pretend.so' '$folder/pretend.c'") == 0
  or die 'the library does not compile';

my $node = new_node('hypothetical');
make_table($node, 't', 4, 20000);
value($node, 'CREATE INDEX t_v ON t USING ivfpq (v); ANALYZE t');
my $plan = value($node, "LOAD '$folder/pretend.so';
	EXPLAIN SELECT id FROM t ORDER BY v <-> '[1,2,3,4]' LIMIT 10");
like($plan, qr/Index Scan using "?pretended"? on t/, 'an index that is not there is planned with');
my ($cost) = $plan =~ /^Limit.*\.\.([0-9.]+) rows/;
my ($real) = value($node, "EXPLAIN SELECT id FROM t ORDER BY v <-> '[1,2,3,4]' LIMIT 10")
  =~ /^Limit.*\.\.([0-9.]+) rows/;
cmp_ok($cost, '<', 10 * $real, 'at a cost that is like the real one');
cmp_ok($cost, '>', $real / 10, 'from below as well');
indexes_are_sound($node);
$node->stop;
done_testing();
