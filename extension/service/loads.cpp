#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <stdexcept>

#include "extension/service/rate_limit.h"
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

// --- what is sent in parts

// Memory for models and lists of which only some parts have arrived: at most this, or half of it
// and one model or list that is larger. What finds no room is dropped, and will be sent again.
constexpr size_t most_assembled = size_t{256} << 20;

bool may_assemble(const Worker* worker, size_t own, size_t more) {
    const size_t others = worker->assembled() - own;
    return others <= most_assembled / 2 || others + own + more <= most_assembled;
}

bool is_of(const Assembly& assembly, const LoadHead& load) {
    return assembly.key == load.key && assembly.owner == load.owner &&
           assembly.pid == load.owner_pid;
}

void note_part(Assembly* assembly, const LoadHead& load) {
    assembly->key = load.key;
    assembly->owner = load.owner;
    assembly->pid = load.owner_pid;
    assembly->last_part = GetCurrentTimestamp();
}

// Whether the backend still sends: one that waits for a free buffer may pause for a while.
bool is_sent(const Assembly& assembly) {
    constexpr int pause_ms = 2000;
    return !TimestampDifferenceExceeds(assembly.last_part, GetCurrentTimestamp(), pause_ms);
}

void refuse_model(Worker* worker, const MirrorKey& key, size_t bytes) {
    RefusedModel& refused = worker->refused[Worker::name_of(key)];
    refused = {key, bytes, GetCurrentTimestamp(), refused.key == key && refused.said};
    // An earlier build is of no use.
    worker->mirror->forget(key.database, key.index);
}

// The first part of a model. Null: the model is not wanted.
ModelAssembly* begin_model(Worker* worker, const LoadHead& load, const ModelPart& part) {
    const uint64_t name = Worker::name_of(load.key);
    const auto at = worker->models.find(name);
    if (at != worker->models.end()) {
        // One backend is enough.
        if (at->second.key == load.key && !is_of(at->second, load) && is_sent(at->second))
            return nullptr;
        worker->models.erase(at);
    }
    const size_t floats = model_floats(part.shape);
    if (!worker->mirror->can_hold(part.shape)) {
        refuse_model(worker, load.key, floats * sizeof(float));
        return nullptr;
    }
    if (!may_assemble(worker, 0, floats * sizeof(float))) return nullptr;
    ModelAssembly made;
    made.shape = part.shape;
    made.attributes = part.attributes;
    made.floats.resize(floats);
    note_part(&made, load);
    return &(worker->models[name] = std::move(made));
}

void add_model(Worker* worker, const MirrorKey& key, const ModelAssembly& model) {
    const size_t centroid_floats = size_t{model.shape.lists} * model.shape.dims;
    const Quantizer quantizer{model.shape, model.floats.data(),
                              model.floats.data() + centroid_floats};
    try {
        worker->published.erase(Worker::name_of(key));
        worker->mirror->add(key, quantizer, model.attributes);
        worker->refused.erase(Worker::name_of(key));
    } catch (const OutOfDeviceMemory&) {
        refuse_model(worker, key, model.bytes());
    } catch (const std::bad_alloc&) {
        refuse_model(worker, key, model.bytes());
        throw;
    }
}

