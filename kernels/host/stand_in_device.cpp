#include "kernels/stand_in_device.h"

#include "kernels/forwarding_executor.h"
#include "kernels/forwarding_graph_builder.h"
#include "kernels/refinement.h"
#include "kernels/row_pass.h"

#include <algorithm>
#include <deque>
#include <vector>

#include <malloc.h>

namespace pgwarp {

namespace {

// Counts the memory of the device's objects, so that a budget binds as on a device.
class StandInMemory {
  public:
    StandInMemory(size_t budget, MemoryCharge* charge) : budget_(budget), charge_(charge) {}

    void take(size_t bytes) {
        if (charge_ ? !charge_->take(bytes, budget_) : bytes > budget_ - std::min(used_, budget_))
            throw OutOfDeviceMemory(bytes, charge_ ? charge_->taken() : used_, budget_);
        used_ += bytes;
        reserved_ = std::max(reserved_, used_);
    }
    void give(size_t bytes) noexcept {
        used_ -= bytes;
        if (charge_) charge_->give(bytes);
    }
    // For callers that know their size only afterwards; nothing is charged.
    void check(size_t bytes) const {
        if (bytes > budget_ - std::min(used_, budget_))
            throw OutOfDeviceMemory(bytes, used_, budget_);
    }
    void change(size_t before, size_t after) noexcept {
        used_ = used_ - before + after;
        reserved_ = std::max(reserved_, used_);
    }
    size_t available() const noexcept {
        return charge_ ? charge_->room(budget_) : budget_ - std::min(used_, budget_);
    }
    DeviceMemoryUse use() const noexcept { return {used_, reserved_, reserved_ - used_, budget_}; }
    // The C library keeps part of the freed memory.
    void trim(size_t keep) noexcept {
#ifdef __GLIBC__
        malloc_trim(keep);
#endif
        reserved_ = used_ + std::min(keep, reserved_ - used_);
    }

  private:
    size_t budget_;
    MemoryCharge* charge_;
    size_t used_ = 0;
    size_t reserved_ = 0;  // peak of used_ since the last trim()
};

class StandInBlock {
  public:
    StandInBlock(StandInMemory& memory, size_t bytes) : memory_(memory), bytes_(bytes) {
        memory_.take(bytes);
    }
    ~StandInBlock() { memory_.give(bytes_); }
    StandInBlock(const StandInBlock&) = delete;
    StandInBlock& operator=(const StandInBlock&) = delete;

  private:
    StandInMemory& memory_;
    size_t bytes_;
};

// Owns a copy of the rows: the caller's stay unchanged.
class StandInRows final : public Dataset {
  public:
    StandInRows(StandInMemory& memory, Executor& executor, const float* rows, size_t count,
                uint32_t dims)
        : StandInRows(memory, executor, std::vector<float>(rows, rows + count * dims), dims) {}
    StandInRows(StandInMemory& memory, Executor& executor, std::vector<float> rows, uint32_t dims)
        : block_(memory, rows.size() * sizeof(float)),
          copy_(std::move(rows)),
          taken_(executor.take(copy_.data(), copy_.size() / dims, dims)) {}
    Dataset& taken() { return *taken_; }

  private:
    StandInBlock block_;
    std::vector<float> copy_;
    std::unique_ptr<Dataset> taken_;
};

class StandInRowsBuilder final : public DatasetBuilder {
  public:
    StandInRowsBuilder(StandInMemory& memory, Executor& executor, uint32_t dims, size_t most_rows,
                       RowElements elements)
        : memory_(memory),
          executor_(executor),
          dims_(dims),
          most_rows_(most_rows),
          elements_(elements) {}
    void add(uint64_t position, const void* rows, size_t count) override {
        if (count > most_rows_ - count_) throw std::length_error("more rows than were said");
        blocks_.emplace_back(memory_, count * dims_ * sizeof(float));
        const float* floats = widened(elements_, rows, count * dims_, widened_);
        parts_.push_back({position, std::vector<float>(floats, floats + count * dims_)});
        count_ += count;
    }
    size_t count() const noexcept override { return count_; }
    std::unique_ptr<Dataset> finish() override {
        std::sort(parts_.begin(), parts_.end(),
                  [](const Part& a, const Part& b) { return a.position < b.position; });
        std::vector<float> rows;
        rows.reserve(count_ * dims_);
        for (const Part& part : parts_) rows.insert(rows.end(), part.rows.begin(), part.rows.end());
        parts_.clear();
        blocks_.clear();
        return std::make_unique<StandInRows>(memory_, executor_, std::move(rows), dims_);
    }

  private:
    struct Part {
        uint64_t position;
        std::vector<float> rows;
    };
    StandInMemory& memory_;
    Executor& executor_;
    uint32_t dims_;
    size_t most_rows_;
    RowElements elements_;
    std::vector<float> widened_;
    size_t count_ = 0;
    std::deque<StandInBlock> blocks_;
    std::vector<Part> parts_;
};

class StandInExecutor final : public ForwardingExecutor {
  public:
    StandInExecutor(StandInMemory& memory, int threads, const Interrupts& interrupts)
        : ForwardingExecutor(make_cpu_executor(threads, interrupts)),
          memory_(memory),
          searcher_(make_cpu_executor(threads, {})) {}

