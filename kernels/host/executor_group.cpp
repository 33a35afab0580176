#include "kernels/executor_group.h"

#include "kernels/common/groups.h"
#include "kernels/device.h"
#include "kernels/draw_rows.h"
#include "kernels/forwarding_executor.h"
#include "kernels/row_pass.h"
#include "kernels/workers.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <utility>

namespace pgwarp {

namespace {

struct Member {
    std::unique_ptr<Executor> executor;
    bool failed = false;

    // Runs work of this device, and notes that it failed.
    template <typename Work>
    auto run(Work&& work) {
        try {
            return work();
        } catch (const DeviceFailure&) {
            failed = true;
            throw;
        } catch (const OutOfDeviceMemory&) {
            failed = true;
            throw;
        } catch (const OutOfHostMemory&) {
            failed = true;
            throw;
        }
    }
};
using Members = std::vector<Member*>;

// A run of rows, consecutive in the order of all rows and on their device.
struct Run {
    uint64_t position;  // in the table: the order of runs
    size_t member;      // the device
    size_t count;
    size_t first;         // row of all rows
    size_t member_first;  // row of its device
};

// The rows of build_dataset().
class DealtRows final : public Dataset {
  public:
    struct Part {
        Member* owner;
        std::unique_ptr<Dataset> rows;  // null: this device has none
        size_t count;
    };
    DealtRows(std::vector<Part> given, std::vector<Run> in_order, uint32_t row_dims)
        : parts(std::move(given)), runs(std::move(in_order)), dims(row_dims) {
        for (const Part& part : parts) count += part.count;
    }

    const Run& run_of(size_t row) const {
        const auto behind =
            std::upper_bound(runs.begin(), runs.end(), row,
                             [](size_t at, const Run& run) { return at < run.first; });
        return *std::prev(behind);
    }
    // Copies rows to `out`, (numbers.size())(dims), in the order of the numbers.
    void gather(std::span<const uint32_t> numbers, float* out) const {
        std::vector<std::vector<uint32_t>> of_parts(parts.size());
        std::vector<std::vector<size_t>> places(parts.size());
        for (size_t i = 0; i < numbers.size(); ++i) {
            const Run& run = run_of(numbers[i]);
            of_parts[run.member].push_back(
                static_cast<uint32_t>(run.member_first + (numbers[i] - run.first)));
            places[run.member].push_back(i);
        }
        std::vector<float> rows;
        for (size_t p = 0; p < parts.size(); ++p) {
            if (places[p].empty()) continue;
            rows.resize(places[p].size() * dims);
            parts[p].owner->run([&] {
                parts[p].owner->executor->gather(*parts[p].rows, of_parts[p], rows.data());
            });
            for (size_t i = 0; i < places[p].size(); ++i)
                std::copy_n(rows.data() + i * dims, dims, out + places[p][i] * dims);
        }
    }

    std::vector<Part> parts;  // by member
    std::vector<Run> runs;
    size_t count = 0;
    uint32_t dims;
};

class DealingBuilder final : public DatasetBuilder {
  public:
    DealingBuilder(const Members& members, uint32_t dims, size_t most_rows, RowElements elements)
        : dims_(dims), most_rows_(most_rows) {
        for (Member* member : members)
            parts_.push_back({member, member->run([&] {
                                  return member->executor->build_dataset(dims, most_rows, elements);
                              })});
    }

    void add(uint64_t position, const void* rows, size_t count) override {
        if (count > most_rows_ - count_) throw std::length_error("more rows than were said");
        // The caller may change the rows of the add() before this one once this one returns.
        wait();
        const size_t member = next_;
        parts_[member].owner->run([&] { parts_[member].builder->add(position, rows, count); });
        if (count > 0) runs_.push_back({position, member, count, 0, 0});
        count_ += count;
        last_ = member;
        next_ = (next_ + 1) % parts_.size();
    }
    size_t count() const noexcept override { return count_; }
    void wait() override {
        parts_[last_].owner->run([&] { parts_[last_].builder->wait(); });
    }
    std::unique_ptr<Dataset> finish() override {
        std::sort(runs_.begin(), runs_.end(),
                  [](const Run& a, const Run& b) { return a.position < b.position; });
        std::vector<size_t> of_members(parts_.size());
        size_t first = 0;
        for (Run& run : runs_) {
            run.first = first;
            run.member_first = of_members[run.member];
            first += run.count;
            of_members[run.member] += run.count;
        }
        std::vector<DealtRows::Part> parts;
        for (size_t p = 0; p < parts_.size(); ++p) {
            std::unique_ptr<Dataset> rows;
            if (of_members[p] > 0)
                rows = parts_[p].owner->run([&] { return parts_[p].builder->finish(); });
            parts.push_back({parts_[p].owner, std::move(rows), of_members[p]});
        }
        return std::make_unique<DealtRows>(std::move(parts), std::move(runs_), dims_);
    }

