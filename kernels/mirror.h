// The lists of many indexes, resident on one device for searching: a cache in front of the pages.
//
// A mirror knows nothing of PostgreSQL. Backends send it the lists' contents with their versions.
// An answer names the lists it used and their versions in the mirror, so that the backend can check
// whether they are current. Lists that do not fit are evicted, least recently used first.
//
// Where changes of lists are counted (ListChangeCounts), and the mirror has every list of an index
// as it is when a batch starts, the answers are complete, and need no versions.
#pragma once

#include "kernels/common.h"
#include "kernels/device.h"
#include "kernels/device_choice.h"
#include "kernels/list_store.h"
#include "kernels/quantizer.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace pgwarp {

// Identifies an index and its storage: tablespace, file and build change when it is rebuilt. A
// database that was dropped may have left its number, and a copy of its template the other fields,
// to another database: that one is another incarnation.
struct MirrorKey {
    uint32_t database;
    uint32_t index;

    uint32_t tablespace;
    uint32_t file;
    uint64_t build;
    uint64_t incarnation = 0;  // of the database

    friend bool operator==(const MirrorKey&, const MirrorKey&) = default;
};

// Each list has another hash.
inline uint32_t hash_of_list(uint32_t list) {
    uint32_t hash = list;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

// The lists of an index that belong to a device, by their hashes: all of them, unless it is spread
// over devices.
struct ListRange {
    uint32_t first = 0;
    uint32_t last = std::numeric_limits<uint32_t>::max();  // below `first`: there are none

    bool includes(uint32_t list) const {
        const uint32_t hash = hash_of_list(list);
        return first <= hash && hash <= last;
    }
    friend bool operator==(const ListRange&, const ListRange&) = default;
};

// The version of a list's contents; see the index's format.
struct MirrorVersion {
    uint32_t generation;
    uint32_t tail;          // the last page
    uint32_t items : 31;    // entries on the tail page
    uint32_t resident : 1;  // 0: not resident, and the other fields are undefined

    friend bool operator==(const MirrorVersion&, const MirrorVersion&) = default;
};

// A list that a search probed, resident or not.
struct MirrorProbe {
    uint32_t list : 31;
    uint32_t wanted : 1;  // not resident, and the backend should send it
    MirrorVersion version;
};
static_assert(sizeof(MirrorProbe) == 16, "an answer has one for every list");

// A list and its generation as one number.
inline uint64_t list_and_generation(uint32_t list, const MirrorVersion& version) {
    return uint64_t{list} << 32 | (version.resident ? version.generation : 0xffffffffu);
}

// How often the lists of indexes have changed, counted by the processes that change them: a list's
// own count first, then the count of its index. Lists may share counts, and so may indexes.
class ListChangeCounts {
  public:
    virtual ~ListChangeCounts() = default;
    // Of all lists together. What it counts is in the counts of lists that are read afterwards.
    virtual uint64_t of_index(const MirrorKey& key) const noexcept = 0;
    // The first list, from `first` on, whose count is not the known one; known.size(): none. Lists
    // with `counted_elsewhere` are passed over.
    virtual uint32_t first_changed(const MirrorKey& key, std::span<const uint64_t> known,
                                   uint32_t first) const noexcept = 0;
};
// Of a list whose count was not read before the list was. No list has this count.
inline constexpr uint64_t unknown_changes = std::numeric_limits<uint64_t>::max();
// Of a list that belongs to another device. Nor this.
inline constexpr uint64_t counted_elsewhere = unknown_changes - 1;

// One query and its answer. The caller owns all memory.
struct MirrorSearch {
    MirrorKey key;
    const float* query;  // (dims), normalised and rotated as the index needs
    uint32_t dims;
    uint32_t k;       // 1 .. max_list_k
    uint32_t probes;  // at least 1
    // With a threshold, the search decides how many of these lists it takes.
    ListPlan plan = {};
    // Above 0: the search is refined, for this number of rows (list_store.h). Not filtered.
    uint32_t refined_k = 0;
    // A search may be filtered (list_store.h).
    bool filtered = false;
    uint32_t first_probe = 0;
    Neighbor floor{-std::numeric_limits<float>::infinity(), 0};
    PackedConditions conditions = {};
    // The answer must have the versions of its lists, and is not marked as complete.
    bool wants_versions = false;
    // The lists that the mirror should have: an answer is complete if it has these and no others.
    ListRange range = {};

    // refused: unknown, because the device has no room for the model. A caller that could not add
    // the index says this, no mirror.
    enum class Outcome : uint32_t { found, unknown, failed, refused };
    Outcome outcome;
    Neighbor* found;  // (k)
    uint32_t found_count;
    uint32_t taken = 0;           // lists up to this rank were searched
    SearchedLists searched = {};  // if filtered
    // If refined: candidates that are not in `found` are no nearer.
    float left_out = std::numeric_limits<float>::infinity();
    // The answer is that of all lists of the range as they were at some time after submit(). What
    // the snapshot of the search sees was counted before, and so is in it.
    bool complete = false;
    // (probes - first_probe) each, of which an answer has (taken - first_probe). A complete answer
    // has its lists in `lists`, by list_and_generation(), if the search is filtered, and nowhere
    // otherwise. Other answers have them in `probed`, nearest first.
    MirrorProbe* probed;
    uint64_t* lists = nullptr;
    uint32_t probed_count;
    // If resident: for want of this list's last changes the answer is not complete, and the backend
    // should send what the mirror lacks of it.
    MirrorProbe outdated = {};
};

struct MirrorUse {
    uint64_t batches;
    uint64_t batch_queries;
    uint64_t evictions;
    uint64_t reloads;   // of whole lists that were resident before
    uint64_t appends;   // to resident lists
    uint64_t received;  // bytes of entries, by put() and append()
    uint64_t errors;
    uint32_t lists;
    uint32_t resident_lists;
    uint32_t foreign_lists;  // of these: outside the range of the last search
    size_t bytes;
};

struct MirrorChange {
    MirrorKey key;
    MirrorUse use;
};

// What the mirror knows of an index; null: it knows none by this key.
struct MirrorIndex {
    const QuantizerShape* shape = nullptr;
    const AttributeLayout* attributes = nullptr;
};

class Mirror {
  public:
    // Most batches that run at once: of one index and one shape class (one runs while the next is
    // gathered), of one index, of few searches and one shape class in a family, and in all.
    static constexpr size_t most_of_shape = 2;
    static constexpr size_t most_of_index = 6;
    static constexpr size_t most_of_family = 3;
    static constexpr size_t most_batches = 16;
    // From this number of searches on, an index has a batch of its own. Fewer share one with those
    // of other indexes, where these mix; such a batch has no more than `most_mixed`.
    static constexpr size_t least_alone = 64;
    static constexpr size_t most_mixed = 256;
    // Nor does an index with more lists: these are ranked for many queries at once.
    static constexpr uint32_t most_mixed_lists = 4096;

    // `budget`: most bytes of lists to keep. The device outlives the mirror, and so do the counts;
    // null: nothing is counted.
    Mirror(Device& device, size_t budget, const ListChangeCounts* counts = nullptr);
    ~Mirror();

    bool knows(const MirrorKey& key) const;
    MirrorIndex index(const MirrorKey& key) const;

    // False: the device is too small for such a model, whatever else is there.
    bool can_hold(const QuantizerShape& shape) const;
    // Adds an index, and replaces an earlier build of it. Where there is no room for its model, the
    // least recently searched indexes are forgotten: a standby is never told of dropped indexes.
    // Throws OutOfDeviceMemory where that did not help; at once if it cannot.
    void add(const MirrorKey& key, const Quantizer& model, const AttributeLayout& attributes = {});
    // Forgets an index, or all indexes of a database (index 0).
    void forget(uint32_t database, uint32_t index);

    // Which lists may be evicted for a new one.
    enum class Victims { any, other_indexes, none };

    // Replaces a list's contents. `changes`: the list's count, read before its pages were. Ignores
    // lists of indexes that are unknown or known by another build. False where there was no room
    // even after evicting all permitted lists.
    bool put(const MirrorKey& key, uint32_t list, const MirrorVersion& version,
             std::span<const ListPage> pages, Victims victims = Victims::any,
             uint64_t changes = unknown_changes);

    // Appends to a list that is resident in exactly the version `from`; its version is `to`
    // afterwards. Any other version is left alone, since entries would be missing or doubled: the
    // next search reports the resident version, and the backend sends entries from there. False
    // where there was no room, or where the list itself was evicted. Without pages, and with two
    // equal versions, it only says that the list still was the same at that count.
    bool append(const MirrorKey& key, uint32_t list, const MirrorVersion& from,
                const MirrorVersion& to, std::span<const ListPage> pages,
                uint64_t changes = unknown_changes);

    // Drops a list that another device has.
    void drop(const MirrorKey& key, uint32_t list);

    // Names lists of the range that the mirror lacks and has room for, each call the next ones, and
    // returns how many.
    size_t name_missing(const MirrorKey& key, const ListRange& range, std::span<uint32_t> missing);

    // Queues a search. The mirror uses its memory until collect() returns it.
    void submit(MirrorSearch* search);
    // Starts the next batch of submitted searches with a similar amount of work: of one index, or
    // of several whose lists mix (ListStore::mixes_with()).
    // The batch sees the lists as they are now, whatever is put, appended or forgotten meanwhile.
    // False where no search waits, or where the limits on running batches are reached.
    bool start_next(size_t most_searches);
    // Appends the searches of finished batches to `answered`, without waiting for others. Searches
    // that failed, here or in start_next(), are marked as failed and the rest answered; then the
    // first failure is thrown. A DeviceFailure has `lost` set also after many failures in a row.
    void collect(std::vector<MirrorSearch*>* answered);
    bool busy() const { return !running_.empty(); }

    // Null where the index is unknown.
    const MirrorUse* use(const MirrorKey& key) const;
    size_t bytes() const { return bytes_; }
    // The load of its indexes; an index with no list resident counts with its model.
    DeviceLoad load() const;

    // Indexes that lost lists to others since the last call. An index that was evicted whole has no
    // lists.
    std::vector<MirrorChange> take_changes();

  private:
    struct Served;
    struct LaneSlot;
    struct MixedLane;
    using Versions = std::vector<MirrorVersion>;

    struct WaitingLane {
        std::shared_ptr<Served> served;
        size_t lane;
    };
    // Searches of one index in a batch.
    struct Part {
        std::shared_ptr<Served> served;
        std::shared_ptr<const Versions> versions;  // at start_next()
        bool complete;                             // at start_next(), too,
        ListRange range;                           // of these lists
        std::vector<MirrorSearch*> searches;
    };
    // A batch in flight.
    struct Running {
        std::vector<Part> parts;  // one, unless it is mixed
        uint64_t family;          // of its group
        bool mixed;
        size_t lane;
        LaneSlot* slot;  // of the first part's index, or of a mixed lane
        std::chrono::steady_clock::time_point since;

        size_t searches() const;
        ListStore& store() const;
        ListBatch& batch() const;
    };
    // Waiting lanes of one class whose searches may share a batch: those of a family with few
    // searches each, or a single lane.
    struct Group {
        uint64_t family;  // 0: it has one lane, which shares with none
        size_t lane;
        uint64_t ticket = std::numeric_limits<uint64_t>::max();  // of the first search
        size_t searches = 0;
        std::vector<const WaitingLane*> lanes = {};  // in waiting_, until some are taken

        bool mixed() const { return lanes.size() > 1; }
    };

    Served* find(const MirrorKey& key) const;
    static uint64_t name_of(uint32_t database, uint32_t index) {
        return uint64_t{database} << 32 | index;
    }
    // Room for the answers to all searches that wait or run.
    void reserve_answers();
    // After reserve_answers().
    void dismiss(Served& served) noexcept;
    std::vector<Group> waiting_groups() const;
    bool may_start(const Group& group) const;
    bool may_start(const WaitingLane& lane) const;
    // Takes the searches of the next batch from their lanes.
    std::vector<Part> take_parts(const Group& group, size_t most_searches);
    LaneSlot& free_slot(const Group& group, Served& first);
    // Takes the parts if it does not throw.
    void start_batch(const Group& group, std::vector<Part>& parts);
    static void make_batch(ListStore& store, LaneSlot& slot, const ListBatchShape& shape);
    static void free_unused(LaneSlot& slot, uint64_t last_used, uint64_t now);
    bool free_idle_batches();
    void finish_batch(Running& running);
    // Takes the answer of query `at`.
    void take_answer(const Part& part, const ListBatch& batch, size_t at, MirrorSearch& search);
    // Names the lists of an answer, as the search wants it.
    void name_lists(const Part& part, std::span<const uint32_t> lists, MirrorSearch& search);
    void note_failure(const std::vector<Part>& parts, std::exception_ptr* failure) noexcept;
    // Forgets the least recently searched index; false: there is none.
    bool give_up_index();
    // Evicts lists, but none of `kept`, until this many bytes are free; false where that is
    // impossible.
    bool make_room(size_t bytes, const Served* kept = nullptr);
    // After a search found no room on the device: keep fewer lists from now on.
    void shrink_budget();
    // Whether to ask a backend to send a list that is not resident.
    bool wants(Served& served, uint32_t list);
    // Whether the next list evicts others.
    bool nearly_full() const { return bytes_ + budget_ / 16 > budget_; }
    // Whether the mirror has all lists of the range of the last search, no others, and these as
    // they are now.
    bool is_complete(Served& served) const;
    // A list to ask a backend for, because the index is not complete for want of it. Not resident:
    // none.
    MirrorProbe next_outdated(Served& served) const;

    Device& device_;
    const ListChangeCounts* const counts_;
    const size_t full_budget_;
    size_t budget_;  // lowered while searches need the memory
    size_t bytes_ = 0;
    std::vector<MirrorChange> changes_;  // until take_changes()
    bool lists_lost_ = false;            // by an index that is still known
    uint64_t clock_ = 0;                 // counts puts and batches
    uint64_t uses_ = 0;                  // counts puts, appends and answers
    int failures_in_a_row_ = 0;
    std::unordered_map<uint64_t, std::shared_ptr<Served>> served_;  // by database and index
    std::vector<WaitingLane> waiting_;                              // lanes with queued searches
    uint64_t last_ticket_ = 0;
    uint64_t last_family_ = 0;
    std::vector<std::unique_ptr<MixedLane>> mixed_;
    std::vector<Running> running_;
    std::vector<MirrorSearch*> answered_;  // until collect()
};

}  // namespace pgwarp