    const char* name() const noexcept override { return "host"; }
    std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) override {
        return std::make_unique<StandInRows>(memory_, *executor_, rows, count, dims);
    }
    // Without interrupts: on a device a search runs to its end once it has started.
    void exact_search(const ExactSearch& search) override { searcher_->exact_search(search); }
    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override {
        return make_plain_pass(*this, *this, input);
    }
    std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows,
                                                  RowElements elements) override {
        return std::make_unique<StandInRowsBuilder>(memory_, *executor_, dims, most_rows, elements);
    }

  protected:
    Dataset& dataset_of(Executor&, Dataset& rows) override {
        return static_cast<StandInRows&>(rows).taken();
    }

  private:
    StandInMemory& memory_;
    std::unique_ptr<Executor> searcher_;
};

// Works on a copy of the lists, and copies it back on success.
class StandInGraphBuilder final : public ForwardingGraphBuilder {
  public:
    StandInGraphBuilder(StandInMemory& memory, int threads, const Interrupts& interrupts)
        : ForwardingGraphBuilder(make_cpu_graph_builder(threads, interrupts)), memory_(memory) {}

    const char* name() const noexcept override { return "host"; }
    size_t most_rows(uint32_t dims, const DescentOptions& options) const noexcept override {
        return memory_.available() / (dims * sizeof(float) + options.degree * sizeof(Edge));
    }

  protected:
    DescentReport run(const Lists& lists, const Work& work) override {
        const StandInBlock block(memory_, lists.rows.count * lists.rows.dims * sizeof(float) +
                                              lists.size() * sizeof(Edge));
        std::vector<Edge> copy(lists.edges, lists.edges + lists.size());
        const DescentReport report = forward(work, copy.data());
        std::copy(copy.begin(), copy.end(), lists.edges);
        return report;
    }

  private:
    StandInMemory& memory_;
};

class StandInDevice final : public Device {
  public:
    StandInDevice(int threads, size_t budget, const Interrupts& interrupts, MemoryCharge* charge)
        : threads_(threads), memory_(budget, charge), interrupts_(interrupts) {}

    const char* name() const noexcept override { return "host"; }
    DeviceMemoryUse memory() const noexcept override { return memory_.use(); }
    void trim(size_t keep) noexcept override { memory_.trim(keep); }
    std::unique_ptr<Executor> make_executor() override {
        return std::make_unique<StandInExecutor>(memory_, threads_, interrupts_);
    }
    std::unique_ptr<GraphBuilder> make_graph_builder() override {
        return std::make_unique<StandInGraphBuilder>(memory_, threads_, interrupts_);
    }
    std::unique_ptr<ListStore> make_list_store(const Quantizer& quantizer,
                                               const AttributeLayout& attributes) override {
        return std::make_unique<Store>(*this, quantizer, attributes);
    }

  private:
    class Store final : public ListStore {
      public:
        Store(StandInDevice& device, const Quantizer& quantizer, const AttributeLayout& attributes)
            : device_(device),
              store_(make_cpu_list_store(quantizer, attributes, device.threads_, {})),
              entry_bytes_(quantizer.shape.m + attributes.entry_bytes() + sizeof(float) +
                           sizeof(uint64_t)),
              refinement_bytes_(refinement_stride(quantizer.shape.dims)) {}
        ~Store() override { device_.memory_.change(store_->bytes(), 0); }
        void put(uint32_t list, std::span<const ListPage> pages) override {
            within_budget(pages, [&] { store_->put(list, pages); });
        }
        void append(uint32_t list, std::span<const ListPage> pages) override {
            within_budget(pages, [&] { store_->append(list, pages); });
        }
        void drop(uint32_t list) override {
            const size_t before = store_->bytes();
            store_->drop(list);
            device_.memory_.change(before, store_->bytes());
        }
        bool holds(uint32_t list) const noexcept override { return store_->holds(list); }
        size_t bytes() const noexcept override { return store_->bytes(); }
        bool mixes_with(ListStore& other) noexcept override { return store_->mixes_with(other); }
        ListStore& inner() noexcept override { return store_->inner(); }
        std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override {
            return store_->make_batch(shape);
        }
        void start(ListBatch& batch, size_t queries) override { store_->start(batch, queries); }
        bool done(ListBatch& batch) override { return store_->done(batch); }
        void wait(ListBatch& batch) override { store_->wait(batch); }

      private:
        template <typename Change>
        void within_budget(std::span<const ListPage> pages, Change&& change) {
            const size_t before = store_->bytes();
            size_t wanted = 0;
            const size_t refinement = have_refinements(pages) ? refinement_bytes_ : 0;
            for (const ListPage& page : pages) wanted += page.count * (entry_bytes_ + refinement);
            device_.memory_.check(wanted);
            change();
            device_.memory_.change(before, store_->bytes());
        }

        StandInDevice& device_;
        std::unique_ptr<ListStore> store_;
        size_t entry_bytes_;
        size_t refinement_bytes_;
    };

    int threads_;
    StandInMemory memory_;
    Interrupts interrupts_;
};

}  // namespace

std::unique_ptr<Device> make_stand_in_device(int threads, size_t memory_budget,
                                             const Interrupts& interrupts, MemoryCharge* charge) {
    return std::make_unique<StandInDevice>(threads, memory_budget, interrupts, charge);
}

}  // namespace pgwarp
