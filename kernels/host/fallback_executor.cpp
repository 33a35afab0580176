#include "kernels/fallback_executor.h"

#include "kernels/row_pass.h"
#include "kernels/common/table_rows.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

namespace pgwarp {

// The caller's rows, and the data set that the current executor made of them. A device changes its
// own copy: the executor that replaces it takes the rows and repeats the changes.
class FallbackExecutor::Rows final : public Dataset {
  public:
    Rows(float* rows, size_t count, uint32_t dims)
        : rows_(rows), count_(count), dims_(dims), changed_dims_(dims) {}

    // Returns the data set of `executor`. After Interrupted the next call goes on.
    Dataset& on(Executor& executor) {
        if (executor_ != &executor) {
            taken_.reset();
            taken_ = executor.take(rows_, count_, dims_);
            executor_ = &executor;
            repeated_ = 0;
        }
        for (; repeated_ < changes_.size(); ++repeated_) changes_[repeated_](executor, *taken_);
        return *taken_;
    }
    // Adds a change that the current executor has made.
    void changed(Change change) {
        changes_.push_back(std::move(change));
        repeated_ = changes_.size();
    }
    uint32_t dims() const { return changed_dims_; }
    void set_dims(uint32_t dims) { changed_dims_ = dims; }

  private:
    float* rows_;
    size_t count_;
    uint32_t dims_;                // of the caller's rows
    uint32_t changed_dims_;        // after all changes
    std::vector<Change> changes_;  // made by the device, in their order
    size_t repeated_ = 0;          // of them, by the current executor
    const Executor* executor_ = nullptr;
    std::unique_ptr<Dataset> taken_;
};

FallbackExecutor::FallbackExecutor(std::unique_ptr<Executor> device, MakeExecutor make_cpu,
                                   MakeExecutor make_searcher)
    : ForwardingExecutor(std::move(device)),
      make_cpu_(std::move(make_cpu)),
      make_searcher_(std::move(make_searcher)) {}

FallbackExecutor::~FallbackExecutor() = default;

template <typename Function>
bool FallbackExecutor::on_device(Function&& function) {
    return !cpu_ && ran_on_device(function, [&](const char* failure) { give_up(failure); });
}

// Repeats `work` on the CPU where the device fails.
void FallbackExecutor::run(const Work& work) {
    if (!on_device([&] { work(*executor_); })) work(*cpu_);
}

Dataset& FallbackExecutor::dataset_of(Executor& executor, Dataset& rows) {
    return static_cast<Rows&>(rows).on(executor);
}

void FallbackExecutor::give_up(const char* failure) {
    failure_ = failure;
    searcher_ = make_searcher_();
    cpu_ = make_cpu_();
}

// Copies the nearest found with every block, because a device that fails loses them. Keeps the
// blocks in progress, to repeat them on the CPU.
class FallbackExecutor::Pass final : public RowPass {
  public:
    Pass(FallbackExecutor& owner, const RowPassInput& input)
        : owner_(owner),
          input_(input),
          nearest_(input.nearest_count(), {std::numeric_limits<float>::infinity(), 0}) {
        input_.report_nearest = true;
        if (input.quantizer) {
            quantizer_ = QuantizerCopy(*input.quantizer);
            input_.quantizer = &quantizer_.get();
        }
        on_device([&] { pass_ = owner_.executor_->begin_pass(input_); });
    }

    void start(const void* rows, const uint64_t* ids, size_t count) override {
        if (blocks_.size() == max_in_flight) throw std::logic_error("too many blocks under way");
        on_device([&] { pass_->start(rows, ids, count); });
        blocks_.push_back({rows, ids, count});
    }

    PassedBlock finish() override {
        if (blocks_.empty()) throw std::logic_error("no block is under way");
        PassedBlock passed;
        if (!on_device([&] {
                passed = pass_->finish();
                // Blocks that were searched together come with the same rows.
                if (!passed.nearest || passed.searched_blocks == searched_) return;
                std::copy_n(passed.nearest, nearest_.size(), nearest_.begin());
                searched_ = passed.searched_blocks;
            }))
            passed = finish_on_cpu(blocks_.front());
        blocks_.pop_front();
        ++finished_;
        passed.nearest = nearest_.data();
        passed.searched_blocks = std::max(searched_, finished_);
        return passed;
    }

    void nearest(Neighbor* out) override { std::copy(nearest_.begin(), nearest_.end(), out); }

  private:
    struct Block {
        const void* rows;
        const uint64_t* ids;
        size_t count;
    };

    // False once the device has failed.
    template <typename Work>
    bool on_device(Work&& work) {
        if (owner_.on_device(work)) return true;
        pass_.reset();
        return false;
    }

    PassedBlock finish_on_cpu(const Block& block) {
        PassedBlock passed;
        passed.count = block.count;
        const float* rows =
            widened(input_.elements, block.rows, block.count * input_.dims, widened_);
        if (input_.quantizer) {
            lists_.resize(input_.block_rows);
            codes_.resize(input_.block_rows * quantizer_.get().shape.m);
            offsets_.resize(input_.block_rows);
            encode_table_rows(*owner_.cpu_, quantizer_.get(),
                              {rows, block.count, lists_.data(), codes_.data(), offsets_.data()},
                              rotated_);
            passed.lists = lists_.data();
            passed.codes = codes_.data();
            passed.offsets = offsets_.data();
        }
        // The device may have searched this block before it failed.
        if (input_.query_count > 0 && finished_ >= searched_)
            search_block(*owner_.searcher_, input_, rows, block.ids, block.count, &nearest_);
        return passed;
    }