void take_model(Worker* worker, const LoadHead& load) {
    demand(load.bytes >= sizeof(ModelPart), "a model is too short");
    const auto part = read_part<ModelPart>(load.data);
    demand(is_sound(part.shape) && is_sound(part.attributes), "a model has an unknown shape");
    if (worker->mirror->knows(load.key) || is_refused(worker, load.key)) return;
    const uint64_t name = Worker::name_of(load.key);
    const auto at = worker->models.find(name);
    ModelAssembly* model = nullptr;
    if (part.first_float == 0)
        model = begin_model(worker, load, part);
    else if (at != worker->models.end())
        model = &at->second;
    // Not wanted, or without its earlier parts: those went to a previous worker.
    if (!model || (part.first_float > 0 && !is_of(*model, load)) ||
        !are_same(model->shape, part.shape) || model->received != part.first_float)
        return;
    const size_t all = model->floats.size();
    demand(part.floats <= (load.bytes - sizeof(part)) / sizeof(float) &&
               part.floats <= all - model->received,
           "a part of a model is too long");
    memcpy(model->floats.data() + model->received, load.data + sizeof(part),
           part.floats * sizeof(float));
    model->received += part.floats;
    note_part(model, load);
    if (model->received < all) return;
    const ModelAssembly whole = std::move(*model);
    worker->models.erase(name);
    add_model(worker, load.key, whole);
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
        worker->list_assemblies.erase(load.owner);
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
        ListAssembly& assembly = worker->list_assemblies[load.owner];
        if (part.first_page == 0) {
            assembly = {};
            assembly.list = part.list;
            note_part(&assembly, load);
        }
        // A part was lost, or there is no room: drop the list.
        if (!is_of(assembly, load) || assembly.list != part.list ||
            assembly.page_count != part.first_page ||
            !may_assemble(worker, assembly.bytes(), part.bytes)) {
            worker->list_assemblies.erase(load.owner);
            continue;
        }
        // A list that the device has no room for is refused when it is whole; this bounds the
        // host's memory.
        constexpr size_t bearable = size_t{64} << 20;
        demand(assembly.pages.size() + part.bytes <=
                   std::max(bearable, worker->device->memory().budget),
               "a list is too long");
        assembly.pages.insert(assembly.pages.end(), data, data + part.bytes);
        assembly.page_count += part.pages;
        note_part(&assembly, load);
        if (!part.last) continue;
        take_list(worker, load, part, dims, assembly.pages.data(), assembly.pages.size());
        worker->list_assemblies.erase(load.owner);
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

// Once for each model, in the log; what the view shows is renewed.
void say_refusal(Worker* worker, const MirrorKey& key) {
    const auto at = worker->refused.find(Worker::name_of(key));
    if (at == worker->refused.end() || !(at->second.key == key)) return;
    RefusedModel& refused = at->second;
    publish_refused(own_device, key, refused.bytes);
    if (refused.said) return;
    refused.said = true;
    ereport(LOG,
            (errmsg("pgwarp service has no room for the model of index %u of database %u",
                    key.index, key.database),
             errdetail("The model takes " UINT64_FORMAT " bytes or more, and the device has %zu. "
                       "Sessions search the index pages on the CPU.",
                       refused.bytes, worker->device->memory().budget),
             errhint("Raise pgwarp.device_memory, or build the index with fewer lists.")));
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
    if (result != Attempt::done) {
        worker->list_assemblies.erase(load.owner);
        const auto model = worker->models.find(Worker::name_of(load.key));
        if (model != worker->models.end() && is_of(model->second, load))
            worker->models.erase(model);
    }
    if (load.kind == LoadKind::model) say_refusal(worker, load.key);
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

static bool is_stale(const Assembly& assembly) {
    constexpr int timeout_ms = 60 * 1000;
    const bool ended = kill(assembly.pid, 0) != 0 && errno == ESRCH;
    return ended ||
           TimestampDifferenceExceeds(assembly.last_part, GetCurrentTimestamp(), timeout_ms);
}

void drop_stale_assemblies(Worker* worker) {
    constexpr int interval_ms = 1000;
    const TimestampTz now = GetCurrentTimestamp();
    if (!worker->assembles() ||
        !TimestampDifferenceExceeds(worker->assemblies_checked, now, interval_ms))
        return;
    worker->assemblies_checked = now;
    const auto dropped = [](const auto& item) {
        const bool stale = is_stale(item.second);
        if (stale)
            ereport(DEBUG1,
                    (errmsg_internal("pgwarp service drops what was sent by half: %zu bytes",
                                     item.second.bytes())));
        return stale;
    };
    std::erase_if(worker->models, dropped);
    std::erase_if(worker->list_assemblies, dropped);
}

bool is_refused(const Worker* worker, const MirrorKey& key) {
    constexpr int refused_ms = 60 * 1000;
    const auto at = worker->refused.find(Worker::name_of(key));
    return at != worker->refused.end() && at->second.key == key &&
           !TimestampDifferenceExceeds(at->second.at, GetCurrentTimestamp(), refused_ms);
}

bool wants_model(const Worker* worker, const MirrorKey& key) {
    if (is_refused(worker, key)) return false;
    const uint64_t name = Worker::name_of(key);
    const auto at = worker->models.find(name);
    if (at != worker->models.end() && at->second.key == key && is_sent(at->second)) return false;
    if (!may_send(own_device, key, any_list, model_to_bring)) return false;
    // The backend would take such a slot for an answer.
    if (worker->refused.contains(name)) publish_refused(own_device, key, 0);
    return true;
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
