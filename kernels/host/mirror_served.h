// What a mirror keeps of one index: lists and versions (mirror.cpp), searches (mirror_batches.cpp).
#pragma once

#include "kernels/mirror.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace pgwarp {

// Classes of searches that take about as long, and the same kernels: three by k times three by
// probes.
inline constexpr size_t shape_classes = 9;

struct Mirror::LaneSlot {
    std::unique_ptr<ListBatch> batch;  // null: not made yet, or given back
    size_t running = 0;                // searches; 0: free
};

struct Mirror::Served {
    MirrorKey key;
    QuantizerShape shape;
    std::unique_ptr<ListStore> store;
    // Whoever runs a search holds a copy of the pointer: change what it points to through
    // versions_to_change().
    std::shared_ptr<Versions> versions;  // (lists)
    struct List {
        size_t bytes = 0;
        uint64_t last_used = 0;    // by the clock
        uint64_t last_wanted = 0;  // when somebody was asked to bring it; 0: never
        bool had_before = false;   // resident once, so that putting it is a reload
    };
    std::vector<List> lists;
    // The answer that named a list last: a list named twice would give its rows twice.
    std::vector<uint64_t> named_by;  // (lists)
    uint64_t answers = 0;
    uint64_t last_used = 0;   // by the clock
    bool lists_lost = false;  // to others, since changes were last asked for
    MirrorUse use{};

    // Searches of one class of shapes.
    struct Lane {
        struct Waiting {
            uint64_t ticket;  // in the order of submit()
            MirrorSearch* search;
        };
        std::vector<Waiting> waiting;
        LaneSlot slots[most_of_shape];
        uint64_t last_used = 0;  // by the clock
    };
    std::array<Lane, shape_classes> lanes;  // after the store: their batches end first
    size_t running = 0;                     // batches

    Versions& versions_to_change() {
        if (versions.use_count() > 1) versions = std::make_shared<Versions>(*versions);
        return *versions;
    }

    // Versions first: what is not said to be resident is read from elsewhere.
    void drop(uint32_t list) {
        versions_to_change()[list] = {};
        store->drop(list);
        use.bytes -= lists[list].bytes;
        lists[list].bytes = 0;
        --use.resident_lists;
    }

    // Its model, and what its lists would take were all resident, estimated by those that are.
    size_t assigned() const {
        const size_t floats =
            size_t{shape.lists} * shape.dims + size_t{shape.codebook_rows()} * codewords;
        return floats * sizeof(float) + use.bytes * shape.lists / std::max(use.resident_lists, 1u);
    }
};

}  // namespace pgwarp