    FallbackExecutor& owner_;
    RowPassInput input_;
    QuantizerCopy quantizer_;
    std::vector<float> rotated_, widened_;
    std::unique_ptr<RowPass> pass_;  // the device's; null once it has failed
    std::deque<Block> blocks_;
    std::vector<Neighbor> nearest_;  // of the first `searched_` blocks, and the CPU's since
    size_t searched_ = 0, finished_ = 0;
    std::vector<uint32_t> lists_;
    std::vector<uint8_t> codes_;
    std::vector<float> offsets_;
};

std::unique_ptr<RowPass> FallbackExecutor::begin_pass(const RowPassInput& input) {
    return std::make_unique<Pass>(*this, input);
}

const char* FallbackExecutor::name() const noexcept {
    return cpu_ ? cpu_->name() : executor_->name();
}

std::unique_ptr<Dataset> FallbackExecutor::take(float* rows, size_t count, uint32_t dims) {
    auto taken = std::make_unique<Rows>(rows, count, dims);
    run([&](Executor& executor) { taken->on(executor); });
    return taken;
}

// Runs work that changes rows. It owns what it needs: where the device fails later, the CPU runs it
// again.
void FallbackExecutor::change(Dataset& rows, Change work) {
    run([&](Executor& executor) { work(executor, dataset_of(executor, rows)); });
    if (!cpu_) static_cast<Rows&>(rows).changed(std::move(work));
}

void FallbackExecutor::keep_first(Dataset& rows, size_t count) {
    change(rows, [count](Executor& executor, Dataset& data) { executor.keep_first(data, count); });
}

void FallbackExecutor::make_residuals(Dataset& rows, uint32_t clusters, const float* centroids,
                                      const Parents& parents) {
    const size_t dims = static_cast<Rows&>(rows).dims();
    const uint32_t* ends = parents.first + (parents.count > 0 ? parents.count + 1 : 0);
    change(rows, [clusters, count = parents.count,
                  copy = std::vector<float>(centroids, centroids + clusters * dims),
                  first = std::vector<uint32_t>(parents.first, ends),
                  of_parents = std::vector<float>(parents.centroids,
                                                  parents.centroids + parents.count * dims)](
                     Executor& executor, Dataset& data) {
        executor.make_residuals(data, clusters, copy.data(),
                                {count, of_parents.data(), first.data()});
    });
}

void FallbackExecutor::rotate_rows(Dataset& rows, const Rotation& rotation) {
    const size_t floats = size_t{rotation.to} * rotation.from;
    change(rows, [from = rotation.from, to = rotation.to,
                  matrix = std::vector<float>(rotation.matrix, rotation.matrix + floats)](
                     Executor& executor, Dataset& data) {
        executor.rotate_rows(data, {from, to, matrix.data()});
    });
    static_cast<Rows&>(rows).set_dims(rotation.to);
}

std::unique_ptr<DatasetBuilder> FallbackExecutor::build_dataset(uint32_t dims, size_t most_rows,
                                                                RowElements elements) {
    return Executor::build_dataset(dims, most_rows, elements);
}

void FallbackExecutor::exact_search(const ExactSearch& search) {
    // An interrupted search may have written part of its results.
    std::vector<Neighbor> before;
    if (!cpu_) before.assign(search.nearest, search.nearest + search.query_count * search.k);
    bool again = false;
    run([&](Executor& executor) {
        if (again) std::copy(before.begin(), before.end(), search.nearest);
        again = true;
        (cpu_ ? *searcher_ : executor).exact_search(search);
    });
}

namespace {

// Does its work on another, which outlives it.
class BorrowedExecutor final : public ForwardingExecutor {
  public:
    explicit BorrowedExecutor(Executor& lender) : ForwardingExecutor(nullptr), lender_(lender) {}

    const char* name() const noexcept override { return lender_.name(); }
    bool failed() const noexcept override { return lender_.failed(); }
    size_t most_in_flight() const noexcept override { return lender_.most_in_flight(); }
    void register_memory(void* memory, size_t bytes) noexcept override {
        lender_.register_memory(memory, bytes);
    }
    void unregister_memory(void* memory) noexcept override { lender_.unregister_memory(memory); }

  protected:
    void run(const Work& work) override { work(lender_); }

  private:
    Executor& lender_;
};

}  // namespace

std::vector<FallbackExecutor*> fall_back_to_each_other(
    std::vector<std::unique_ptr<Executor>>& devices) {
    const auto all = std::make_shared<std::vector<FallbackExecutor*>>();
    for (size_t i = 0; i < devices.size(); ++i) {
        const auto next = [all, i]() -> std::unique_ptr<Executor> {
            for (size_t j = 1; j < all->size(); ++j) {
                FallbackExecutor& other = *(*all)[(i + j) % all->size()];
                if (!other.failed()) return std::make_unique<BorrowedExecutor>(other);
            }
            throw DeviceFailure((*all)[i]->failure(), false);
        };
        auto fallback = std::make_unique<FallbackExecutor>(std::move(devices[i]), next, next);
        all->push_back(fallback.get());
        devices[i] = std::move(fallback);
    }
    return *all;
}

}  // namespace pgwarp
