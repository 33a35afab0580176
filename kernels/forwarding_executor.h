// An executor that forwards all work to another. Executors that wrap one derive from it and
// override what they do differently, so that a new operation of Executor is added here, and not in
// each.
#pragma once

#include "kernels/executor.h"

#include <functional>
#include <memory>

namespace pgwarp {

class ForwardingExecutor : public Executor {
  public:
    explicit ForwardingExecutor(std::unique_ptr<Executor> executor);
    ~ForwardingExecutor() override;

    const char* name() const noexcept override { return executor_->name(); }
    bool failed() const noexcept override { return executor_->failed(); }
    size_t most_in_flight() const noexcept override { return executor_->most_in_flight(); }
    std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) override;
    void kmeans_start(Dataset& rows, uint32_t clusters, uint64_t seed, float* centroids) override;
    double kmeans_step(Dataset& rows, uint32_t clusters, float* centroids) override;
    KmeansSums kmeans_sums(Dataset& rows, uint32_t clusters, const float* centroids) override;
    void gather(Dataset& rows, std::span<const uint32_t> numbers, float* out) override;
    void assign(Dataset& rows, uint32_t clusters, const float* centroids,
                uint32_t* nearest) override;
    void keep_first(Dataset& rows, size_t count) override;
    void make_residuals(Dataset& rows, uint32_t clusters, const float* centroids,
                        const Parents& parents = {}) override;
    void rotate_rows(Dataset& rows, const Rotation& rotation) override;
    double variance(const FirstRows& rows) override;
    void codebook_start(Dataset& residuals, const QuantizerShape& shape, uint64_t seed,
                        float* codebook) override;
    double codebook_step(Dataset& residuals, const QuantizerShape& shape, float* codebook) override;
    void principal_directions(const FirstRows& rows, uint32_t to, float* matrix) override;
    void rotation_start(const FirstRows& residuals, const QuantizerShape& shape, uint64_t seed,
                        float* matrix, float* codebook) override;
    double rotation_step(const FirstRows& residuals, const QuantizerShape& shape, float* matrix,
                         float* codebook) override;
    void rotate(const Rotation& rotation, const float* rows, size_t count, float* out) override;
    double additive_step(Dataset& residuals, const AdditiveStep& step) override;
    void encode_residuals(const FirstRows& residuals, const Quantizer& quantizer,
                          uint8_t* codes) override;
    double code_error(const FirstRows& residuals, const QuantizerShape& shape,
                      const float* codebook, const uint8_t* codes) override;
    void encode(const Quantizer& quantizer, const Encoding& encoding) override;
    void exact_search(const ExactSearch& search) override;
    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override;
    std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows,
                                                  RowElements elements) override;
    void register_memory(void* memory, size_t bytes) noexcept override {
        executor_->register_memory(memory, bytes);
    }
    void unregister_memory(void* memory) noexcept override { executor_->unregister_memory(memory); }

  protected:
    using Work = std::function<void(Executor& executor)>;
    // Every operation calls it once. An override may do more before and after `work`, or repeat it
    // on another executor.
    virtual void run(const Work& work) { work(*executor_); }
    // What `executor` made of rows that this executor's caller calls `rows`. An override of take()
    // that returns a Dataset of its own needs one of this, too.
    virtual Dataset& dataset_of(Executor& /*executor*/, Dataset& rows) { return rows; }

    const std::unique_ptr<Executor> executor_;

  private:
    template <typename OnRows>
    void run_on(Dataset& rows, OnRows&& work);
    template <typename OnRows>
    void run_on(const FirstRows& rows, OnRows&& work);
};

}  // namespace pgwarp
