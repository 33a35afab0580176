// What the parts of the service's worker share: its devices, what it is taking in, and calls of
// devices, which may throw or hang.
//
//   worker     the worker's life and its loop
//   answers    searches: from the ring to batches, and back to their backends
//   loads      models and lists that backends send, indexes that are gone
//   devices    opening devices, and the memory that stands empty there
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_choice.h"
#include "kernels/mirror.h"
#include "extension/service/service.h"
#include "extension/service/watchdog.h"

extern "C" {
#include "datatype/timestamp.h"
}

namespace pgwarp {

// What comes in parts, from one backend.
struct Assembly {
    MirrorKey key{};
    QuantizerShape shape{};
    std::vector<float> model;
    size_t model_floats = 0;  // received
    uint32 list = 0;
    std::vector<char> pages;  // of what is longer than a load buffer
    uint32 page_count = 0;
    pid_t pid = 0;  // the backend
    TimestampTz last_part = 0;
};

// One device and what is kept on it.
struct Place {
    int number;  // -1: the host
    std::unique_ptr<Device> device;
    std::unique_ptr<Mirror> mirror;  // after the device: it ends first
    TimestampTz empty_since = 0;     // much of its memory; 0: it is not
};

struct Worker {
    std::vector<Place> places;
    std::vector<std::string> not_opened;  // why devices are not among them
    std::vector<MirrorSearch> searches;   // (slots)
    std::vector<MirrorSearch*> answered;
    std::unordered_map<int, Assembly> assemblies;  // by owner
    // What statistics have of indexes that mirrors know, by database and index.
    std::unordered_map<uint64_t, MirrorUse> published;
    std::vector<ListPage> pages;
    MirrorKey wanted_model{};
    TimestampTz model_wanted_at = 0;
    TimestampTz assemblies_checked = 0;

    // There before memory is short.
    void reserve() {
        searches.resize(static_cast<size_t>(service->slots));
        answered.reserve(static_cast<size_t>(service->slots));
    }
    // Whether batches are under way.
    bool waits_for_device() const {
        return std::any_of(places.begin(), places.end(),
                           [](const Place& place) { return place.mirror->busy(); });
    }

    Place* place_of(const MirrorKey& key) {
        for (Place& place : places)
            if (place.mirror->knows(key)) return &place;
        return nullptr;
    }
    void forget(uint32_t database, uint32_t index) {
        for (Place& place : places) place.mirror->forget(database, index);
        std::erase_if(published, [&](const auto& item) {
            return item.first >> 32 == database &&
                   (index == 0 || static_cast<uint32_t>(item.first) == index);
        });
    }
    Place& emptiest() {
        DeviceLoad loads[most_devices];
        for (size_t i = 0; i < places.size(); ++i) loads[i] = places[i].mirror->load();
        return places[least_loaded({loads, places.size()})];
    }
};

enum class Attempt { done, failed, no_memory, lost };

// Runs what may throw; leaves a message. Nothing of PostgreSQL is called inside.
template <typename Function>
Attempt attempt(char (&message)[256], Function&& function, int patience = 1) {
    const WatchedCall watched(patience);
    try {
        function();
        return Attempt::done;
    } catch (const DeviceFailure& failure) {
        strlcpy(message, failure.what(), sizeof(message));
        return failure.lost ? Attempt::lost : Attempt::failed;
    } catch (const std::bad_alloc& error) {
        strlcpy(message, error.what(), sizeof(message));
        return Attempt::no_memory;
    } catch (const std::exception& error) {
        strlcpy(message, error.what(), sizeof(message));
    } catch (...) {
        strlcpy(message, "unknown exception", sizeof(message));
    }
    return Attempt::failed;
}

// Reports what went wrong, seldom enough for a log. A device that is lost ends the process.
void note_failure(Attempt result, const char* message, const char* what);

// --- devices.cpp

// Opens what pgwarp.devices names: those of them that are there.
void open_places(Worker* worker);
void publish_devices(const Worker* worker);
// Memory that stands empty goes back to the device after a while, for others to have: an index that
// was dropped is often followed by another. A little stays, so that not every change takes and
// gives memory. True: there is something to give back later.
bool give_back_empty(Worker* worker);

// --- answers.cpp

// Hands what is in the ring to the mirrors. False: there was nothing.
bool take_searches(Worker* worker);
// Answers what is done and starts what may start. False: there was nothing to do.
bool run_batches(Worker* worker);
// Gives a slot's search back to its backend.
void answer(uint32 number);
// The counters and gauges of an index; of indexes that have lost lists to others.
void publish_use(Worker* worker, const MirrorKey& key);
void publish_changes(Worker* worker);

// --- loads.cpp

// One load buffer. False: there was none.
bool take_load(Worker* worker);
// As the worker ends: gives back the load buffers that were handed over, and the one that was being
// taken in.
void free_loads();
// Indexes that are gone. False: there were none.
bool take_forgets(Worker* worker);
// Drops what was sent by half, where the backend has ended or sends no more of it.
void drop_stale_assemblies(Worker* worker);

}  // namespace pgwarp
