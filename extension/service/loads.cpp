#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <stdexcept>

#include "extension/service/placement.h"
#include "extension/service/worker.h"

extern "C" {
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// What a backend has written about a buffer, read once.
struct LoadHead {
    LoadKind kind;
    int owner;
    pid_t owner_pid;
    MirrorKey key;
    uint32 bytes;
    const char* data;
};

LoadHead read_head(const LoadBuffer* buffer) {
    const LoadHead head{buffer->kind, buffer->owner, buffer->owner_pid,
                        buffer->key,  buffer->bytes, buffer->data};
    pg_compiler_barrier();  // none of it is read again
    return head;
}

template <typename Part>
Part read_part(const char* data) {
    Part part;
    memcpy(&part, data, sizeof(part));
    pg_compiler_barrier();
    return part;
}

// Ends the load: `holds` must be true of a load that is sound.
void demand(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
}

bool is_sound(const AttributeLayout& attributes) {
    if (attributes.count > max_attributes) return false;
    for (uint32 i = 0; i < attributes.count; ++i) {
        const uint8_t bytes = attributes.bytes[i];
        if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) return false;
    }
    return true;
}

bool is_sound(const QuantizerShape& shape) {
    const auto metrics = std::span(all_metrics);
    return shape.dims >= 1 && shape.dims <= max_dims && shape.lists >= 1 &&
           shape.lists <= max_lists && shape.m >= 1 && shape.m <= max_m &&
           (shape.bits == 8 || shape.bits == 4) && shape.m <= shape.codebook_rows() &&
           std::find(metrics.begin(), metrics.end(), shape.metric) != metrics.end();
}

bool are_same(const AttributeLayout& a, const AttributeLayout& b) {
    return a.count == b.count && a.count <= max_attributes &&
           std::equal(a.bytes, a.bytes + a.count, b.bytes);
}

bool are_same(const QuantizerShape& a, const QuantizerShape& b) {
    return a.dims == b.dims && a.lists == b.lists && a.m == b.m && a.metric == b.metric &&
           a.bits == b.bits && a.search_rounds == b.search_rounds;
}

void take_model(Worker* worker, const LoadHead& load) {
    demand(load.bytes >= sizeof(ModelPart), "a model is too short");
    const auto part = read_part<ModelPart>(load.data);
    Assembly& assembly = worker->assemblies[load.owner];
    const QuantizerShape& shape = part.shape;
    demand(is_sound(shape) && is_sound(part.attributes), "a model has an unknown shape");
    const size_t centroid_floats = size_t{shape.lists} * shape.dims;
    const size_t all = centroid_floats + size_t{shape.codebook_rows()} * codewords;
    demand(all * sizeof(float) <= worker->device->memory().budget, "a model is too large");
    if (part.first_float == 0) {
        assembly = {};
        assembly.key = load.key;
        assembly.shape = shape;
        assembly.attributes = part.attributes;
        assembly.model.resize(all);
    }
    // Without its earlier parts: those went to a previous worker.
    if (!(assembly.key == load.key) || assembly.model.size() != all ||
        !are_same(assembly.shape, shape) || assembly.model_floats != part.first_float)
        return;
    demand(part.floats <= (load.bytes - sizeof(part)) / sizeof(float) &&
               part.floats <= all - assembly.model_floats,
           "a part of a model is too long");
    memcpy(assembly.model.data() + assembly.model_floats, load.data + sizeof(part),
           part.floats * sizeof(float));
    assembly.model_floats += part.floats;
    if (assembly.model_floats < all) return;
    if (!worker->mirror->knows(load.key)) {
        worker->forget(load.key.database, load.key.index);
        worker->mirror->add(load.key,
                            {shape, assembly.model.data(), assembly.model.data() + centroid_floats},
                            assembly.attributes);
    }
    worker->assemblies.erase(load.owner);
}