  private:
    struct Part {
        Member* owner;
        std::unique_ptr<DatasetBuilder> builder;
    };
    uint32_t dims_;
    size_t most_rows_;
    size_t count_ = 0;
    std::vector<Part> parts_;
    std::vector<Run> runs_;
    size_t next_ = 0, last_ = 0;
};

bool nearer(const Neighbor& a, const Neighbor& b) {
    return std::pair(a.distance, a.id) < std::pair(b.distance, b.id);
}

// Merges `others`, (queries)(k), into `nearest`.
void merge_nearest(Workers& workers, size_t queries, uint32_t k, const Neighbor* others,
                   Neighbor* nearest) {
    constexpr size_t task_queries = 1024;
    workers.run((queries + task_queries - 1) / task_queries, [&](size_t task, int) {
        std::vector<Neighbor> both(2 * size_t{k});
        const size_t end = std::min(queries, (task + 1) * task_queries);
        for (size_t q = task * task_queries; q < end; ++q) {
            Neighbor* mine = nearest + q * k;
            const Neighbor* other = others + q * k;
            std::merge(mine, mine + k, other, other + k, both.begin(), nearer);
            std::copy_n(both.begin(), k, mine);
        }
    });
}

// Blocks go to the devices in turn, and come back in the order in which they were started.
class DealtPass final : public RowPass {
  public:
    DealtPass(const Members& members, Workers& workers, const RowPassInput& input)
        : workers_(workers), input_(input) {
        RowPassInput part = input;
        part.expected_rows = (input.expected_rows + members.size() - 1) / members.size();
        for (Member* member : members)
            parts_.push_back(
                {member, member->run([&] { return member->executor->begin_pass(part); }), 0});
    }

    void start(const void* rows, const uint64_t* ids, size_t count) override {
        if (blocks_.size() == max_in_flight * parts_.size())
            throw std::logic_error("too many blocks under way");
        deal();
        blocks_.push_back({rows, ids, count, no_member});
        try {
            deal();
        } catch (...) {
            if (blocks_.back().member == no_member) blocks_.pop_back();
            throw;
        }
    }

    PassedBlock finish() override {
        if (blocks_.empty()) throw std::logic_error("no block is under way");
        deal();
        Part& part = parts_[blocks_.front().member];
        PassedBlock passed = part.owner->run([&] { return part.pass->finish(); });
        --part.in_flight;
        blocks_.pop_front();
        passed.nearest = nullptr;
        passed.searched_blocks = ++finished_;
        return passed;
    }

    void nearest(Neighbor* out) override {
        const size_t results = input_.nearest_count();
        const size_t wide = input_.query_count * input_.k;
        if (results == 0) return;
        std::vector<std::vector<Neighbor>> others(parts_.size());
        for (size_t p = 1; p < parts_.size(); ++p) others[p].resize(results);
        // A device may search all its rows only now: all of them at once.
        workers_.run(parts_.size(), [&](size_t p, int) {
            parts_[p].owner->run([&] { parts_[p].pass->nearest(p == 0 ? out : others[p].data()); });
        });
        for (size_t p = 1; p < parts_.size(); ++p) {
            const Neighbor* other = others[p].data();
            merge_nearest(workers_, input_.query_count, input_.k, other, out);
            merge_nearest(workers_, input_.wide_count, input_.wide_k, other + wide, out + wide);
        }
    }

  private:
    struct Part {
        Member* owner;
        std::unique_ptr<RowPass> pass;
        size_t in_flight;

        bool failed() const { return owner->executor->failed(); }
    };
    static constexpr size_t no_member = std::numeric_limits<size_t>::max();
    struct Block {
        const void* rows;
        const uint64_t* ids;
        size_t count;
        size_t member;  // no_member: it waits for a device with room
    };

