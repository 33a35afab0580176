#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/distance.h"
#include "kernels/list_store.h"
#include "kernels/workers.h"
#include "extension/guard.h"
#include "extension/index/effort.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/knn/lists.h"

extern "C" {
#include "optimizer/cost.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Bounds on the queries of one search of the store. A list is scanned for all of its queries at
// once, so larger batches are cheaper a query.
constexpr uint32 max_at_once = 4096;
constexpr uint32 min_at_once = 16;

// Lists [begin, end).
struct Chunk {
    uint32 begin;
    uint32 end;
};

// The pages of one list.
struct Copies {
    char* pages;  // (count)(BLCKSZ)
    Size count;
    Size room;
};

void copy_page(void* state, uint32, Page page, const EntryLayout&) {
    auto* copies = static_cast<Copies*>(state);
    if (copies->count == copies->room) {
        copies->room *= 2;
        copies->pages = static_cast<char*>(repalloc_huge(copies->pages, copies->room * BLCKSZ));
    }
    memcpy(copies->pages + copies->count++ * BLCKSZ, page, BLCKSZ);
}

void forget_pages(void* state) {
    static_cast<Copies*>(state)->count = 0;
}

template <typename T>
T* alloc_array(Size count) {
    return static_cast<T*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(count, Size{1}) * sizeof(T)));
}

// State that searches of one kind share; the first of them makes it.
struct Rounds {
    Owned<ListBatch>* batch;
    uint32 at_once;  // queries of a batch
};

}  // namespace

struct ListSearch {
    MemoryContext context;
    Relation index;
    MetaPage meta;
    Owned<ListStore>* store;
    float* centroids;  // (lists)(code_dims); null: these have parents
    float* terms;      // (lists), memory
    Rounds rounds[2];  // by ListRound
    Size batch_memory;
    Chunk* chunks;  // in the order of lists
    uint32 chunk_count;
    uint32 held;  // chunk in the store; chunk_count: none
    Copies copies;
};

