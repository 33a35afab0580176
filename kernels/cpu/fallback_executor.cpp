#include "kernels/fallback_executor.h"

#include <algorithm>
#include <vector>

namespace pgwarp {

// The caller's rows, and what the executor of the time has made of them.
class FallbackExecutor::Rows final : public Dataset {
  public:
    Rows(float* rows, size_t count, uint32_t dims) : rows_(rows), count_(count), dims_(dims) {}

    // The data set of `executor`, which has not seen the rows yet where it is a new one.
    Dataset& on(Executor& executor) {
        if (executor_ != &executor) {
            taken_.reset();
            taken_ = executor.take(rows_, count_, dims_);
            if (!centroids_.empty())
                executor.make_residuals(*taken_, static_cast<uint32_t>(centroids_.size() / dims_),
                                        centroids_.data());
            executor_ = &executor;
        }
        return *taken_;
    }
    // A device makes residuals of its own copy: whoever comes after it has to do it again.
    void made_residuals(const float* centroids, uint32_t clusters) {
        centroids_.assign(centroids, centroids + size_t{clusters} * dims_);
    }

  private:
    float* rows_;
    size_t count_;
    uint32_t dims_;
    std::vector<float> centroids_;
    const Executor* executor_ = nullptr;
    std::unique_ptr<Dataset> taken_;
};

FallbackExecutor::FallbackExecutor(std::unique_ptr<Executor> device, MakeExecutor make_cpu,
                                   MakeExecutor make_searcher)
    : device_(std::move(device)),
      make_cpu_(std::move(make_cpu)),
      make_searcher_(std::move(make_searcher)) {}

FallbackExecutor::~FallbackExecutor() = default;

// work(executor), again on the CPU where the device cannot do it.
template <typename Work>
auto FallbackExecutor::run(Work&& work) {
    if (!cpu_) {
        try {
            return work(*device_);
        } catch (const DeviceFailure& failure) {
            failure_ = failure.what();
        } catch (const OutOfDeviceMemory& failure) {
            failure_ = failure.what();
        }
        searcher_ = make_searcher_();
        cpu_ = make_cpu_();
    }
    return work(*cpu_);
}

template <typename Work>
auto FallbackExecutor::run_on(Dataset& rows, Work&& work) {
    return run(
        [&](Executor& executor) { return work(executor, static_cast<Rows&>(rows).on(executor)); });
}

const char* FallbackExecutor::name() const noexcept {
    return cpu_ ? cpu_->name() : device_->name();
}

std::unique_ptr<Dataset> FallbackExecutor::take(float* rows, size_t count, uint32_t dims) {
    auto taken = std::make_unique<Rows>(rows, count, dims);
    run([&](Executor& executor) { taken->on(executor); });
    return taken;
}

void FallbackExecutor::kmeans_start(Dataset& rows, uint32_t clusters, uint64_t seed,
                                    float* centroids) {
    run_on(rows, [&](Executor& executor, Dataset& data) {
        executor.kmeans_start(data, clusters, seed, centroids);
    });
}

double FallbackExecutor::kmeans_step(Dataset& rows, uint32_t clusters, float* centroids) {
    return run_on(rows, [&](Executor& executor, Dataset& data) {
        return executor.kmeans_step(data, clusters, centroids);
    });
}

void FallbackExecutor::assign(Dataset& rows, uint32_t clusters, const float* centroids,
                              uint32_t* nearest) {
    run_on(rows, [&](Executor& executor, Dataset& data) {
        executor.assign(data, clusters, centroids, nearest);
    });
}

void FallbackExecutor::make_residuals(Dataset& rows, uint32_t clusters, const float* centroids) {
    run_on(rows, [&](Executor& executor, Dataset& data) {
        executor.make_residuals(data, clusters, centroids);
    });
    if (!cpu_) static_cast<Rows&>(rows).made_residuals(centroids, clusters);
}

void FallbackExecutor::codebook_start(Dataset& residuals, const QuantizerShape& shape,
                                      uint64_t seed, float* codebook) {
    run_on(residuals, [&](Executor& executor, Dataset& data) {
        executor.codebook_start(data, shape, seed, codebook);
    });
}

double FallbackExecutor::codebook_step(Dataset& residuals, const QuantizerShape& shape,
                                       float* codebook) {
    return run_on(residuals, [&](Executor& executor, Dataset& data) {
        return executor.codebook_step(data, shape, codebook);
    });
}

void FallbackExecutor::principal_directions(Dataset& rows, uint32_t to, float* matrix) {
    run_on(rows, [&](Executor& executor, Dataset& data) {
        executor.principal_directions(data, to, matrix);
    });
}

void FallbackExecutor::rotation_start(Dataset& residuals, const QuantizerShape& shape,
                                      float* matrix) {
    run_on(residuals, [&](Executor& executor, Dataset& data) {
        executor.rotation_start(data, shape, matrix);
    });
}

double FallbackExecutor::rotation_step(Dataset& residuals, const QuantizerShape& shape,
                                       float* matrix, float* codebook) {
    return run_on(residuals, [&](Executor& executor, Dataset& data) {
        return executor.rotation_step(data, shape, matrix, codebook);
    });
}

void FallbackExecutor::rotate(const Rotation& rotation, const float* rows, size_t count,
                              float* out) {
    run([&](Executor& executor) { executor.rotate(rotation, rows, count, out); });
}

double FallbackExecutor::additive_step(Dataset& residuals, const AdditiveStep& step) {
    return run_on(residuals, [&](Executor& executor, Dataset& data) {
        return executor.additive_step(data, step);
    });
}

void FallbackExecutor::encode(const Quantizer& quantizer, const Encoding& encoding) {
    run([&](Executor& executor) { executor.encode(quantizer, encoding); });
}

void FallbackExecutor::exact_search(const ExactSearch& search) {
    // A search that broke off may have written some of what it found.
    std::vector<Neighbor> before;
    if (!cpu_) before.assign(search.nearest, search.nearest + search.query_count * search.k);
    bool again = false;
    run([&](Executor& executor) {
        if (again) std::copy(before.begin(), before.end(), search.nearest);
        again = true;
        (cpu_ ? *searcher_ : executor).exact_search(search);
    });
}

}  // namespace pgwarp
