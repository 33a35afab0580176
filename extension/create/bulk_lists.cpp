#include <algorithm>

#include "kernels/workers.h"
#include "extension/create/bulk_lists.h"
#include "extension/guard.h"
#include "extension/index/lists.h"
#include "extension/util/large_memory.h"

extern "C" {
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/checksum.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Pages that threads fill together: few enough to fit into the processor's cache.
constexpr BlockNumber batch_pages = 256;
constexpr BlockNumber task_pages = 8;

// Where each list goes: lists follow each other, in whole pages, each with its refinement pages
// behind it.
struct Plan {
    const EntrySort* sort;
    const uint64* starts;  // (lists + 1): first row of each list
    BlockNumber* firsts;   // (lists + 1): first page of each list
    BlockNumber refinement_pages;
    uint32 lists;
    EntryLayout layout;
};

// The pages of a list.
struct Extent {
    BlockNumber pages;
    BlockNumber refinements;
};

Extent extent_of(const Plan& plan, uint32 list) {
    const EntryLayout& layout = plan.layout;
    const uint64 rows = plan.starts[list + 1] - plan.starts[list];
    const auto full = static_cast<BlockNumber>(rows / layout.capacity);
    const auto rest = static_cast<uint32>(rows % layout.capacity);
    return {full + (rest > 0),
            full * layout.refinement.pages(layout.capacity) + layout.refinement.pages(rest)};
}

Plan make_plan(const BulkWriter* writer, const EntrySort* sort) {
    Plan plan = {};
    plan.sort = sort;
    plan.starts = list_starts(sort);
    plan.lists = writer->meta.lists;
    plan.layout = layout_of(writer->meta, 0);
    plan.firsts = static_cast<BlockNumber*>(
        MemoryContextAllocHuge(CurrentMemoryContext, (Size{plan.lists} + 1) * sizeof(BlockNumber)));
    BlockNumber next = writer->end;
    for (uint32 list = 0; list < plan.lists; ++list) {
        plan.firsts[list] = next;
        const Extent extent = extent_of(plan, list);
        next += extent.pages + extent.refinements;
        plan.refinement_pages += extent.refinements;
    }
    plan.firsts[plan.lists] = next;
    return plan;
}

// The list of a page: the last one that begins at or before it, as lists without rows have no page.
uint32 list_of(const Plan& plan, BlockNumber block) {
    return static_cast<uint32>(std::upper_bound(plan.firsts, plan.firsts + plan.lists + 1, block) -
                               plan.firsts - 1);
}

Entry entry_of(const EncodedRow& row) {
    return {number_tid(row.tid), row.offset, row.code, row.attributes, row.refinement};
}

// The refinement page `number` of the list.
void fill_refinement_page(const Plan& plan, uint32 list, BlockNumber number, Page page) {
    const EntryLayout& layout = plan.layout;
    const BlockNumber of_page = layout.refinement.pages(layout.capacity);
    const BlockNumber entry_page = number / of_page;
    page_init(page, PageKind::refinement, list);
    page_tail(page)->prev = plan.firsts[list] + entry_page;
    const uint32 begin = number % of_page * layout.refinement.per_page;
    const uint32 end = std::min(begin + layout.refinement.per_page, layout.capacity);
    const uint64 first = plan.starts[list] + uint64{entry_page} * layout.capacity;
    for (uint32 slot = begin; slot < end && first + slot < plan.starts[list + 1]; ++slot)
        put_refinement(page, layout, slot, entry_of(sorted_row(plan.sort, first + slot)));
}

// Runs in a thread: must neither allocate from memory contexts nor report errors.
void fill_page(const Plan& plan, uint32 list, BlockNumber block, Page page) {
    const BlockNumber first = plan.firsts[list];
    const BlockNumber end = first + extent_of(plan, list).pages;
    if (block >= end) {
        fill_refinement_page(plan, list, block - end, page);
        compat_set_checksum(page, block);
        return;
    }
    page_init(page, PageKind::list, list);
    PageTail* tail = page_tail(page);
    tail->prev = block > first ? block - 1 : InvalidBlockNumber;
    tail->next = block + 1 < end ? block + 1 : InvalidBlockNumber;
    const uint64 row = plan.starts[list] + uint64{block - first} * plan.layout.capacity;
    const uint64 rows = std::min<uint64>(plan.layout.capacity, plan.starts[list + 1] - row);
    tail->count = static_cast<decltype(tail->count)>(rows);
    for (uint32 slot = 0; slot < rows; ++slot)
        put_entry(page, plan.layout, slot, entry_of(sorted_row(plan.sort, row + slot)));
    const RefinementLayout& refinement = plan.layout.refinement;
    const BlockNumber refinements = end + (block - first) * refinement.pages(plan.layout.capacity);
    for (uint32 i = 0; i < refinement.pages(static_cast<uint32>(rows)); ++i)
        page_refinements(page, plan.layout)[i] = refinements + i;
    compat_set_checksum(page, block);
}

// Pages that threads fill. Never on the stack: an error may unwind it while they work.
struct Batch {
    Plan plan;
    BlockNumber first;
    BlockNumber count;
    char* pages;
};

void fill_pages(const Batch& batch, BlockNumber begin, BlockNumber end) {
    const Plan& plan = batch.plan;
    uint32 list = list_of(plan, batch.first + begin);
    for (BlockNumber i = begin; i < end; ++i) {
        while (batch.first + i >= plan.firsts[list + 1]) ++list;
        fill_page(plan, list, batch.first + i, batch.pages + Size{i} * BLCKSZ);
    }
}

// Has the threads fill the next pages, from `first` on.
void begin_batch(Workers* workers, Batch* batch, BlockNumber first) {
    batch->first = first;
    batch->count = std::min(batch_pages, batch->plan.firsts[batch->plan.lists] - first);
    guarded([&] {
        workers->begin((batch->count + task_pages - 1) / task_pages, [batch](size_t task, int) {
            const auto begin = static_cast<BlockNumber>(task) * task_pages;
            fill_pages(*batch, begin, std::min(batch->count, begin + task_pages));
        });
    });
}

void end_batch(Workers* workers, Batch* batch) {
    while (!guarded_until_interrupt([&] { workers->end(); })) {
        CHECK_FOR_INTERRUPTS();
        begin_batch(workers, batch, batch->first);
    }
}

}  // namespace

