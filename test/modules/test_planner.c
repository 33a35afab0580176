/*
 * An extension that plans queries of a table by itself, as those do that spread tables over servers:
 * where test_planner.shell names a table, queries of it call the function that test_planner.rows
 * names, which returns rows of the table's type, and the table itself is not read.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "fmgr.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/varlena.h"

PG_MODULE_MAGIC;

void _PG_init(void);

static char *table_name;
static char *function_name;
static planner_hook_type previous_hook;

static List *
name_list(const char *name)
{
#if PG_VERSION_NUM >= 160000
	return stringToQualifiedNameList(name, NULL);
#else
	return stringToQualifiedNameList(name);
#endif
}

/* The table becomes a function in the FROM clause: its columns keep their numbers. */
static bool
replace_table(Node *node, void *table)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *entry = (RangeTblEntry *) node;

		if (entry->rtekind == RTE_RELATION && entry->relid == *(Oid *) table)
		{
			RangeTblFunction *function = makeNode(RangeTblFunction);
			Oid			number = LookupFuncName(name_list(function_name), 0, NULL, false);

			function->funcexpr = (Node *) makeFuncExpr(number, get_func_rettype(number), NIL, InvalidOid,
													   InvalidOid, COERCE_EXPLICIT_CALL);
			((FuncExpr *) function->funcexpr)->funcretset = true;
			function->funccolcount = list_length(entry->eref->colnames);
			entry->rtekind = RTE_FUNCTION;
			entry->functions = list_make1(function);
			entry->relid = InvalidOid;
			entry->inh = false;
#if PG_VERSION_NUM >= 160000
			entry->perminfoindex = 0;
#else
			entry->requiredPerms = 0;
#endif
		}
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, replace_table, table, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, replace_table, table);
}

/* 19 tells the planner whether EXPLAIN asks. */
#if PG_VERSION_NUM >= 190000
#define PLANNER_PARAMETERS Query *query, const char *text, int options, ParamListInfo parameters, ExplainState *explain
#define PLANNER_ARGUMENTS query, text, options, parameters, explain
#else
#define PLANNER_PARAMETERS Query *query, const char *text, int options, ParamListInfo parameters
#define PLANNER_ARGUMENTS query, text, options, parameters
#endif

static PlannedStmt *
plan(PLANNER_PARAMETERS)
{
	if (table_name[0] && query->commandType == CMD_SELECT)
	{
		Oid			table = RangeVarGetRelid(makeRangeVarFromNameList(name_list(table_name)), NoLock, true);

		if (OidIsValid(table))
			replace_table((Node *) query, &table);
	}
	if (previous_hook)
		return previous_hook(PLANNER_ARGUMENTS);
	return standard_planner(PLANNER_ARGUMENTS);
}

void
_PG_init(void)
{
	DefineCustomStringVariable("test_planner.shell", "Table whose rows a function has.", NULL, &table_name, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("test_planner.rows", "The function that has its rows.", NULL, &function_name, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	previous_hook = planner_hook;
	planner_hook = plan;
}