// `part` is sound; the pages need not be.
void list_pages(const char* data, size_t bytes, const ListPart& part, uint32 dims,
                std::vector<ListPage>* out) {
    for (const char* end = data + bytes; data < end;) {
        demand(static_cast<size_t>(end - data) >= sizeof(LoadedPage), "a page is too short");
        const auto page = read_part<LoadedPage>(data);
        demand(page.count >= 1 && page.count <= page.capacity && page.capacity <= max_page_entries,
               "a page has too many entries");
        const EntryLayout layout = EntryLayout::with(part.m, part.attributes, page.capacity);
        const uint32 refinement = page.refined != 0 ? refinement_stride(dims) : 0;
        const size_t page_bytes = loaded_page_bytes(layout, page.count, refinement);
        demand(page_bytes <= static_cast<size_t>(end - data), "a page is too long");
        const char* columns = data + sizeof(page);
        const char* refinements = data + loaded_columns_bytes(layout);
        out->push_back({reinterpret_cast<const uint8_t*>(columns), layout.capacity, page.count,
                        reinterpret_cast<const float*>(columns + layout.offsets_at),
                        reinterpret_cast<const uint8_t*>(columns + layout.tids_at),
                        reinterpret_cast<const uint8_t*>(columns + layout.attributes_at),
                        refinement > 0 ? reinterpret_cast<const uint8_t*>(refinements) : nullptr});
        data += page_bytes;
    }
}

// Called with all pages of a list, or of the entries appended to one; `part` is the last part.
void take_list(Worker* worker, const LoadHead& load, const ListPart& part, uint32 dims,
               const char* data, size_t bytes) {
    Mirror& mirror = *worker->mirror;
    worker->pages.clear();
    list_pages(data, bytes, part, dims, &worker->pages);
    if (part.from.resident)
        mirror.append(load.key, part.list, part.from, part.version, worker->pages, part.changes);
    else
        mirror.put(load.key, part.list, part.version, worker->pages,
                   load.kind == LoadKind::whole_index ? Mirror::Victims::other_indexes
                   : load.kind == LoadKind::to_fill   ? Mirror::Victims::none
                                                      : Mirror::Victims::any,
                   part.changes);
}

void take_lists(Worker* worker, const LoadHead& load) {
    const MirrorIndex index = worker->mirror->index(load.key);
    if (!index.shape) {
        worker->assemblies.erase(load.owner);
        return;
    }
    // put() may forget nothing: the index stays while its lists are loaded.
    const uint32 m = index.shape->m;
    const uint32 lists = index.shape->lists;
    const uint32 dims = index.shape->dims;
    const AttributeLayout attributes = *index.attributes;
    for (uint32 at = 0; at < load.bytes;) {
        demand(load.bytes - at >= sizeof(ListPart), "a part of a list is too short");
        const auto part = read_part<ListPart>(load.data + at);
        at += static_cast<uint32>(sizeof(part));
        const char* data = load.data + at;
        demand(part.bytes <= load.bytes - at && part.bytes % MAXIMUM_ALIGNOF == 0,
               "a part of a list is too long");
        at += part.bytes;
        demand(part.m == m && part.list < lists && are_same(part.attributes, attributes),
               "a list is not of its index");
        if (part.drop != 0) {
            worker->mirror->drop(load.key, part.list);
            continue;
        }
        if (part.first_page == 0 && part.last) {
            take_list(worker, load, part, dims, data, part.bytes);
            continue;
        }
        Assembly& assembly = worker->assemblies[load.owner];
        if (part.first_page == 0) {
            assembly = {};
            assembly.key = load.key;
            assembly.list = part.list;
        }
        // A part was lost: drop the list.
        if (!(assembly.key == load.key) || assembly.list != part.list ||
            assembly.page_count != part.first_page) {
            worker->assemblies.erase(load.owner);
            continue;
        }
        // One that the device has no room for is refused when it is whole; this bounds the host's
        // memory.
        constexpr size_t bearable = size_t{64} << 20;
        demand(assembly.pages.size() + part.bytes <=
                   std::max(bearable, worker->device->memory().budget),
               "a list is too long");
        assembly.pages.insert(assembly.pages.end(), data, data + part.bytes);
        assembly.page_count += part.pages;
        if (!part.last) continue;
        take_list(worker, load, part, dims, assembly.pages.data(), assembly.pages.size());
        worker->assemblies.erase(load.owner);
    }
}