void bulk_sorted_lists(BulkWriter* writer, const EntrySort* sort, int threads,
                       void (*done)(int64 rows)) {
    // An error may be raised while threads work: this context ends them, and is deleted before its
    // parent, which holds the rows they read.
    const MemoryContext context =
        AllocSetContextCreate(entries_context(sort), "ivfpq pages", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    const Plan plan = make_plan(writer, sort);
    const BlockNumber end = plan.firsts[plan.lists];
    // Double buffering: threads fill one batch while this process writes the other.
    Batch* batches = static_cast<Batch*>(palloc(2 * sizeof(Batch)));
    for (int i = 0; i < 2; ++i) batches[i] = {plan, 0, 0, alloc_pages(batch_pages)};
    Owned<Workers>* workers = owned_by<Workers>(context);
    guarded([&] { workers->object = new Workers(threads, query_interrupts()); });
    int filling = 0;
    if (writer->end < end) begin_batch(workers->object, &batches[filling], writer->end);
    while (writer->end < end) {
        CHECK_FOR_INTERRUPTS();
        const Batch& batch = batches[filling];
        end_batch(workers->object, &batches[filling]);
        filling = 1 - filling;
        const BlockNumber next = batch.first + batch.count;
        if (next < end) begin_batch(workers->object, &batches[filling], next);
        bulk_pages(writer, batch.first, batch.pages, batch.count);
        done(static_cast<int64>(plan.starts[list_of(plan, next - 1)]));
    }
    for (uint32 list = 0; list < plan.lists; ++list) {
        const BlockNumber pages = extent_of(plan, list).pages;
        if (pages > 0)
            writer->places[list] = {plan.firsts[list], plan.firsts[list] + pages - 1, 0, pages};
    }
    writer->meta.refinement_pages += plan.refinement_pages;
    writer->rows = static_cast<double>(plan.starts[plan.lists]);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

}  // namespace pgwarp
