#include <cerrno>
#include <csignal>
#include <cstring>

#include "extension/service/placement.h"
#include "extension/service/worker.h"

extern "C" {
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

void take_model(Worker* worker, const LoadBuffer* buffer) {
    ModelPart part;
    memcpy(&part, buffer->data, sizeof(part));
    Assembly& assembly = worker->assemblies[buffer->owner];
    const QuantizerShape& shape = part.shape;
    const size_t centroid_floats = size_t{shape.lists} * shape.dims;
    const size_t all = centroid_floats + size_t{shape.codebook_rows()} * codewords;
    if (part.first_float == 0) {
        assembly = {};
        assembly.key = buffer->key;
        assembly.shape = shape;
        assembly.attributes = part.attributes;
        assembly.model.resize(all);
    }
    // Without its earlier parts: those went to a previous worker.
    if (!(assembly.key == buffer->key) || assembly.model.size() != all ||
        assembly.model_floats != part.first_float)
        return;
    memcpy(assembly.model.data() + part.first_float, buffer->data + sizeof(part),
           part.floats * sizeof(float));
    assembly.model_floats += part.floats;
    if (assembly.model_floats < all) return;
    if (!worker->mirror->knows(buffer->key)) {
        worker->forget(buffer->key.database, buffer->key.index);
        worker->mirror->add(buffer->key,
                            {shape, assembly.model.data(), assembly.model.data() + centroid_floats},
                            assembly.attributes);
    }
    worker->assemblies.erase(buffer->owner);
}

void list_pages(const char* data, size_t bytes, const ListPart& part, std::vector<ListPage>* out) {
    for (const char* end = data + bytes; data < end;) {
        LoadedPage page;
        memcpy(&page, data, sizeof(page));
        const EntryLayout layout = EntryLayout::with(part.m, part.attributes, page.capacity);
        const char* columns = data + sizeof(page);
        out->push_back({reinterpret_cast<const uint8_t*>(columns), layout.capacity, page.count,
                        reinterpret_cast<const float*>(columns + layout.offsets_at),
                        reinterpret_cast<const uint8_t*>(columns + layout.tids_at),
                        reinterpret_cast<const uint8_t*>(columns + layout.attributes_at)});
        data += loaded_page_bytes(layout);
    }
}

// Called with all pages of a list, or of the entries appended to one; `part` is the last part.
void take_list(Worker* worker, const LoadBuffer* buffer, const ListPart& part, const char* data,
               size_t bytes) {
    Mirror& mirror = *worker->mirror;
    worker->pages.clear();
    list_pages(data, bytes, part, &worker->pages);
    if (part.from.resident)
        mirror.append(buffer->key, part.list, part.from, part.version, worker->pages, part.changes);
    else
        mirror.put(buffer->key, part.list, part.version, worker->pages,
                   buffer->kind == LoadKind::whole_index ? Mirror::Victims::other_indexes
                                                         : Mirror::Victims::any,
                   part.changes);
}

void take_lists(Worker* worker, const LoadBuffer* buffer) {
    if (!worker->mirror->knows(buffer->key)) {
        worker->assemblies.erase(buffer->owner);
        return;
    }
    for (uint32 at = 0; at < buffer->bytes;) {
        ListPart part;
        memcpy(&part, buffer->data + at, sizeof(part));
        const char* data = buffer->data + at + sizeof(part);
        at += static_cast<uint32>(sizeof(part) + part.bytes);
        if (part.first_page == 0 && part.last) {
            take_list(worker, buffer, part, data, part.bytes);
            continue;
        }
        Assembly& assembly = worker->assemblies[buffer->owner];
        if (part.first_page == 0) {
            assembly = {};
            assembly.key = buffer->key;
            assembly.list = part.list;
        }
        // A part was lost: drop the list.
        if (!(assembly.key == buffer->key) || assembly.list != part.list ||
            assembly.page_count != part.first_page) {
            worker->assemblies.erase(buffer->owner);
            continue;
        }
        assembly.pages.insert(assembly.pages.end(), data, data + part.bytes);
        assembly.page_count += part.pages;
        if (!part.last) continue;
        take_list(worker, buffer, part, assembly.pages.data(), assembly.pages.size());
        worker->assemblies.erase(buffer->owner);
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

}  // namespace

void free_loads() {
    if (load_in_hand >= 0) free_load(load_in_hand);
    load_in_hand = -1;
    uint32 number;
    while (ring_pop(load_ring(own_device), &number)) free_load(static_cast<int>(number));
    ConditionVariableBroadcast(&own_device->load_freed);
}

bool take_load(Worker* worker) {
    uint32 number;
    if (!ring_pop(load_ring(own_device), &number)) return false;
    load_in_hand = static_cast<int>(number);
    LoadBuffer* buffer = service_load_buffer(own_device, static_cast<int>(number));
    char message[256];
    const Attempt result = attempt(message, [&] {
        switch (buffer->kind) {
            case LoadKind::model:
                take_model(worker, buffer);
                break;
            case LoadKind::lists:
            case LoadKind::whole_index:
                take_lists(worker, buffer);
                break;
        }
    });
    if (result != Attempt::done) worker->assemblies.erase(buffer->owner);
    const auto assembly = worker->assemblies.find(buffer->owner);
    if (assembly != worker->assemblies.end()) {
        assembly->second.pid = buffer->owner_pid;
        assembly->second.last_part = GetCurrentTimestamp();
    }
    publish_changes(worker);
    publish_use(worker, buffer->key);
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
