#include <algorithm>

#include "kernels/workers.h"
#include "extension/bulk_lists.h"
#include "extension/guard.h"
#include "extension/ivfpq_lists.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Pages that are filled before they are written: little enough for a cache.
constexpr BlockNumber batch_pages = 256;
constexpr BlockNumber task_pages = 8;

// Lists lie one after the other, in whole pages.
struct Plan {
    const EntrySort* sort;
    const uint64* starts;  // (lists + 1), of rows
    BlockNumber* firsts;   // (lists + 1), of pages
    uint32 lists;
    EntryLayout layout;
};

Plan make_plan(const BulkWriter* writer, const EntrySort* sort) {
    Plan plan;
    plan.sort = sort;
    plan.starts = list_starts(sort);
    plan.lists = writer->meta.lists;
    plan.layout = layout_of(writer->meta, 0);
    plan.firsts = static_cast<BlockNumber*>(
        MemoryContextAllocHuge(CurrentMemoryContext, (Size{plan.lists} + 1) * sizeof(BlockNumber)));
    BlockNumber next = writer->end;
    for (uint32 list = 0; list < plan.lists; ++list) {
        plan.firsts[list] = next;
        const uint64 rows = plan.starts[list + 1] - plan.starts[list];
        next += static_cast<BlockNumber>((rows + plan.layout.capacity - 1) / plan.layout.capacity);
    }
    plan.firsts[plan.lists] = next;
    return plan;
}

// The list of a page: the last that begins there or before, as those without rows have no page.
uint32 list_of(const Plan& plan, BlockNumber block) {
    return static_cast<uint32>(std::upper_bound(plan.firsts, plan.firsts + plan.lists + 1, block) -
                               plan.firsts - 1);
}

// In a thread: nothing here allocates or reports.
void fill_page(const Plan& plan, uint32 list, BlockNumber block, Page page) {
    const BlockNumber first = plan.firsts[list], end = plan.firsts[list + 1];
    page_init(page, PageKind::list, list);
    PageTail* tail = page_tail(page);
    tail->prev = block > first ? block - 1 : InvalidBlockNumber;
    tail->next = block + 1 < end ? block + 1 : InvalidBlockNumber;
    const uint64 row = plan.starts[list] + uint64{block - first} * plan.layout.capacity;
    const uint64 rows = std::min<uint64>(plan.layout.capacity, plan.starts[list + 1] - row);
    tail->count = static_cast<decltype(tail->count)>(rows);
    for (uint32 slot = 0; slot < rows; ++slot) {
        const EncodedRow entry = sorted_row(plan.sort, row + slot);
        put_entry(page, plan.layout, slot, {number_tid(entry.tid), entry.offset, entry.code});
    }
    PageSetChecksumInplace(page, block);
}

}  // namespace

void bulk_sorted_lists(BulkWriter* writer, const EntrySort* sort, int threads,
                       void (*done)(int64 rows)) {
    const Plan plan = make_plan(writer, sort);
    const BlockNumber end = plan.firsts[plan.lists];
    char* pages = alloc_pages(batch_pages);
    Owned<Workers>* workers = owned_by<Workers>(CurrentMemoryContext);
    guarded([&] { workers->object = new Workers(threads, &QueryCancelPending, &ProcDiePending); });
    for (BlockNumber first = writer->end; first < end; first += batch_pages) {
        CHECK_FOR_INTERRUPTS();
        const BlockNumber count = std::min(batch_pages, end - first);
        guarded_interruptibly([&] {
            workers->object->run((count + task_pages - 1) / task_pages, [&](size_t task, int) {
                const auto begin = static_cast<BlockNumber>(task) * task_pages;
                const BlockNumber stop = std::min(count, begin + task_pages);
                uint32 list = list_of(plan, first + begin);
                for (BlockNumber i = begin; i < stop; ++i) {
                    while (first + i >= plan.firsts[list + 1]) ++list;
                    fill_page(plan, list, first + i, pages + Size{i} * BLCKSZ);
                }
            });
        });
        bulk_pages(writer, first, pages, count);
        done(static_cast<int64>(plan.starts[list_of(plan, first + count - 1)]));
    }
    for (uint32 list = 0; list < plan.lists; ++list) {
        const BlockNumber pages_of_list = plan.firsts[list + 1] - plan.firsts[list];
        if (pages_of_list > 0)
            writer->places[list] = {plan.firsts[list], plan.firsts[list + 1] - 1, 0, pages_of_list};
    }
    writer->rows = static_cast<double>(plan.starts[plan.lists]);
    guarded([&] {
        delete workers->object;
        workers->object = nullptr;
    });
    pfree(plan.firsts);
}

}  // namespace pgwarp
