#include "kernels/host_device.h"

#include <chrono>
#include <thread>

namespace pgwarp {

namespace {

// Counts what its stores hold, so that a budget binds as on a device.
class HostDevice final : public Device {
  public:
    HostDevice(int threads, size_t budget) : threads_(threads), budget_(budget) {}

    const char* name() const noexcept override { return "host"; }
    DeviceMemoryUse memory() const noexcept override { return {used_, used_, budget_}; }
    std::unique_ptr<Executor> make_executor() override {
        return make_cpu_executor(threads_, nullptr);
    }
    std::unique_ptr<ListStore> make_list_store(const Quantizer& quantizer) override {
        return std::make_unique<Store>(*this, quantizer);
    }

  private:
    class Store final : public ListStore {
      public:
        Store(HostDevice& device, const Quantizer& quantizer)
            : device_(device),
              store_(make_cpu_list_store(quantizer, device.threads_, nullptr)),
              entry_bytes_(quantizer.shape.m + sizeof(float) + sizeof(uint64_t)) {}
        ~Store() override { device_.used_ -= store_->bytes(); }
        void put(uint32_t list, std::span<const ListPage> pages) override {
            const size_t before = store_->bytes();
            size_t wanted = 0;
            for (const ListPage& page : pages) wanted += page.count * entry_bytes_;
            if (device_.used_ + wanted > device_.budget_)
                throw OutOfDeviceMemory(wanted, device_.used_, device_.budget_);
            store_->put(list, pages);
            device_.used_ += store_->bytes() - before;
        }
        void drop(uint32_t list) override {
            const size_t before = store_->bytes();
            store_->drop(list);
            device_.used_ -= before - store_->bytes();
        }
        bool holds(uint32_t list) const noexcept override { return store_->holds(list); }
        size_t bytes() const noexcept override { return store_->bytes(); }
        std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override {
            return store_->make_batch(shape);
        }
        void start(ListBatch& batch, size_t queries) override { store_->start(batch, queries); }
        bool done(ListBatch& batch) override { return store_->done(batch); }
        void wait(ListBatch& batch) override { store_->wait(batch); }

      private:
        HostDevice& device_;
        std::unique_ptr<ListStore> store_;
        size_t entry_bytes_;
    };

    int threads_;
    size_t budget_;
    size_t used_ = 0;
};

class FailingStore final : public ListStore {
  public:
    FailingStore(std::unique_ptr<ListStore> store, const volatile int* fault)
        : store_(std::move(store)), fault_(fault) {}

    void put(uint32_t list, std::span<const ListPage> pages) override {
        if (fault() == Fault::out_of_memory) throw OutOfDeviceMemory(1, 1, 1);
        store_->put(list, pages);
    }
    void drop(uint32_t list) override { store_->drop(list); }
    bool holds(uint32_t list) const noexcept override { return store_->holds(list); }
    size_t bytes() const noexcept override { return store_->bytes(); }
    std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override {
        return store_->make_batch(shape);
    }
    void start(ListBatch& batch, size_t queries) override {
        if (fault() == Fault::out_of_memory) throw OutOfDeviceMemory(1, 1, 1);
        store_->start(batch, queries);
    }
    bool done(ListBatch& batch) override { return store_->done(batch); }
    void wait(ListBatch& batch) override {
        store_->wait(batch);
        switch (fault()) {
            case Fault::failed:
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
                break;
        }
    }

  private:
    Fault fault() const { return static_cast<Fault>(*fault_); }

    std::unique_ptr<ListStore> store_;
    const volatile int* fault_;
};

class FailingDevice final : public Device {
  public:
    FailingDevice(std::unique_ptr<Device> device, const volatile int* fault)
        : device_(std::move(device)), fault_(fault) {}
    const char* name() const noexcept override { return device_->name(); }
    DeviceMemoryUse memory() const noexcept override { return device_->memory(); }
    std::unique_ptr<Executor> make_executor() override { return device_->make_executor(); }
    std::unique_ptr<ListStore> make_list_store(const Quantizer& quantizer) override {
        return std::make_unique<FailingStore>(device_->make_list_store(quantizer), fault_);
    }

  private:
    std::unique_ptr<Device> device_;
    const volatile int* fault_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(int threads, size_t memory_budget) {
    return std::make_unique<HostDevice>(threads, memory_budget);
}

std::unique_ptr<Device> make_failing_device(std::unique_ptr<Device> device,
                                            const volatile int* fault) {
    return std::make_unique<FailingDevice>(std::move(device), fault);
}

}  // namespace pgwarp