    // The next device in turn with room for a block; `no_member` if there is none. A device that
    // has failed gets blocks only if all have.
    size_t next_member() const {
        const bool all_failed = std::all_of(parts_.begin(), parts_.end(),
                                            [](const Part& part) { return part.failed(); });
        for (size_t i = 0; i < parts_.size(); ++i) {
            const size_t p = (next_ + i) % parts_.size();
            if (parts_[p].in_flight < max_in_flight && (all_failed || !parts_[p].failed()))
                return p;
        }
        return no_member;
    }
    void deal() {
        for (Block& block : blocks_) {
            if (block.member != no_member) continue;
            const size_t member = next_member();
            if (member == no_member) return;
            parts_[member].owner->run(
                [&] { parts_[member].pass->start(block.rows, block.ids, block.count); });
            ++parts_[member].in_flight;
            block.member = member;
            next_ = (member + 1) % parts_.size();
        }
    }

    Workers& workers_;
    const RowPassInput input_;
    std::vector<Part> parts_;
    std::deque<Block> blocks_;
    size_t next_ = 0;
    size_t finished_ = 0;
};

// The first device does all work that is not shared out.
class ExecutorGroup final : public ForwardingExecutor {
  public:
    explicit ExecutorGroup(std::vector<std::unique_ptr<Executor>> members)
        : ForwardingExecutor(nullptr),
          all_(members.size()),
          workers_(static_cast<int>(all_.size())) {
        std::vector<std::string> names;
        for (size_t i = 0; i < members.size(); ++i) {
            names.emplace_back(members[i]->name());
            all_[i].executor = std::move(members[i]);
            members_.push_back(&all_[i]);
        }
        name_ = name_of_group(names);
    }

    const char* name() const noexcept override { return name_.c_str(); }
    bool failed() const noexcept override {
        return std::all_of(members_.begin(), members_.end(),
                           [](const Member* member) { return member->executor->failed(); });
    }
    bool drop_failed() noexcept override {
        const size_t before = members_.size();
        for (Member& member : all_)
            if (member.failed) member.executor.reset();
        std::erase_if(members_, [](const Member* member) { return member->failed; });
        return !members_.empty() && members_.size() < before;
    }
    size_t most_in_flight() const noexcept override {
        return members_.size() * device_blocks_in_flight;
    }
    void register_memory(void* memory, size_t bytes) noexcept override {
        // For all devices of the process.
        if (!members_.empty()) members_.front()->executor->register_memory(memory, bytes);
    }
    void unregister_memory(void* memory) noexcept override {
        for (const Member* member : members_) member->executor->unregister_memory(memory);
    }

    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override {
        if (input.report_nearest)
            throw std::logic_error("several devices do not report the nearest of a first block");
        return std::make_unique<DealtPass>(members_, workers_, input);
    }
    std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows,
                                                  RowElements elements) override {
        return std::make_unique<DealingBuilder>(members_, dims, most_rows, elements);
    }

    void kmeans_start(Dataset& data, uint32_t clusters, uint64_t seed, float* centroids) override;
    double kmeans_step(Dataset& data, uint32_t clusters, float* centroids) override;
    void assign(Dataset& data, uint32_t clusters, const float* centroids,
                uint32_t* nearest) override;

  protected:
    void run(const Work& work) override {
        members_.front()->run([&] { work(*members_.front()->executor); });
    }
    Dataset& dataset_of(Executor&, Dataset& rows) override {
        if (dynamic_cast<DealtRows*>(&rows))
            throw std::runtime_error("rows on several devices can only be clustered");
        return rows;
    }

  private:
    KmeansSums add_up(const DealtRows& rows, uint32_t clusters, const float* centroids);
    void fill_clusters(const DealtRows& rows, uint32_t clusters, const float* before,
                       float* centroids);
    void assign_dealt(const DealtRows& rows, uint32_t clusters, const float* centroids,
                      uint32_t* nearest);

