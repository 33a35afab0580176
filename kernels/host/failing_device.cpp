#include "kernels/failing_device.h"

#include "kernels/forwarding_executor.h"
#include "kernels/forwarding_graph_builder.h"
#include "kernels/row_pass.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

namespace pgwarp {

namespace {

void fail(Fault fault) {
    switch (fault) {
        case Fault::failed:
        case Fault::late:
            throw DeviceFailure("a failure on purpose", false);
        case Fault::lost:
            throw DeviceFailure("a loss on purpose", true);
        case Fault::unknown:
            throw 1;
        case Fault::slow:
            std::this_thread::sleep_for(std::chrono::seconds(1));
            break;
        case Fault::hung:
            while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
        case Fault::none:
        case Fault::out_of_memory:
        case Fault::no_host_memory:
        case Fault::slow_large:
        case Fault::slow_put:
            break;
    }
}

// Faults that occur before work begins.
void fail_for_memory(Fault fault) {
    if (fault == Fault::out_of_memory) throw OutOfDeviceMemory(1, 1, 1);
    if (fault == Fault::no_host_memory) throw OutOfHostMemory(1);
}

class FailingStore final : public ListStore {
  public:
    FailingStore(std::unique_ptr<ListStore> store, const volatile int* fault)
        : store_(std::move(store)), fault_(fault) {}

    void put(uint32_t list, std::span<const ListPage> pages) override {
        fail_for_memory(fault());
        if (fault() == Fault::slow_put) std::this_thread::sleep_for(std::chrono::seconds(1));
        store_->put(list, pages);
    }
    void append(uint32_t list, std::span<const ListPage> pages) override {
        fail_for_memory(fault());
        store_->append(list, pages);
    }
    void drop(uint32_t list) override { store_->drop(list); }
    bool holds(uint32_t list) const noexcept override { return store_->holds(list); }
    size_t bytes() const noexcept override { return store_->bytes(); }
    bool mixes_with(ListStore& other) noexcept override { return store_->mixes_with(other); }
    ListStore& inner() noexcept override { return store_->inner(); }
    std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override {
        return store_->make_batch(shape);
    }
    void start(ListBatch& batch, size_t queries) override {
        fail_for_memory(fault());
        store_->start(batch, queries);
        const bool large = std::any_of(batch.wanted, batch.wanted + queries,
                                       [](const ListQuery& wanted) { return wanted.k > 1000; });
        if (fault() == Fault::slow || (fault() == Fault::slow_large && large))
            slow_until_[&batch] = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    }
    bool done(ListBatch& batch) override {
        const auto slow = slow_until_.find(&batch);
        if (slow != slow_until_.end() && std::chrono::steady_clock::now() < slow->second)
            return false;
        return store_->done(batch);
    }
    void wait(ListBatch& batch) override {
        const auto slow = slow_until_.find(&batch);
        if (slow != slow_until_.end()) {
            std::this_thread::sleep_until(slow->second);
            slow_until_.erase(slow);
        }
        store_->wait(batch);
        if (fault() != Fault::slow) fail(fault());
    }

  private:
    Fault fault() const { return static_cast<Fault>(*fault_); }

    std::map<const ListBatch*, std::chrono::steady_clock::time_point> slow_until_;

    std::unique_ptr<ListStore> store_;
    const volatile int* fault_;
};

// Counts calls of an executor and of its passes; the first good_calls succeed.
class Failures {
  public:
    Failures(const volatile int* fault, int good_calls) : fault_(fault), good_calls_(good_calls) {}
    // The fault of the call that begins; none for the first good_calls.
    Fault next() { return calls_++ < good_calls_ ? Fault::none : static_cast<Fault>(*fault_); }
    void before_call() {
        const Fault fault = next();
        fail_for_memory(fault);
        if (fault != Fault::late) fail(fault);
    }
    void after_call() const {
        if (calls_ > good_calls_ && static_cast<Fault>(*fault_) == Fault::late) fail(Fault::late);
    }

  private:
    const volatile int* fault_;
    int good_calls_;
    int calls_ = 0;
};

class FailingPass final : public RowPass {
  public:
    FailingPass(std::unique_ptr<RowPass> pass, std::shared_ptr<Failures> failures)
        : pass_(std::move(pass)), failures_(std::move(failures)) {}
    void start(const void* rows, const uint64_t* ids, size_t count) override {
        failures_->before_call();
        pass_->start(rows, ids, count);
    }
    PassedBlock finish() override {
        failures_->before_call();
        const PassedBlock passed = pass_->finish();
        failures_->after_call();
        return passed;
    }
    void nearest(Neighbor* out) override {
        failures_->before_call();
        pass_->nearest(out);
    }

