// An executor on a device that falls back to the CPU when the device fails.
#pragma once

#include "kernels/device.h"
#include "kernels/executor.h"

#include <functional>
#include <memory>
#include <string>

namespace pgwarp {

// Works on `device` until it fails or runs out of memory. Then the call is repeated, and all later
// ones run, on the executor that `make_cpu` makes; searches run on the one that `make_searcher`
// makes (an interrupted search cannot be restarted). The failure is not thrown; failure() returns
// it.
class FallbackExecutor final : public Executor {
  public:
    using MakeExecutor = std::function<std::unique_ptr<Executor>()>;
    FallbackExecutor(std::unique_ptr<Executor> device, MakeExecutor make_cpu,
                     MakeExecutor make_searcher);
    ~FallbackExecutor() override;

    // Empty while the device works.
    const std::string& failure() const noexcept { return failure_; }

    const char* name() const noexcept override;
    std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) override;
    void kmeans_start(Dataset& rows, uint32_t clusters, uint64_t seed, float* centroids) override;
    double kmeans_step(Dataset& rows, uint32_t clusters, float* centroids) override;
    void assign(Dataset& rows, uint32_t clusters, const float* centroids,
                uint32_t* nearest) override;
    void make_residuals(Dataset& rows, uint32_t clusters, const float* centroids) override;
    void codebook_start(Dataset& residuals, const QuantizerShape& shape, uint64_t seed,
                        float* codebook) override;
    double codebook_step(Dataset& residuals, const QuantizerShape& shape, float* codebook) override;
    void principal_directions(Dataset& rows, uint32_t to, float* matrix) override;
    void rotation_start(Dataset& residuals, const QuantizerShape& shape, float* matrix) override;
    double rotation_step(Dataset& residuals, const QuantizerShape& shape, float* matrix,
                         float* codebook) override;
    void rotate(const Rotation& rotation, const float* rows, size_t count, float* out) override;
    double additive_step(Dataset& residuals, const AdditiveStep& step) override;
    void encode(const Quantizer& quantizer, const Encoding& encoding) override;
    void exact_search(const ExactSearch& search) override;
    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override;
    void know_memory(void* memory, size_t bytes) noexcept override {
        device_->know_memory(memory, bytes);
    }
    void forget_memory(void* memory) noexcept override { device_->forget_memory(memory); }

  private:
    class Rows;
    class Pass;
    void give_up(const char* failure);
    template <typename Work>
    auto run(Work&& work);
    template <typename Work>
    auto run_on(Dataset& rows, Work&& work);

    std::unique_ptr<Executor> device_;
    MakeExecutor make_cpu_;
    MakeExecutor make_searcher_;
    std::unique_ptr<Executor> cpu_;  // set once the device has failed
    std::unique_ptr<Executor> searcher_;
    std::string failure_;
};

}  // namespace pgwarp
