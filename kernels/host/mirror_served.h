// A mirror's state for one index: lists and versions (mirror.cpp), searches (mirror_batches.cpp).
#pragma once

#include "kernels/mirror.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace pgwarp {

// Classes of searches that take about as long and use the same kernels: three by k times three by
// probes, plain, refined and filtered.
inline constexpr size_t shape_classes = 27;
// Another backend is asked for a list after this many turns of the clock: the first may have ended.
inline constexpr uint64_t ask_again_after = 200;

struct Mirror::LaneSlot {
    std::unique_ptr<ListBatch> batch;  // null: not made yet, or freed
    size_t running = 0;                // searches; 0: free
};

// Mixed batches of one shape class. They belong to no index.
struct Mirror::MixedLane {
    size_t lane;
    uint32_t dims;
    LaneSlot slots[most_of_family];
    uint64_t last_used = 0;  // by the clock
};

struct Mirror::Served {
    MirrorKey key;
    QuantizerShape shape;
    AttributeLayout attributes;
    std::unique_ptr<ListStore> store;
    // The same for indexes whose stores mix; 0: it mixes with none.
    uint64_t family = 0;
    // A running batch holds a copy of the pointer: change the versions only through
    // versions_to_change().
    std::shared_ptr<Versions> versions;  // (lists)
    struct List {
        size_t bytes = 0;
        uint64_t last_wanted = 0;  // when a backend was asked to send it; 0: never
        bool had_before = false;   // resident once, so that the next put() is a reload
        size_t refused = 0;        // bytes for which there was no room; name_missing() waits for it
    };
    std::vector<List> lists;
    // The number of the last use of each list.
    std::vector<uint64_t> list_used;  // (lists)
    // The count of each list before its contents were read; unknown_changes: not resident, or sent
    // without a count.
    std::vector<uint64_t> changes;  // (lists)
    // How far the lists were compared with their counts (mirror_complete.cpp).
    struct Compared {
        uint64_t of_index = unknown_changes;  // the index's count, read before those of lists
        uint32_t lists = 0;     // the first ones that have not changed as of that count
        uint32_t outdated = 0;  // the one that had changed when this was last looked at
        std::chrono::steady_clock::time_point since{};  // the index's count is the same
        uint32_t asked = 0;                             // the list that a backend was asked for
        uint64_t asked_at = 0;                          // by the clock; 0: never
    } compared;
    // The lists that belong here by the last search, and how many these are.
    ListRange range{};
    uint32_t range_lists = 0;
    uint32_t next_missing = 0;  // the list to look at next (name_missing())
    uint64_t last_used = 0;     // by the clock
    bool lists_lost = false;    // to other indexes, since the last take_changes()
    MirrorUse use{};

    // Searches of one shape class.
    struct Lane {
        struct Waiting {
            uint64_t ticket;  // in the order of submit()
            MirrorSearch* search;
        };
        std::vector<Waiting> waiting;
        LaneSlot slots[most_of_shape];
        uint64_t last_used = 0;  // by the clock
    };
    std::array<Lane, shape_classes> lanes;  // after the store: batches are destroyed before it
    size_t running = 0;                     // batches in flight

    Versions& versions_to_change() {
        if (versions.use_count() > 1) versions = std::make_shared<Versions>(*versions);
        return *versions;
    }

    void set_changes(uint32_t list, uint64_t count) {
        changes[list] = count;
        compared.lists = std::min(compared.lists, list);
    }

    void set_range(const ListRange& now) {
        range = now;
        range_lists = use.foreign_lists = 0;
        compared.lists = 0;
        for (uint32_t list = 0; list < shape.lists; ++list) {
            const bool own = range.includes(list);
            range_lists += own;
            if ((*versions)[list].resident)
                use.foreign_lists += !own;
            else
                changes[list] = own ? unknown_changes : counted_elsewhere;
        }
    }

    bool has_range() const { return use.foreign_lists == 0 && use.resident_lists == range_lists; }

    // After put(); its version and bytes are set.
    void note_resident(uint32_t list) {
        ++use.resident_lists;
        use.foreign_lists += !range.includes(list);
    }

    // Version first: backends read a list that is not marked resident from pages.
    void drop(uint32_t list) {
        versions_to_change()[list] = {};
        const bool own = range.includes(list);
        use.foreign_lists -= !own;
        set_changes(list, own ? unknown_changes : counted_elsewhere);
        store->drop(list);
        use.bytes -= lists[list].bytes;
        lists[list].bytes = 0;
        --use.resident_lists;
    }

    // Bytes of the model and of all lists if they were resident, estimated from the resident ones.
    size_t assigned() const {
        return model_floats(shape) * sizeof(float) +
               use.bytes * shape.lists / std::max(use.resident_lists, 1u);
    }
};

}  // namespace pgwarp
