// An executor on a device that falls back to the CPU, or to another device, when the device fails.
#pragma once

#include "kernels/device.h"
#include "kernels/forwarding_executor.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pgwarp {

// Works on `device` until it fails or runs out of memory. Then the call is repeated, and all later
// ones run, on the executor that `make_cpu` makes; searches run on the one that `make_searcher`
// makes (an interrupted search cannot be restarted). The failure is not thrown; failure() returns
// it. Where these functions throw, their exception is.
class FallbackExecutor final : public ForwardingExecutor {
  public:
    using MakeExecutor = std::function<std::unique_ptr<Executor>()>;
    FallbackExecutor(std::unique_ptr<Executor> device, MakeExecutor make_cpu,
                     MakeExecutor make_searcher);
    ~FallbackExecutor() override;

    // Empty while the device works.
    const std::string& failure() const noexcept { return failure_; }

    const char* name() const noexcept override;
    bool failed() const noexcept override { return cpu_ != nullptr; }
    std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) override;
    void keep_first(Dataset& rows, size_t count) override;
    void make_residuals(Dataset& rows, uint32_t clusters, const float* centroids,
                        const Parents& parents = {}) override;
    void rotate_rows(Dataset& rows, const Rotation& rotation) override;
    void exact_search(const ExactSearch& search) override;
    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override;
    // Throws: rows that only the device has are lost with it.
    std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows,
                                                  RowElements elements) override;

  protected:
    void run(const Work& work) override;
    Dataset& dataset_of(Executor& executor, Dataset& rows) override;

  private:
    class Rows;
    class Pass;
    using Change = std::function<void(Executor& executor, Dataset& rows)>;
    void change(Dataset& rows, Change work);
    void give_up(const char* failure);
    // False once the device has failed.
    template <typename Function>
    bool on_device(Function&& function);

    MakeExecutor make_cpu_;
    MakeExecutor make_searcher_;
    std::unique_ptr<Executor> cpu_;  // set once the device, which is executor_, has failed
    std::unique_ptr<Executor> searcher_;
    std::string failure_;
};

// Puts fallbacks in the place of the executors of several devices: each falls back to the next one
// that works, and never to the CPU. Where none is left, the failure is thrown. They end together.
std::vector<FallbackExecutor*> fall_back_to_each_other(
    std::vector<std::unique_ptr<Executor>>& devices);

}  // namespace pgwarp