  private:
    std::unique_ptr<RowPass> pass_;
    std::shared_ptr<Failures> failures_;
};

class FailingBuilder final : public DatasetBuilder {
  public:
    FailingBuilder(std::unique_ptr<DatasetBuilder> builder, std::shared_ptr<Failures> failures)
        : builder_(std::move(builder)), failures_(std::move(failures)) {}
    void add(uint64_t position, const void* rows, size_t count) override {
        failures_->before_call();
        builder_->add(position, rows, count);
    }
    size_t count() const noexcept override { return builder_->count(); }
    void wait() override { builder_->wait(); }
    std::unique_ptr<Dataset> finish() override {
        failures_->before_call();
        return builder_->finish();
    }

  private:
    std::unique_ptr<DatasetBuilder> builder_;
    std::shared_ptr<Failures> failures_;
};

class FailingExecutor final : public ForwardingExecutor {
  public:
    FailingExecutor(std::unique_ptr<Executor> executor, const volatile int* fault, int good_calls)
        : ForwardingExecutor(std::move(executor)),
          failures_(std::make_shared<Failures>(fault, good_calls)) {}

    void exact_search(const ExactSearch& search) override {
        ForwardingExecutor::exact_search(search);
        failures_->after_call();
    }
    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override {
        return std::make_unique<FailingPass>(ForwardingExecutor::begin_pass(input), failures_);
    }
    std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows,
                                                  RowElements elements) override {
        return std::make_unique<FailingBuilder>(
            ForwardingExecutor::build_dataset(dims, most_rows, elements), failures_);
    }

  protected:
    void run(const Work& work) override {
        failures_->before_call();
        work(*executor_);
    }

  private:
    std::shared_ptr<Failures> failures_;
};

class FailingGraphBuilder final : public ForwardingGraphBuilder {
  public:
    FailingGraphBuilder(std::unique_ptr<GraphBuilder> builder, const volatile int* fault,
                        int good_calls)
        : ForwardingGraphBuilder(std::move(builder)), failures_(fault, good_calls) {}

  protected:
    DescentReport run(const Lists& lists, const Work& work) override {
        const Fault fault = failures_.next();
        fail_for_memory(fault);
        if (fault == Fault::late) {
            // Does all the work, then discards it.
            std::vector<Edge> copy(lists.edges, lists.edges + lists.size());
            forward(work, copy.data());
        }
        fail(fault);
        return forward(work, lists.edges);
    }

  private:
    Failures failures_;
};

class FailingDevice final : public Device {
  public:
    FailingDevice(std::unique_ptr<Device> device, const volatile int* fault, int good_calls)
        : device_(std::move(device)), fault_(fault), good_calls_(good_calls) {}
    const char* name() const noexcept override { return device_->name(); }
    DeviceMemoryUse memory() const noexcept override { return device_->memory(); }
    int numa_node() const noexcept override { return device_->numa_node(); }
    bool takes_turns() const noexcept override { return device_->takes_turns(); }
    void trim(size_t keep) noexcept override { device_->trim(keep); }
    std::unique_ptr<Executor> make_executor() override {
        if (good_calls_ == 0 && static_cast<Fault>(*fault_) == Fault::lost) fail(Fault::lost);
        return std::make_unique<FailingExecutor>(device_->make_executor(), fault_, good_calls_);
    }
    std::unique_ptr<GraphBuilder> make_graph_builder() override {
        if (good_calls_ == 0 && static_cast<Fault>(*fault_) == Fault::lost) fail(Fault::lost);
        return std::make_unique<FailingGraphBuilder>(device_->make_graph_builder(), fault_,
                                                     good_calls_);
    }
    size_t store_bytes(const QuantizerShape& shape) const noexcept override {
        return device_->store_bytes(shape);
    }
    std::unique_ptr<ListStore> make_list_store(const Quantizer& quantizer,
                                               const AttributeLayout& attributes) override {
        return std::make_unique<FailingStore>(device_->make_list_store(quantizer, attributes),
                                              fault_);
    }

  private:
    std::unique_ptr<Device> device_;
    const volatile int* fault_;
    int good_calls_;
};

}  // namespace

std::unique_ptr<Device> make_failing_device(std::unique_ptr<Device> device,
                                            const volatile int* fault, int good_calls) {
    return std::make_unique<FailingDevice>(std::move(device), fault, good_calls);
}

}  // namespace pgwarp
