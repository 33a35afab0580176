// The lists of many indexes, kept on one device for searching: a cache in front of the pages.
//
// A mirror knows nothing of PostgreSQL. It is told the lists' contents with the versions they had,
// and says with every answer which lists it looked into and which versions of them it had: whoever
// asked knows whether that is still the truth. Lists that do not fit are given up, least recently
// used first.
#pragma once

#include "kernels/common.h"
#include "kernels/device.h"
#include "kernels/device_choice.h"
#include "kernels/list_store.h"
#include "kernels/quantizer.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace pgwarp {

// An index, and one life of it: the second part changes when the index is built anew.
struct MirrorKey {
    uint32_t database;
    uint32_t index;

    uint32_t tablespace;
    uint32_t file;
    uint64_t build;

    friend bool operator==(const MirrorKey&, const MirrorKey&) = default;
};

// What a list's contents are worth comparing by; see the index's format.
struct MirrorVersion {
    uint32_t generation;
    uint32_t tail;      // the last page
    uint32_t items;     // on it
    uint32_t resident;  // 1; or 0, and the rest means nothing

    friend bool operator==(const MirrorVersion&, const MirrorVersion&) = default;
};

// A list that an answer comes from, or would have come from.
struct MirrorProbe {
    uint32_t list;
    uint32_t wanted;  // 1: not resident, and whoever asked is asked to bring it
    MirrorVersion version;
};

// One query and its answer. The caller owns all memory.
struct MirrorSearch {
    MirrorKey key;
    const float* query;  // (dims), in index form
    uint32_t dims;
    uint32_t k;       // 1 .. max_list_k
    uint32_t probes;  // at least 1

    enum class Outcome : uint32_t { found, unknown, failed };
    Outcome outcome;
    Neighbor* found;  // (k)
    uint32_t found_count;
    MirrorProbe* probed;  // (probes), nearest first
    uint32_t probed_count;
};

struct MirrorUse {
    uint64_t batches;
    uint64_t batch_queries;
    uint64_t evictions;
    uint64_t reloads;   // of whole lists that were resident before
    uint64_t appends;   // to resident lists
    uint64_t received;  // bytes of entries, by either way
    uint64_t errors;
    uint32_t lists;
    uint32_t resident_lists;
    size_t bytes;
};

struct MirrorChange {
    MirrorKey key;
    MirrorUse use;
};

class Mirror {
  public:
    // Batches that run at once, at most: of an index and a class of shapes, where while one runs
    // another is gathered; of an index; and in all.
    static constexpr size_t most_of_shape = 2;
    static constexpr size_t most_of_index = 6;
    static constexpr size_t most_batches = 16;

    // `budget`: bytes of lists to keep at most. The device outlives the mirror.
    Mirror(Device& device, size_t budget);
    ~Mirror();

    bool knows(const MirrorKey& key) const;

    // Takes an index in, replacing an earlier life of it. Where there is no room for its model,
    // indexes that were not searched for the longest time are forgotten: a standby is never told of
    // those that were dropped.
    void add(const MirrorKey& key, const Quantizer& model);
    // Forgets an index, or all indexes of a database (index 0).
    void forget(uint32_t database, uint32_t index);

    // Which lists may be given up for one that comes.
    enum class Victims { any, other_indexes };

    // Replaces a list's contents. Lists of indexes it does not know, or knows in another life, are
    // passed over. False where there was no room even after giving up all others.
    bool put(const MirrorKey& key, uint32_t list, const MirrorVersion& version,
             std::span<const ListPage> pages, Victims victims = Victims::any);

    // Appends to a list that is resident in exactly the version `from`, which is `to` then; to no
    // other, as entries would be missing or doubled: whoever searches next learns which version is
    // there and goes on from that one. False where there was no room, or the list had to give way.
    bool append(const MirrorKey& key, uint32_t list, const MirrorVersion& from,
                const MirrorVersion& to, std::span<const ListPage> pages);

    // Takes a search over, until collect() names it: its memory stays where it is.
    void submit(MirrorSearch* search);
    // Starts the next batch of searches that were submitted: of one index and with about as much to
    // do. It sees the lists as they are now, whatever is put, appended or forgotten meanwhile.
    // False where there is none, or where as many run as may.
    bool start_next(size_t most_searches);
    // Appends to `answered` the searches of batches that are done, and does not wait for others.
    // What fails, here and above, is marked so, the rest is answered, and then the first failure is
    // thrown; a DeviceFailure says that the device is lost also where it has failed many times in a
    // row.
    void collect(std::vector<MirrorSearch*>* answered);
    // Whether batches run.
    bool busy() const { return !running_.empty(); }

    // Null where the index is not known.
    const MirrorUse* use(const MirrorKey& key) const;
    size_t bytes() const { return bytes_; }
    // Of its indexes; an index whose lists are not resident yet counts with its model.
    DeviceLoad load() const;

    // Indexes that have lost lists to others since the last call. One that was given up whole has
    // no lists any more.
    std::vector<MirrorChange> take_changes();

  private:
    struct Served;
    struct LaneSlot;
    using Versions = std::vector<MirrorVersion>;

    struct WaitingLane {
        std::shared_ptr<Served> served;
        size_t lane;
    };
    // A batch under way.
    struct Running {
        std::shared_ptr<Served> served;
        std::shared_ptr<const Versions> versions;  // at start_next()
        size_t lane, slot;
        std::vector<MirrorSearch*> searches;
        std::chrono::steady_clock::time_point since;

        ListBatch& batch() const;
    };

    Served* find(const MirrorKey& key) const;
    static uint64_t name_of(uint32_t database, uint32_t index) {
        return uint64_t{database} << 32 | index;
    }
    void dismiss(Served& served);
    bool may_start(const WaitingLane& lane) const;
    void start_batch(const WaitingLane& where, const std::vector<MirrorSearch*>& searches);
    static void make_batch(Served& served, LaneSlot& slot, const ListBatchShape& shape);
    bool free_idle_batches();
    void finish_batch(Running& running);
    void note_failure(Served& served, std::exception_ptr* failure);
    // Forgets the index that was not searched for the longest time; false: there is none.
    bool give_up_index();
    // Gives lists up until so many bytes are free, but none of `kept`; false where that cannot be.
    bool make_room(size_t bytes, const Served* kept = nullptr);
    // A search found no room on the device: fewer lists, from now on.
    void shrink_budget();
    // Whether it is worth somebody's while to bring a list that is not there.
    bool wants(Served& served, uint32_t list);

    Device& device_;
    const size_t full_budget_;
    size_t budget_;  // what is left of it while searches need the room
    size_t bytes_ = 0;
    std::vector<MirrorChange> changes_;  // until take_changes()
    bool lists_lost_ = false;            // by an index that is still known
    uint64_t clock_ = 0;                 // counts puts and batches
    int failures_in_a_row_ = 0;
    std::unordered_map<uint64_t, std::shared_ptr<Served>> served_;  // by database and index
    std::vector<WaitingLane> waiting_;                              // lanes with searches that wait
    uint64_t last_ticket_ = 0;
    std::vector<Running> running_;
    std::vector<MirrorSearch*> answered_;  // until collect()
};

}  // namespace pgwarp