namespace {

// Bytes of a list in the store, without its entries.
constexpr Size list_bytes = 192;

// In the store an entry takes its code twice, an offset of 4 bytes and a TID of 8.
Size stored_entry_bytes(const MetaPage& meta) {
    return 2 * meta.m + 12;
}
Size stored_page_bytes(const MetaPage& meta) {
    return layout_of(meta, 0).capacity * stored_entry_bytes(meta);
}

// Bytes of all lists in the store. Pages of short lists are mostly empty; in the store, columns of
// codes are filled up to eight entries. The number of entries is an estimate.
double stored_bytes(const MetaPage& meta, double pages, double entries) {
    constexpr double more = 1.25;
    // Pages but the last of each list are full, unless entries were removed.
    const double full_pages = std::max(pages - meta.lists, 0.0);
    entries = std::max({entries, static_cast<double>(meta.rows_at_build),
                        full_pages * layout_of(meta, 0).capacity});
    const double by_pages = pages * static_cast<double>(stored_page_bytes(meta));
    const double by_entries =
        more * entries * static_cast<double>(stored_entry_bytes(meta)) + 8.0 * meta.lists * meta.m;
    return std::min(by_pages, by_entries) + static_cast<double>(meta.lists * list_bytes);
}

Size model_bytes(const MetaPage& meta) {
    const Size rotation = has_rotation(meta) ? Size{meta.dims} * meta.code_dims : 0;
    return sizeof(float) * (Size{meta.code_dims} * (Size{meta.lists} + meta.parents) +
                            Size{codebook_rows(meta)} * codewords + rotation);
}

// Memory for searches of the store.
Size batch_share(Size memory) {
    return memory / 3;
}

// Cuts the lists into chunks that fit into memory. False: a single list does not fit.
bool cut_lists(ListSearch* search, double entries, Size memory) {
    const MetaPage& meta = search->meta;
    const MemoryContext scratch =
        AllocSetContextCreate(CurrentMemoryContext, "knn places", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(scratch);
    uint32* lists = alloc_array<uint32>(meta.lists);
    ListPlace* places = alloc_array<ListPlace>(meta.lists);
    for (uint32 i = 0; i < meta.lists; ++i) lists[i] = i;
    read_places(search->index, meta, lists, meta.lists, places);
    MemoryContextSwitchTo(before);

    search->chunks = alloc_array<Chunk>(meta.lists);
    double pages = 0;
    for (uint32 list = 0; list < meta.lists; ++list) pages += places[list].pages;
    // Else the pages tell how much each list may take.
    const bool all_fit = stored_bytes(meta, pages, entries) <= static_cast<double>(memory);
    const Size page_bytes = stored_page_bytes(meta);
    Size bytes = 0;
    bool fits = true;
    for (uint32 list = 0; list < meta.lists && fits; ++list) {
        const Size here = all_fit ? 0 : places[list].pages * page_bytes + list_bytes;
        fits = here <= memory;
        if (search->chunk_count == 0 || bytes + here > memory) {
            search->chunks[search->chunk_count++] = {list, list};
            bytes = 0;
        }
        bytes += here;
        search->chunks[search->chunk_count - 1].end = list + 1;
    }
    search->held = search->chunk_count;
    MemoryContextDelete(scratch);
    return fits;
}

void load_list(ListSearch* search, uint32 list) {
    search->copies.count = 0;
    walk_lists(search->index, search->meta, &list, 1,
               {copy_page, &search->copies, nullptr, forget_pages});
    const EntryLayout layout = layout_of(search->meta, list);
    guarded([&] {
        std::vector<ListPage> pages(search->copies.count);
        for (Size i = 0; i < pages.size(); ++i) {
            Page page = search->copies.pages + i * BLCKSZ;
            pages[i] = {page_codes(page), layout.capacity, page_tail(page)->count,
                        page_offsets(page, layout),
                        reinterpret_cast<const uint8*>(page_tids(page, layout))};
        }
        search->store->object->put(list, pages);
    });
}

void load_chunk(ListSearch* search, uint32 chunk) {
    if (search->held == chunk) return;
    if (search->held < search->chunk_count) {
        const Chunk& old = search->chunks[search->held];
        guarded([&] {
            for (uint32 list = old.begin; list < old.end; ++list) search->store->object->drop(list);
        });
    }
    search->held = search->chunk_count;
    for (uint32 list = search->chunks[chunk].begin; list < search->chunks[chunk].end; ++list)
        load_list(search, list);
    search->held = chunk;
}

void make_batch(ListSearch* search, const ListWants& wants, Rounds* round) {
    const ListBatch* batch = round->batch->object;
    if (batch && batch->shape.k >= wants.candidates && batch->shape.probes >= wants.probes) return;
    const Size query_bytes =
        cpu_query_bytes(shape_of(search->meta), wants.candidates, wants.probes) +
        search->meta.code_dims * sizeof(float) + wants.candidates * sizeof(Neighbor) +
        wants.probes * sizeof(uint32);
    round->at_once = static_cast<uint32>(
        std::clamp<Size>(search->batch_memory / query_bytes, min_at_once, max_at_once));
    guarded([&] {
        delete round->batch->object;
        round->batch->object = nullptr;
        round->batch->object =
            search->store->object->make_batch({round->at_once, wants.candidates, wants.probes})
                .release();
    });
}

// Searches the chunk in the store for queries [first, first + count).
const ListBatch* search_held(ListSearch* search, const ListWants& wants, ListBatch* batch,
                             uint32 first, uint32 count) {
    const Size dims = search->meta.code_dims;
    memcpy(batch->queries, wants.forms + first * dims, count * dims * sizeof(float));
    for (uint32 i = 0; i < count; ++i) {
        ListPlan plan = list_plan(wants.effort, std::min(wants.k, wants.candidates),
                                  code_shift(search->meta, wants.forms + (first + i) * dims));
        if (wants.radii) plan.radius = wants.radii[first + i];
        batch->wanted[i] = {.k = wants.candidates, .probes = wants.probes, .plan = plan};
    }
    CHECK_FOR_INTERRUPTS();
    guarded_interruptibly([&] { search->store->object->search(*batch, count); });
    return batch;
}

// The nearest candidates of each query in the chunks searched so far, sorted.
struct Best {
    Neighbor* found;   // (count)(candidates)
    uint32* counts;    // (count)
    Neighbor* merged;  // (2 candidates)
};

void merge_found(const Best& best, const ListWants& wants, uint32 query, const Neighbor* found,
                 uint32 count) {
    Neighbor* mine = best.found + Size{query} * wants.candidates;
    const Neighbor* end =
        std::merge(mine, mine + best.counts[query], found, found + count, best.merged,
                   [](const Neighbor& a, const Neighbor& b) {
                       return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
                   });
    best.counts[query] = static_cast<uint32>(std::min<Size>(end - best.merged, wants.candidates));
    memcpy(mine, best.merged, best.counts[query] * sizeof(Neighbor));
}

}  // namespace

struct SearchThreads {
    Owned<std::shared_ptr<Workers>>* workers;
};

SearchThreads* make_search_threads() {
    auto* threads = static_cast<SearchThreads*>(palloc0(sizeof(SearchThreads)));
    threads->workers = owned_by<std::shared_ptr<Workers>>(CurrentMemoryContext);
    return threads;
}

namespace {

// As many threads as a query of this session could have processes. May throw.
const std::shared_ptr<Workers>& started(SearchThreads* threads) {
    std::shared_ptr<Workers>*& workers = threads->workers->object;
    if (!workers)
        workers = new std::shared_ptr<Workers>(
            std::make_shared<Workers>(1 + max_parallel_workers_per_gather, query_interrupts()));
    return *workers;
}

}  // namespace

ListSearch* open_list_search(Relation index, const MetaPage& meta, double entries, Size memory,
                             SearchThreads* threads) {
    const Size model = model_bytes(meta);
    // Twice: the store copies the model.
    if (2 * model > memory / 4) return nullptr;
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "knn lists", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    auto* search = static_cast<ListSearch*>(palloc0(sizeof(ListSearch)));
    search->context = context;
    search->index = index;
    search->meta = meta;
    search->batch_memory = batch_share(memory);
    if (!cut_lists(search, entries, memory - search->batch_memory - model)) {
        MemoryContextSwitchTo(before);
        MemoryContextDelete(context);
        return nullptr;
    }
    search->copies.room = 16;
    search->copies.pages = alloc_array<char>(search->copies.room * BLCKSZ);
    search->store = owned_by<ListStore>(context);
    // Registered after the store, so deleted before it: a context runs callbacks in reverse order.
    for (Rounds& round : search->rounds) round.batch = owned_by<ListBatch>(context);
    const Quantizer quantizer = read_model(index, meta);
    guarded([&] {
        search->store->object =
            make_cpu_list_store(quantizer, {}, started(threads), query_interrupts()).release();
    });
    pfree(const_cast<float*>(quantizer.codebook));
    if (quantizer.parents.count == 0) {
        search->centroids = const_cast<float*>(quantizer.centroids);
        search->terms = alloc_array<float>(meta.lists);
    } else {
        pfree(const_cast<float*>(quantizer.centroids));
        pfree(const_cast<float*>(quantizer.parents.centroids));
        pfree(const_cast<uint32*>(quantizer.parents.first));
    }
    if (quantizer.rotation.matrix) pfree(const_cast<float*>(quantizer.rotation.matrix));
    MemoryContextSwitchTo(before);
    return search;
}

bool would_fit_all_lists(const MetaPage& meta, double pages, double entries, Size memory) {
    const Size model = model_bytes(meta);
    return 2 * model <= memory / 4 && stored_bytes(meta, pages, entries) <=
                                          static_cast<double>(memory - batch_share(memory) - model);
}

bool holds_all_lists(const ListSearch* search) {
    return search->chunk_count == 1 && search->held == 0;
}

bool fits_all_lists(const ListSearch* search) {
    return search->chunk_count == 1;
}

Size list_search_bytes(uint32 candidates) {
    return candidates * sizeof(Neighbor) + sizeof(uint32);
}

float nearest_list(ListSearch* search, const float* form) {
    if (!search->centroids) return std::numeric_limits<float>::infinity();
    const uint32 dims = search->meta.code_dims;
    const Rows centroids{search->centroids, dims, search->meta.lists};
    float* terms = search->terms;
    if (has_norms(search->meta.metric))
        squared_l2_distances(form, centroids, dims, terms);
    else
        dot_products(form, centroids, dims, terms);
    float* end = terms + search->meta.lists;
    return has_norms(search->meta.metric) ? *std::min_element(terms, end)
                                          : -*std::max_element(terms, end);
}

void search_lists(ListSearch* search, const ListWants& wants, const CandidateSink& sink,
                  ListRound kind) {
    const MemoryContext before = MemoryContextSwitchTo(search->context);
    Rounds* round = &search->rounds[static_cast<int>(kind)];
    make_batch(search, wants, round);
    const bool whole = search->chunk_count == 1;
    Best best = {};
    if (!whole) {
        best.found = alloc_array<Neighbor>(Size{wants.count} * wants.candidates);
        best.counts = alloc_array<uint32>(wants.count);
        best.merged = alloc_array<Neighbor>(2 * Size{wants.candidates});
        memset(best.counts, 0, wants.count * sizeof(uint32));
    }
    for (uint32 chunk = 0; chunk < search->chunk_count; ++chunk) {
        load_chunk(search, chunk);
        for (uint32 first = 0; first < wants.count; first += round->at_once) {
            const uint32 count = std::min(round->at_once, wants.count - first);
            const ListBatch* batch = search_held(search, wants, round->batch->object, first, count);
            for (uint32 i = 0; i < count; ++i) {
                const Neighbor* found = batch->found + i * batch->found_stride;
                if (whole)
                    sink.put(sink.state, first + i, found, batch->found_counts[i]);
                else
                    merge_found(best, wants, first + i, found, batch->found_counts[i]);
            }
        }
    }
    if (!whole) {
        for (uint32 i = 0; i < wants.count; ++i)
            sink.put(sink.state, i, best.found + Size{i} * wants.candidates, best.counts[i]);
        pfree(best.found);
        pfree(best.counts);
        pfree(best.merged);
    }
    MemoryContextSwitchTo(before);
}

}  // namespace pgwarp
