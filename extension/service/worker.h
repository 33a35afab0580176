// What the parts of a worker of the service share: its device, the lists and models that it is
// loading, and calls of the device, which may throw or hang.
//
//   worker     start, main loop, exit
//   answers    searches: from the ring to batches, and back to their backends
//   loads      models and lists that backends send, indexes that are gone
//   devices    opening the device, and returning unused device memory
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"
#include "kernels/mirror.h"
#include "extension/guard.h"
#include "extension/service/service.h"
#include "extension/service/watchdog.h"

extern "C" {
#include "datatype/timestamp.h"
}

namespace pgwarp {

// A model or a list of which a backend has sent some parts.
struct Assembly {
    MirrorKey key{};
    int owner = 0;  // the backend
    pid_t pid = 0;
    TimestampTz last_part = 0;
};
struct ModelAssembly : Assembly {
    QuantizerShape shape{};
    AttributeLayout attributes{};
    std::vector<float> floats;  // (model_floats)
    size_t received = 0;

    size_t bytes() const { return floats.capacity() * sizeof(float); }
};
struct ListAssembly : Assembly {
    uint32 list = 0;
    std::vector<char> pages;  // LoadedPages of the list's parts
    uint32 page_count = 0;

    size_t bytes() const { return pages.capacity(); }
};

// A model that the device had no room for.
struct RefusedModel {
    MirrorKey key{};
    uint64 bytes = 0;
    TimestampTz at = 0;
    bool said = false;  // in the log
};

struct Worker {
    std::unique_ptr<Device> device;
    std::unique_ptr<Mirror> mirror;      // declared after the device, so destroyed before it
    TimestampTz empty_since = 0;         // since when there is memory to return; 0: there is none
    std::vector<MirrorSearch> searches;  // (slots)
    // Searches in hand: a copy of the fields that a backend could change meanwhile.
    struct InHand {
        int block = -1;
        std::vector<PackedCondition> conditions;
        std::vector<uint64_t> values;
    };
    std::vector<InHand> in_hand;  // (slots)
    uint32 in_flight = 0;
    std::vector<MirrorSearch*> answered;
    // Slots whose backends others wake, and when the first of these were woken.
    std::vector<uint32> unseen;
    double woken_at = 0;
    std::unordered_map<uint64_t, ModelAssembly> models;     // by name_of()
    std::unordered_map<uint64_t, RefusedModel> refused;     // by name_of()
    std::unordered_map<int, ListAssembly> list_assemblies;  // by owner
    // Counters last added to the statistics, of indexes that the mirror knows; by name_of().
    std::unordered_map<uint64_t, MirrorUse> published;
    std::vector<ListPage> pages;
    TimestampTz assemblies_checked = 0;

    static uint64_t name_of(const MirrorKey& key) {
        return uint64_t{key.database} << 32 | key.index;
    }
    bool assembles() const { return !models.empty() || !list_assemblies.empty(); }
    // Bytes of models and lists of which only some parts have arrived.
    size_t assembled() const {
        size_t bytes = 0;
        for (const auto& [name, model] : models) bytes += model.bytes();
        for (const auto& [owner, list] : list_assemblies) bytes += list.bytes();
        return bytes;
    }

    // Allocated at start, so that answering does not need memory.
    void reserve() {
        searches.resize(static_cast<size_t>(service->slots));
        in_hand.resize(static_cast<size_t>(service->slots));
        answered.reserve(static_cast<size_t>(service->slots));
        unseen.reserve(static_cast<size_t>(service->slots));
    }
    void forget(uint32_t database, uint32_t index) {
        mirror->forget(database, index);
        const auto named = [&](const auto& item) {
            return item.first >> 32 == database &&
                   (index == 0 || static_cast<uint32_t>(item.first) == index);
        };
        std::erase_if(published, named);
        std::erase_if(models, named);
        std::erase_if(refused, named);
    }
};

enum class Attempt { done, failed, no_memory, lost };

// Runs a function that may throw, and stores the exception's message. The function must not call
// PostgreSQL.
template <typename Function>
Attempt attempt(char (&message)[256], Function&& function, int timeout_factor = 1) {
    const WatchedCall watched(timeout_factor);
    bool lost = false;
    const Thrown thrown = caught(message, sizeof(message), [&] {
        try {
            function();
        } catch (const DeviceFailure& failure) {
            lost = failure.lost;
            throw;
        }
    });
    switch (thrown) {
        case Thrown::nothing:
            return Attempt::done;
        case Thrown::out_of_memory:
            return Attempt::no_memory;
        case Thrown::interrupted:
        case Thrown::error:
        case Thrown::unknown:
            break;
    }
    return lost ? Attempt::lost : Attempt::failed;
}

// Logs a failure, rate-limited. Ends the process if the device is lost.
void note_failure(Attempt result, const char* message, const char* what);

// --- devices.cpp

// Opens the device of this process, and makes its mirror. False, with the reason in `error`: it
// cannot be opened. Throws std::bad_alloc where the host has no memory.
bool open_own_device(Worker* worker, OpenError* error);
// The number of the device in pgwarp.devices, as CUDA counts; host_device: the host.
int own_number();
// How many workers have a device of this number: they share its memory.
int sharers_of(int number);
// The fault of pgwarp.debug_fault, if it is meant for this device.
void set_own_fault();
void publish_device(const Worker* worker);
// Returns empty segments to the device after some seconds, for other processes: after an index is
// dropped, a build of another often follows. A few segments stay, so that not every change
// allocates and frees memory. True: there will be memory to return later.
bool return_empty_memory(Worker* worker);

// --- answers.cpp

// Submits the searches in the ring to the mirror. False: there were none.
bool take_searches(Worker* worker);
// Answers finished batches and starts waiting ones. False: there was nothing to do.
bool run_batches(Worker* worker);
// Marks a slot's search as done and wakes its backend; frees the slot if it was abandoned.
void answer(uint32 number);
// Wakes backends that have not seen their answers: one that should have woken them may have given
// up, or wait for a processor.
void wake_unseen(Worker* worker);
// Update the statistics of one index; of all indexes that have lost lists by eviction.
void publish_use(Worker* worker, const MirrorKey& key);
void publish_changes(Worker* worker);

// --- loads.cpp

// Loads one buffer. False: there was none.
bool take_load(Worker* worker);
// Called when the worker exits: frees the submitted load buffers, and the one that it was loading.
void free_loads();
// Forgets indexes that are gone. False: there were none.
bool take_forgets(Worker* worker);
// Drops incomplete models and lists whose backend has exited or has stopped sending.
void drop_stale_assemblies(Worker* worker);
// Whether the device has refused the model of an index. After a minute it may be tried again: other
// processes may have had the memory.
bool is_refused(const Worker* worker, const MirrorKey& key);
// Whether a backend should send the model of an index that the mirror does not know: none has been
// asked for it lately, and none sends it.
bool wants_model(const Worker* worker, const MirrorKey& key);

}  // namespace pgwarp
