// The boundary between PostgreSQL and the arithmetic: what an executor does for heavy work, on the
// CPU or on a device. (A backend that answers one query from its pages calls list_scan.h itself.)
//
// Functions throw: std::bad_alloc, Interrupted, or std::runtime_error with a message for people.
// After a throw the outputs are unspecified except where it says otherwise, and the executor can be
// used again. An executor is used by one thread at a time.
#pragma once

#include "kernels/common.h"
#include "kernels/product_quantizer.h"
#include "kernels/quantizer.h"

#include <csignal>
#include <memory>
#include <stdexcept>

namespace pgwarp {

// Rows an executor has taken in, to work on several times. The CPU borrows the caller's memory.
class Dataset {
  public:
    virtual ~Dataset() = default;
};

class RowPass;
struct RowPassInput;

// Rows that come in parts, in any order, to become one Dataset.
class DatasetBuilder {
  public:
    virtual ~DatasetBuilder() = default;
    // The rows stay untouched until the next add(), or finish(), has returned.
    virtual void add(uint64_t position, const float* rows, size_t count) = 0;
    virtual size_t count() const noexcept = 0;
    // In the order of positions, each of which was given once. The builder is of no use afterwards.
    virtual std::unique_ptr<Dataset> finish() = 0;
};

struct Neighbor {
    float distance;  // as the metric orders: squared L2, or the negative inner product
    uint64_t id;
};

// Exact search of a block of rows: the nearest of it are merged into what was found before.
struct ExactSearch {
    const float* queries;  // (query_count)(dims)
    size_t query_count;
    const float* rows;  // (row_count)(dims)
    size_t row_count;
    const uint64_t* ids;  // (row_count)
    uint32_t dims;
    Metric metric;      // cosine: both sides normalised by the caller
    uint32_t k;         // at least 1
    Neighbor* nearest;  // (query_count)(k), sorted; start with distance = infinity
};

struct AdditiveStep {
    QuantizerShape shape;
    uint32_t step;  // of `steps`, from 0 on
    uint32_t steps;
    uint64_t seed;
    float* codebook;  // (m * dims)(256)
    uint8_t* codes;   // (rows)(m): of the step before, or of the start
};

class Executor {
  public:
    virtual ~Executor() = default;

    // For messages: "cpu", or the device's name.
    virtual const char* name() const noexcept = 0;

    // `rows` is (count)(dims) and stays the caller's, untouched by others while the Dataset lives.
    virtual std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) = 0;

    // The start of k-means: see kmeans_start() in kmeans.h.
    virtual void kmeans_start(Dataset& rows, uint32_t clusters, uint64_t seed,
                              float* centroids) = 0;

    // One Lloyd iteration; returns the mean squared distance before it. Where it throws, the
    // centroids, (clusters)(dims), are as they were.
    virtual double kmeans_step(Dataset& rows, uint32_t clusters, float* centroids) = 0;

    // The nearest centroid of every row: see assign_nearest() in kmeans.h.
    virtual void assign(Dataset& rows, uint32_t clusters, const float* centroids,
                        uint32_t* nearest) = 0;

    // Replaces every row by its difference from its nearest centroid. Where it throws, the rows
    // are as they were.
    virtual void make_residuals(Dataset& rows, uint32_t clusters, const float* centroids) = 0;

    // The start of the codebook: see codebook_start() in product_quantizer.h.
    virtual void codebook_start(Dataset& residuals, const QuantizerShape& shape, uint64_t seed,
                                float* codebook) = 0;

    // One Lloyd iteration of all sub-quantizers over residuals; returns the mean squared error
    // before it. Where it throws, the codebook, (dims)(256), is as it was.
    virtual double codebook_step(Dataset& residuals, const QuantizerShape& shape,
                                 float* codebook) = 0;

    // Rotations, see rotation.h; the residuals have `from` dimensions. An executor that has none
    // says so.
    virtual void principal_directions(Dataset& rows, uint32_t to, float* matrix);
    virtual void rotation_start(Dataset& residuals, const QuantizerShape& shape, float* matrix);
    virtual double rotation_step(Dataset& residuals, const QuantizerShape& shape, float* matrix,
                                 float* codebook);
    virtual void rotate(const Rotation& rotation, const float* rows, size_t count, float* out);

    // One step of training an additive quantizer over residuals, see lsq.h: codes are searched for,
    // and the codebook fitted to them. Returns the mean squared error before the fit. Where it
    // throws, the codebook is as it was. An executor that has none says so.
    virtual double additive_step(Dataset& residuals, const AdditiveStep& step);

    // Rows that are turned already, where the quantizer has a rotation.
    virtual void encode(const Quantizer& quantizer, const Encoding& encoding) = 0;

    virtual void exact_search(const ExactSearch& search) = 0;

    // See row_pass.h. The executor outlives the pass.
    virtual std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) = 0;

    // A data set that is the executor's own; at most so many rows will come.
    virtual std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows);

    // Rows will be read from this memory, again and again, until it is forgotten: a device reaches
    // memory faster that it knows. Neither throws.
    virtual void know_memory(void*, size_t) noexcept {}
    virtual void forget_memory(void*) noexcept {}
};

inline std::unique_ptr<DatasetBuilder> Executor::build_dataset(uint32_t, size_t) {
    throw std::runtime_error("this executor has no data sets of its own");
}
inline void Executor::principal_directions(Dataset&, uint32_t, float*) {
    throw std::runtime_error("this executor does not train rotations");
}
inline void Executor::rotation_start(Dataset&, const QuantizerShape&, float*) {
    throw std::runtime_error("this executor does not train rotations");
}
inline double Executor::rotation_step(Dataset&, const QuantizerShape&, float*, float*) {
    throw std::runtime_error("this executor does not train rotations");
}
inline double Executor::additive_step(Dataset&, const AdditiveStep&) {
    throw std::runtime_error("this executor does not train additive quantizers");
}
inline void Executor::rotate(const Rotation&, const float*, size_t, float*) {
    throw std::runtime_error("this executor does not rotate");
}

// The flags, where not null, are polled; once either is raised, work ends with Interrupted.
std::unique_ptr<Executor> make_cpu_executor(
    int threads, const volatile std::sig_atomic_t* interrupt,
    const volatile std::sig_atomic_t* other_interrupt = nullptr);

}  // namespace pgwarp