    std::vector<Member> all_;
    Members members_;  // those that are not left out
    std::string name_;
    Workers workers_;  // a thread for each
};

void ExecutorGroup::kmeans_start(Dataset& data, uint32_t clusters, uint64_t seed,
                                 float* centroids) {
    const auto* rows = dynamic_cast<DealtRows*>(&data);
    if (!rows) return ForwardingExecutor::kmeans_start(data, clusters, seed, centroids);
    const std::vector<uint64_t> drawn = draw_few_rows(rows->count, clusters, seed);
    std::vector<uint32_t> numbers(clusters);
    for (uint32_t c = 0; c < clusters; ++c)
        numbers[c] = static_cast<uint32_t>(drawn[c % drawn.size()]);
    rows->gather(numbers, centroids);
}

KmeansSums ExecutorGroup::add_up(const DealtRows& rows, uint32_t clusters, const float* centroids) {
    std::vector<KmeansSums> of_parts(rows.parts.size());
    workers_.run(rows.parts.size(), [&](size_t p, int) {
        const DealtRows::Part& part = rows.parts[p];
        if (!part.rows) return;
        of_parts[p] = part.owner->run(
            [&] { return part.owner->executor->kmeans_sums(*part.rows, clusters, centroids); });
    });
    KmeansSums all;
    all.sums.resize(size_t{clusters} * rows.dims);
    all.sizes.resize(clusters);
    for (const KmeansSums& part : of_parts) {
        for (size_t i = 0; i < part.sums.size(); ++i) all.sums[i] += part.sums[i];
        for (size_t c = 0; c < part.sizes.size(); ++c) all.sizes[c] += part.sizes[c];
        all.error += part.error;
    }
    return all;
}

double ExecutorGroup::kmeans_step(Dataset& data, uint32_t clusters, float* centroids) {
    const auto* rows = dynamic_cast<DealtRows*>(&data);
    if (!rows) return ForwardingExecutor::kmeans_step(data, clusters, centroids);
    const KmeansSums all = add_up(*rows, clusters, centroids);
    const uint32_t dims = rows->dims;
    std::vector<float> moved(centroids, centroids + size_t{clusters} * dims);
    bool empty = false;
    for (size_t c = 0; c < clusters; ++c) {
        empty |= all.sizes[c] == 0;
        for (uint32_t d = 0; d < dims && all.sizes[c] > 0; ++d)
            moved[c * dims + d] =
                static_cast<float>(all.sums[c * dims + d] / static_cast<double>(all.sizes[c]));
    }
    if (empty) fill_clusters(*rows, clusters, centroids, moved.data());
    std::copy(moved.begin(), moved.end(), centroids);
    return all.error / static_cast<double>(rows->count);
}

// Empty clusters get a part of the largest one, in the order of all rows: as on one device.
void ExecutorGroup::fill_clusters(const DealtRows& rows, uint32_t clusters, const float* before,
                                  float* centroids) {
    std::vector<uint32_t> nearest(rows.count);
    assign_dealt(rows, clusters, before, nearest.data());
    const Groups groups(nearest, clusters);
    const auto fetch = [&](std::span<const uint32_t> numbers, float* out) {
        rows.gather(numbers, out);
    };
    fill_empty_fetching(groups, fetch, rows.dims, centroids);
}

void ExecutorGroup::assign(Dataset& data, uint32_t clusters, const float* centroids,
                           uint32_t* nearest) {
    if (const auto* rows = dynamic_cast<DealtRows*>(&data))
        assign_dealt(*rows, clusters, centroids, nearest);
    else
        ForwardingExecutor::assign(data, clusters, centroids, nearest);
}

void ExecutorGroup::assign_dealt(const DealtRows& rows, uint32_t clusters, const float* centroids,
                                 uint32_t* nearest) {
    std::vector<std::vector<uint32_t>> of_parts(rows.parts.size());
    workers_.run(rows.parts.size(), [&](size_t p, int) {
        const DealtRows::Part& part = rows.parts[p];
        of_parts[p].resize(part.count);
        if (!part.rows) return;
        part.owner->run([&] {
            part.owner->executor->assign(*part.rows, clusters, centroids, of_parts[p].data());
        });
    });
    for (const Run& run : rows.runs)
        std::copy_n(of_parts[run.member].data() + run.member_first, run.count, nearest + run.first);
}

}  // namespace

std::string name_of_group(const std::vector<std::string>& names) {
    const bool same = std::all_of(names.begin(), names.end(),
                                  [&](const std::string& name) { return name == names.front(); });
    if (same) return std::to_string(names.size()) + " x " + names.front();
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return all;
}

std::unique_ptr<Executor> make_executor_group(std::vector<std::unique_ptr<Executor>> members) {
    if (members.empty()) throw std::logic_error("a group has a member");
    return std::make_unique<ExecutorGroup>(std::move(members));
}

}  // namespace pgwarp
