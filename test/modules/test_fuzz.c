/*
 * Functions that damage things at random, many times a second, and see what comes of it:
 *
 * fuzz_type(type, receive, starts, seed, count)
 *     reads mutations of `starts` by a type's input or receive function. What is read must be written
 *     and read again as the same value.
 * fuzz_index(index, statements, seed, count)
 *     mutates one page of an index in shared buffers, runs a statement, and puts all pages back.
 *     The statement "vacuum" is what VACUUM does with the index, "insert" a row more.
 *
 * Both return what happened, one row for each kind: 'ok', or an error's SQLSTATE and message, in which
 * numbers are '#', how often, and the first mutation of it, so that `count` from there finds it again.
 * An error in a mutation ends a subtransaction only. A statement that takes longer than 10 s is
 * canceled, and is an error of its own.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/vacuum.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/resowner.h"
#include "utils/timeout.h"
#include "utils/tuplestore.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(fuzz_type);
PG_FUNCTION_INFO_V1(fuzz_index);

/* SplitMix64: each mutation has its own sequence, by seed and number. */
static uint64 state;

static void
start_random(int64 seed, int number)
{
	state = (uint64) seed * UINT64CONST(0x9e3779b97f4a7c15) + (uint64) number;
}

static uint64
next_random(void)
{
	uint64		z = (state += UINT64CONST(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64CONST(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64CONST(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint32
below(uint32 end)
{
	return (uint32) (next_random() % end);
}

/* What happened, by its text. */
typedef struct
{
	char		what[192];
	int64		times;
	int			first;
} Outcome;

static HTAB *
make_outcomes(void)
{
	HASHCTL		control = {0};

	control.keysize = sizeof(((Outcome *) NULL)->what);
	control.entrysize = sizeof(Outcome);
	return hash_create("outcomes", 64, &control, HASH_ELEM | HASH_STRINGS);
}

static void
add_outcome(HTAB *outcomes, int number, const char *sqlstate, const char *message)
{
	char		what[192];
	size_t		length = 0;
	bool		found;
	Outcome    *outcome;

	if (sqlstate)
		length = snprintf(what, sizeof(what), "%s ", sqlstate);
	for (const char *c = message; *c && length < sizeof(what) - 1; ++c)
	{
		bool		number_goes_on = length > 0 && what[length - 1] == '#';

		if (*c >= '0' && *c <= '9')
		{
			if (!number_goes_on)
				what[length++] = '#';
		}
		else
			what[length++] = (*c >= ' ' && *c < 127) ? *c : '?';
	}
	what[length] = '\0';
	outcome = hash_search(outcomes, what, HASH_ENTER, &found);
	if (!found)
	{
		outcome->times = 0;
		outcome->first = number;
	}
	++outcome->times;
}

static void
return_outcomes(FunctionCallInfo fcinfo, HTAB *outcomes)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext caller = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	HASH_SEQ_STATUS walk;
	Outcome    *outcome;
	TupleDesc	columns;

	if (get_call_result_type(fcinfo, NULL, &columns) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	result->returnMode = SFRM_Materialize;
	result->setResult = tuplestore_begin_heap(true, false, work_mem);
	result->setDesc = BlessTupleDesc(columns);
	MemoryContextSwitchTo(caller);
	hash_seq_init(&walk, outcomes);
	while ((outcome = hash_seq_search(&walk)) != NULL)
	{
		Datum		values[3] = {CStringGetTextDatum(outcome->what), Int64GetDatum(outcome->times),
			Int32GetDatum(outcome->first)};
		bool		nulls[3] = {false, false, false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/* Time's up: the statement is canceled as a user would. */
static void
cancel_late(void)
{
	InterruptPending = true;
	QueryCancelPending = true;
}

static TimeoutId
late_timeout(void)
{
	static TimeoutId timeout = MAX_TIMEOUTS;

	if (timeout == MAX_TIMEOUTS)
		timeout = RegisterTimeout(USER_TIMEOUT, cancel_late);
	return timeout;
}

/* Does `work` in a subtransaction, which is undone, and notes what happened. */
static void
attempt(HTAB *outcomes, int number, const char *(*work) (void *), void *argument)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	const char *volatile said = NULL;
	const int	late_ms = 10000;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	enable_timeout_after(late_timeout(), late_ms);
	PG_TRY();
	{
		said = work(argument);
		disable_timeout(late_timeout(), false);
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		add_outcome(outcomes, number, NULL, said);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		disable_timeout(late_timeout(), false);
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		add_outcome(outcomes, number, unpack_sql_state(error->sqlerrcode), error->message);
		FreeErrorData(error);
	}
	PG_END_TRY();
}

/*
 * Bytes of a value
 */

static void
mutate_bytes(StringInfo bytes, bool text, Datum *starts, int start_count)
{
	static const char *const pieces[] = {"[", "]", ",", "-", "+", ".", "e", "E38", "1e-46", "NaN", "inf", "-Infinity",
		" ", "\t", "0", "9999999999999999999999", "0x1p3", "{", "}", ":", "/", "1.17549435e-38", "65504", "65520"};
	int			changes = 1 + below(4);

	for (int change = 0; change < changes; ++change)
	{
		int			at = bytes->len > 0 ? (int) below(bytes->len) : 0;

		switch (below(7))
		{
			case 0:				/* a bit */
				if (bytes->len > 0)
					bytes->data[at] ^= 1 << below(8);
				break;
			case 1:				/* a byte */
				if (bytes->len > 0)
					bytes->data[at] = (char) next_random();
				break;
			case 2:				/* the end is missing */
				bytes->len = at;
				break;
			case 3:				/* a part is missing */
				if (bytes->len > 0)
				{
					int			most = Min(8, bytes->len - at);
					int			length = 1 + below(most);

					memmove(bytes->data + at, bytes->data + at + length, bytes->len - at - length);
					bytes->len -= length;
				}
				break;
			case 4:				/* a part twice */
				if (bytes->len > 0 && bytes->len < 100000)
				{
					int			most = Min(64, bytes->len - at);
					int			length = 1 + below(most);

					appendBinaryStringInfo(bytes, pnstrdup(bytes->data + at, length), length);
				}
				break;
			case 5:				/* a piece of the grammar, or a number */
				if (text)
				{
					const char *piece = pieces[below(lengthof(pieces))];
					int			length = strlen(piece);

					appendBinaryStringInfo(bytes, piece, length);
					memmove(bytes->data + at + length, bytes->data + at, bytes->len - length - at);
					memcpy(bytes->data + at, piece, length);
				}
				else if (bytes->len >= 2)
				{
					static const uint16 numbers[] = {0, 1, 0x7fff, 0x8000, 0xffff, 16000, 16001, 0x7c00, 0x7e00};
					uint16		number = pg_hton16(numbers[below(lengthof(numbers))]);

					memcpy(bytes->data + below(bytes->len - 1), &number, 2);
				}
				break;
			default:			/* the end of another */
				{
					bytea	   *other = DatumGetByteaPP(starts[below(start_count)]);
					int			length = VARSIZE_ANY_EXHDR(other);
					int			from = length > 0 ? (int) below(length) : 0;

					bytes->len = at;
					appendBinaryStringInfo(bytes, VARDATA_ANY(other) + from, length - from);
				}
		}
		bytes->data[bytes->len] = '\0';
	}
	if (text)
		for (int i = 0; i < bytes->len; ++i)
			if (bytes->data[i] == '\0')
				bytes->data[i] = '0';
}

typedef struct
{
	bool		receive;
	Oid			in,
				out,
				element;
	int32		typmod;
	bool		by_value;
	int16		length;
	StringInfo	bytes;
} TypeWork;

static Datum
read_value(TypeWork *work, StringInfo bytes)
{
	if (!work->receive)
		return OidInputFunctionCall(work->in, bytes->data, work->element, work->typmod);
	bytes->cursor = 0;
	return OidReceiveFunctionCall(work->in, bytes, work->element, work->typmod);
}

static const char *
read_write_read(void *argument)
{
	TypeWork   *work = argument;
	Datum		value = read_value(work, work->bytes);
	Datum		again;
	StringInfoData written;

	/* As callers do. */
	if (work->receive && work->bytes->cursor != work->bytes->len)
		ereport(ERROR, (errcode(ERRCODE_INVALID_BINARY_REPRESENTATION), errmsg("incorrect binary data format")));
	initStringInfo(&written);
	if (work->receive)
	{
		bytea	   *sent = OidSendFunctionCall(work->out, value);

		appendBinaryStringInfo(&written, VARDATA_ANY(sent), VARSIZE_ANY_EXHDR(sent));
	}
	else
		appendStringInfoString(&written, OidOutputFunctionCall(work->out, value));
	again = read_value(work, &written);
	return datumIsEqual(value, again, work->by_value, work->length) ? "ok" : "another value when read again";
}

Datum
fuzz_type(PG_FUNCTION_ARGS)
{
	Oid			type = PG_GETARG_OID(0);
	int64		seed = PG_GETARG_INT64(3);
	int			count = PG_GETARG_INT32(4);
	HTAB	   *outcomes = make_outcomes();
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "a mutation", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = CurrentMemoryContext;
	TypeWork	work = {0};
	Datum	   *starts;
	int			start_count;
	bool		is_varlena;

	work.receive = PG_GETARG_BOOL(1);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(2), BYTEAOID, -1, false, TYPALIGN_INT, &starts, NULL, &start_count);
	if (work.receive)
	{
		getTypeBinaryInputInfo(type, &work.in, &work.element);
		getTypeBinaryOutputInfo(type, &work.out, &is_varlena);
	}
	else
	{
		getTypeInputInfo(type, &work.in, &work.element);
		getTypeOutputInfo(type, &work.out, &is_varlena);
	}
	get_typlenbyval(type, &work.length, &work.by_value);
	for (int i = 0; i < count; ++i)
	{
		StringInfoData bytes;
		bytea	   *start;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(each);
		MemoryContextSwitchTo(each);
		start_random(seed, i);
		start = DatumGetByteaPP(starts[below(start_count)]);
		initStringInfo(&bytes);
		appendBinaryStringInfo(&bytes, VARDATA_ANY(start), VARSIZE_ANY_EXHDR(start));
		mutate_bytes(&bytes, !work.receive, starts, start_count);
		work.typmod = below(4) == 0 ? 1 + (int32) below(5) : -1;
		work.bytes = &bytes;
		attempt(outcomes, i, read_write_read, &work);
		MemoryContextSwitchTo(caller);
	}
	return_outcomes(fcinfo, outcomes);
	return (Datum) 0;
}

/*
 * Pages of an index
 */

typedef struct
{
	Relation	index;
	const char *statement;
} IndexWork;

static bool
is_dead(ItemPointer tid, void *unused)
{
	return ItemPointerGetOffsetNumberNoCheck(tid) % 3 == 0;
}

static void
vacuum_index(Relation index)
{
	IndexVacuumInfo info = {0};
	IndexBulkDeleteResult *result;
	/* The lock that VACUUM has. */
	Relation	table = relation_open(index->rd_index->indrelid, ShareUpdateExclusiveLock);

	info.index = index;
#if PG_VERSION_NUM >= 160000
	info.heaprel = table;
#endif
	info.message_level = DEBUG2;
	info.num_heap_tuples = 1000;
	info.estimated_count = true;
	result = index_bulk_delete(&info, NULL, is_dead, NULL);
	index_vacuum_cleanup(&info, result);
	relation_close(table, NoLock);
}

static const char *
run_statement(void *argument)
{
	IndexWork  *work = argument;

	if (strcmp(work->statement, "vacuum") == 0)
		vacuum_index(work->index);
	else if (SPI_execute(work->statement, false, 0) < 0)
		elog(ERROR, "cannot run \"%s\"", work->statement);
	return "ok";
}

/* Numbers that something depends on: small, large, of a page that exists, near what was there. */
static uint32
odd_number(uint32 was, BlockNumber blocks)
{
	switch (below(7))
	{
		case 0:
			return 0;
		case 1:
			return PG_UINT32_MAX;
		case 2:
			return below(blocks + 2);
		case 3:
			return was + 1 + below(3);
		case 4:
			return was - 1 - below(3);
		case 5:
			return 1U << below(32);
		default:
			return (uint32) next_random();
	}
}

static void
mutate_page(char *page, const char *all, BlockNumber blocks)
{
	int			changes = 1 + below(3);

	for (int change = 0; change < changes; ++change)
	{
		/* What decides lies at the ends: a page's head, and its tail. */
		uint32		area = below(4);
		uint32		from = area == 0 ? 0 : area == 1 ? BLCKSZ - 32 : 24;
		uint32		room = area == 0 ? 256 : area == 1 ? 32 : BLCKSZ - 24;
		uint32		at = from + below(room / 4) * 4;
		uint32		word;
		uint16		half;

		memcpy(&word, page + at, 4);
		memcpy(&half, page + at, 2);
		switch (below(8))
		{
			case 0:
				page[at + below(4)] ^= 1 << below(8);
				break;
			case 1:
				page[at + below(4)] = (char) next_random();
				break;
			case 2:
			case 3:
				word = odd_number(word, blocks);
				memcpy(page + at, &word, 4);
				break;
			case 4:
				half = (uint16) odd_number(half, blocks);
				memcpy(page + at + 2 * below(2), &half, 2);
				break;
			case 5:				/* torn: the rest is of another page */
				{
					uint32		sector = 512 * below(BLCKSZ / 512);

					memcpy(page + sector, all + (size_t) below(blocks) * BLCKSZ + sector, BLCKSZ - sector);
				}
				break;
			case 6:				/* a run of one byte */
				{
					uint32		length = 1 + below(512);

					memset(page + at, below(2) ? 0 : (int) below(256), Min(BLCKSZ - at, length));
				}
				break;
			default:			/* another page, or none */
				if (below(4) == 0)
					memset(page, 0, BLCKSZ);
				else if (below(4) == 0)
					memcpy(page, all + (size_t) below(blocks) * BLCKSZ, BLCKSZ);
				break;
		}
	}
}

/* Lays bytes over a page as it is in shared buffers. Nothing is logged. */
static void
lay_page(Relation index, BlockNumber block, const char *bytes)
{
	Buffer		buffer = ReadBuffer(index, block);

	if (memcmp(BufferGetPage(buffer), bytes, BLCKSZ) != 0)
	{
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		memcpy(BufferGetPage(buffer), bytes, BLCKSZ);
		MarkBufferDirty(buffer);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(buffer);
}

Datum
fuzz_index(PG_FUNCTION_ARGS)
{
	Oid			number = PG_GETARG_OID(0);
	int64		seed = PG_GETARG_INT64(2);
	int			first = PG_GETARG_INT32(3);
	int			count = PG_GETARG_INT32(4);
	HTAB	   *outcomes = make_outcomes();
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "a mutation", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = CurrentMemoryContext;
	Relation	index = relation_open(number, RowExclusiveLock);
	BlockNumber blocks = RelationGetNumberOfBlocks(index);
	char	   *all = MemoryContextAllocHuge(caller, (Size) blocks * BLCKSZ);
	Datum	   *statements;
	int			statement_count;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false, TYPALIGN_INT, &statements, NULL, &statement_count);
	for (BlockNumber block = 0; block < blocks; ++block)
	{
		Buffer		buffer = ReadBuffer(index, block);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		memcpy(all + (size_t) block * BLCKSZ, BufferGetPage(buffer), BLCKSZ);
		UnlockReleaseBuffer(buffer);
	}
	SPI_connect();
	for (int i = first; i < first + count; ++i)
	{
		IndexWork	work = {index, NULL};
		BlockNumber block;
		PGAlignedBlock page;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(each);
		MemoryContextSwitchTo(each);
		start_random(seed, i);
		block = below(3) == 0 ? 0 : below(blocks);
		memcpy(page.data, all + (size_t) block * BLCKSZ, BLCKSZ);
		mutate_page(page.data, all, blocks);
		work.statement = TextDatumGetCString(statements[below(statement_count)]);
		lay_page(index, block, page.data);
		/* What sessions keep of the metapage is of the page before. */
		RelationCacheInvalidateEntry(number);
		attempt(outcomes, i, run_statement, &work);
		for (block = 0; block < blocks; ++block)
			lay_page(index, block, all + (size_t) block * BLCKSZ);
		RelationCacheInvalidateEntry(number);
		MemoryContextSwitchTo(caller);
	}
	SPI_finish();
	relation_close(index, RowExclusiveLock);
	return_outcomes(fcinfo, outcomes);
	return (Datum) 0;
}