// The buffer that the worker is loading; -1: none. This buffer is in no ring, so free_loads() needs
// its number if the watchdog ends the process meanwhile.
volatile sig_atomic_t load_in_hand = -1;

void free_load(int number) {
    // Reads of the buffer must be complete before a backend writes to it.
    pg_memory_barrier();
    pg_atomic_write_u32(&service_load_buffer(own_device, number)->state,
                        static_cast<uint32>(LoadState::free));
}

bool is_ready(uint32 number) {
    return number < static_cast<uint32>(service->load_buffers) &&
           pg_atomic_read_u32(&service_load_buffer(own_device, static_cast<int>(number))->state) ==
               static_cast<uint32>(LoadState::ready);
}

}  // namespace

void free_loads() {
    if (load_in_hand >= 0) free_load(load_in_hand);
    load_in_hand = -1;
    uint32 number;
    while (ring_pop(load_ring(own_device), &number))
        if (is_ready(number)) free_load(static_cast<int>(number));
    ConditionVariableBroadcast(&own_device->load_freed);
}

bool take_load(Worker* worker) {
    uint32 number;
    if (!ring_pop(load_ring(own_device), &number)) return false;
    if (!is_ready(number)) return true;
    load_in_hand = static_cast<int>(number);
    const LoadHead load = read_head(service_load_buffer(own_device, static_cast<int>(number)));
    char message[256];
    const Attempt result = attempt(message, [&] {
        demand(load.owner >= 0 && load.owner < service->backends, "a buffer has no owner");
        demand(load.bytes <= LoadBuffer::room, "a buffer is too long");
        switch (load.kind) {
            case LoadKind::model:
                take_model(worker, load);
                break;
            case LoadKind::lists:
            case LoadKind::whole_index:
            case LoadKind::to_fill:
                take_lists(worker, load);
                break;
        }
    });
    if (result != Attempt::done) worker->assemblies.erase(load.owner);
    const auto assembly = worker->assemblies.find(load.owner);
    if (assembly != worker->assemblies.end()) {
        assembly->second.pid = load.owner_pid;
        assembly->second.last_part = GetCurrentTimestamp();
    }
    publish_changes(worker);
    publish_use(worker, load.key);
    // Clear this first: a free buffer may belong to another backend at once.
    load_in_hand = -1;
    free_load(static_cast<int>(number));
    ConditionVariableBroadcast(&own_device->load_freed);
    pg_atomic_fetch_add_u32(&own_device->turns, 1);
    note_failure(result, message, "take in a list");
    return true;
}

static constexpr int assembly_patience_ms = 60 * 1000;

void drop_stale_assemblies(Worker* worker) {
    constexpr int interval_ms = 1000;
    const TimestampTz now = GetCurrentTimestamp();
    if (worker->assemblies.empty() ||
        !TimestampDifferenceExceeds(worker->assemblies_checked, now, interval_ms))
        return;
    worker->assemblies_checked = now;
    std::erase_if(worker->assemblies, [now](const auto& item) {
        const Assembly& assembly = item.second;
        const bool ended = kill(assembly.pid, 0) != 0 && errno == ESRCH;
        if (!ended && !TimestampDifferenceExceeds(assembly.last_part, now, assembly_patience_ms))
            return false;
        ereport(DEBUG1, (errmsg_internal("pgwarp service drops what was sent by half: %zu bytes",
                                         assembly.pages.capacity() +
                                             assembly.model.capacity() * sizeof(float))));
        return true;
    });
}

bool take_forgets(Worker* worker) {
    Forget forget;
    bool some = false;
    for (; take_forget(own_device, &forget); some = true) {
        char message[256];
        note_failure(attempt(message, [&] { worker->forget(forget.database, forget.index); }),
                     message, "forget an index");
        forget_held(own_device, forget.database, forget.index);
    }
    return some;
}

}  // namespace pgwarp
