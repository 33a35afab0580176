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
    // Searches under way at once: while one set runs, another is gathered.
    static constexpr int turns = 2;

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

    // Starts all of them, in batches by index; finish() waits for those of the turn. They see the
    // lists as they are at start(), whatever is put or forgotten meanwhile. Their memory stays
    // where it is until then. What fails is marked so, the rest is answered, and then the first
    // failure is thrown; a DeviceFailure says that the device is lost also where it has failed
    // many times in a row.
    void start(int turn, std::span<MirrorSearch* const> searches);
    bool busy(int turn) const { return !running_[turn].empty(); }
    void finish(int turn);

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
    using Versions = std::vector<MirrorVersion>;

    // The searches of one turn in one index.
    struct Running {
        std::shared_ptr<Served> served;
        std::shared_ptr<const Versions> versions;  // at start()
        ListBatch* batch;
        std::vector<MirrorSearch*> searches;
    };

    Served* find(const MirrorKey& key) const;
    void start_batch(int turn, const std::shared_ptr<Served>& served,
                     std::vector<MirrorSearch*> searches);
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
    std::vector<Running> running_[turns];
};

}  // namespace pgwarp
