// The interface between PostgreSQL and the arithmetic: the heavy work of an executor, on the CPU or
// on a device. (A backend that answers one query from index pages calls list_scan.h itself.)
//
// Functions throw std::bad_alloc, Interrupted, or std::runtime_error with a message for users.
// After a throw outputs are unspecified unless stated otherwise, and the executor can be used
// again. One thread at a time uses an executor.
#pragma once

#include "kernels/common.h"
#include "kernels/interrupts.h"
#include "kernels/product_quantizer.h"
#include "kernels/quantizer.h"
#include "kernels/row_elements.h"

#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace pgwarp {

// Rows that an executor holds to work on several times. The CPU borrows the caller's memory.
class Dataset {
  public:
    virtual ~Dataset() = default;
};

// The first rows of a data set.
struct FirstRows {
    Dataset& rows;
    size_t count;  // at most as many as the data set has
};

class RowPass;
struct RowPassInput;

// Collects rows that come in parts, in any order, into one Dataset.
class DatasetBuilder {
  public:
    virtual ~DatasetBuilder() = default;
    // Of the elements that build_dataset() was given. The rows must stay unchanged until the next
    // add(), or finish(), has returned.
    virtual void add(uint64_t position, const void* rows, size_t count) = 0;
    virtual size_t count() const noexcept = 0;
    // Waits until the rows of all add() so far may change.
    virtual void wait() {}
    // In the order of positions, which are distinct. The builder cannot be used afterwards.
    virtual std::unique_ptr<Dataset> finish() = 0;
};

struct Neighbor {
    float distance;  // as the metric orders: squared L2, or the negative inner product
    uint64_t id;
};

// Exact search of a block of rows: merges its nearest into those found before.
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
    uint8_t* codes;   // (rows)(m): of the previous step, or of the start
};

// What the rows of one data set add to a Lloyd iteration, where others hold further rows.
struct KmeansSums {
    std::vector<double> sums;     // (clusters)(dims)
    std::vector<uint64_t> sizes;  // (clusters)
    double error = 0;             // sum of squared distances from the nearest centroids
};

// Blocks of rows that a pass of one device has in flight at most (row_pass.h).
inline constexpr size_t device_blocks_in_flight = 16;

class Executor {
  public:
    virtual ~Executor() = default;

    // For messages: "cpu", or the device's name.
    virtual const char* name() const noexcept = 0;
    // True: the device has failed, and the CPU does its work.
    virtual bool failed() const noexcept { return false; }
    // After a throw: leaves out devices that have failed. True: others are left, and the work can
    // start again. All passes and data sets must have ended.
    virtual bool drop_failed() noexcept { return false; }
    // Most blocks in flight of a pass that begins now.
    virtual size_t most_in_flight() const noexcept { return device_blocks_in_flight; }

    // `rows` is (count)(dims) and stays the caller's; only the executor may change it while the
    // Dataset lives.
    virtual std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) = 0;

    // The start of k-means: see kmeans_start() in kmeans.h.
    virtual void kmeans_start(Dataset& rows, uint32_t clusters, uint64_t seed,
                              float* centroids) = 0;

    // One Lloyd iteration; returns the mean squared distance before it. On a throw the centroids,
    // (clusters)(dims), are unchanged.
    virtual double kmeans_step(Dataset& rows, uint32_t clusters, float* centroids) = 0;

    // The sums by which kmeans_step() would move the centroids.
    virtual KmeansSums kmeans_sums(Dataset& rows, uint32_t clusters, const float* centroids);

    // Copies the rows of these numbers to `out`, (numbers.size())(dims).
    virtual void gather(Dataset& rows, std::span<const uint32_t> numbers, float* out);

    // The nearest centroid of every row: see assign_nearest() in kmeans.h.
    virtual void assign(Dataset& rows, uint32_t clusters, const float* centroids,
                        uint32_t* nearest) = 0;

    // Three functions change the rows of a data set. After Interrupted the same call must follow,
    // which continues the work, or the end of the data set. Any other exception of the last one
    // leaves rows that no call may use.

    // Drops all rows but the first `count`.
    virtual void keep_first(Dataset& rows, size_t count);

    // Replaces every row by its difference from its nearest centroid. On a throw the rows are
    // unchanged. Where centroids have parents, the nearest may be that of the nearest parents.
    virtual void make_residuals(Dataset& rows, uint32_t clusters, const float* centroids,
                                const Parents& parents = {}) = 0;

    // Rotates every row; rotation.from is the dimensions before, rotation.to those after.
    virtual void rotate_rows(Dataset& rows, const Rotation& rotation);

    // The mean squared distance of the rows from their mean; 0 without rows.
    virtual double variance(const FirstRows& rows);

    // The start of the codebook: see codebook_start() in product_quantizer.h.
    virtual void codebook_start(Dataset& residuals, const QuantizerShape& shape, uint64_t seed,
                                float* codebook) = 0;

    // One Lloyd iteration of all sub-quantizers over residuals; returns the mean squared error
    // before it. On a throw the codebook, (dims)(256), is unchanged.
    virtual double codebook_step(Dataset& residuals, const QuantizerShape& shape,
                                 float* codebook) = 0;

    // Rotations, see rotation.h; the residuals have `from` dimensions. The start also draws the
    // codebook, with `seed`, from the rotated residuals. An executor without rotations throws.
    virtual void principal_directions(const FirstRows& rows, uint32_t to, float* matrix);
    virtual void rotation_start(const FirstRows& residuals, const QuantizerShape& shape,
                                uint64_t seed, float* matrix, float* codebook);
    virtual double rotation_step(const FirstRows& residuals, const QuantizerShape& shape,
                                 float* matrix, float* codebook);
    virtual void rotate(const Rotation& rotation, const float* rows, size_t count, float* out);

    // One step of training an additive quantizer over residuals, see lsq.h: searches for codes and
    // fits the codebook to them. Returns the mean squared error before the fit. On a throw the
    // codebook is unchanged. An executor without additive quantizers throws.
    virtual double additive_step(Dataset& residuals, const AdditiveStep& step);

    // The codes, (count)(m), of residuals; rotates them first where the quantizer has a rotation.
    // Does not read the quantizer's centroids.
    virtual void encode_residuals(const FirstRows& residuals, const Quantizer& quantizer,
                                  uint8_t* codes);
    // The mean squared error of such codes, without the rotation.
    virtual double code_error(const FirstRows& residuals, const QuantizerShape& shape,
                              const float* codebook, const uint8_t* codes);

    // The rows are rotated already, where the quantizer has a rotation.
    virtual void encode(const Quantizer& quantizer, const Encoding& encoding) = 0;

    virtual void exact_search(const ExactSearch& search) = 0;

    // See row_pass.h. The executor outlives the pass.
    virtual std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) = 0;

    // Collects a data set in the executor's own memory, of at most `most_rows` rows.
    virtual std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows,
                                                          RowElements elements);

    // Pins host memory for repeated DMA, until unregister_memory(). Neither throws.
    virtual void register_memory(void*, size_t) noexcept {}
    virtual void unregister_memory(void*) noexcept {}
};

inline std::unique_ptr<DatasetBuilder> Executor::build_dataset(uint32_t, size_t, RowElements) {
    throw std::runtime_error("this executor has no data sets of its own");
}
inline KmeansSums Executor::kmeans_sums(Dataset&, uint32_t, const float*) {
    throw std::runtime_error("this executor has no sums of clusters");
}
inline void Executor::gather(Dataset&, std::span<const uint32_t>, float*) {
    throw std::runtime_error("this executor does not return rows");
}
inline void Executor::keep_first(Dataset&, size_t) {
    throw std::runtime_error("this executor does not drop rows");
}
inline void Executor::rotate_rows(Dataset&, const Rotation&) {
    throw std::runtime_error("this executor does not rotate");
}
inline double Executor::variance(const FirstRows&) {
    throw std::runtime_error("this executor does not measure a variance");
}
inline void Executor::principal_directions(const FirstRows&, uint32_t, float*) {
    throw std::runtime_error("this executor does not train rotations");
}
inline void Executor::rotation_start(const FirstRows&, const QuantizerShape&, uint64_t, float*,
                                     float*) {
    throw std::runtime_error("this executor does not train rotations");
}
inline double Executor::rotation_step(const FirstRows&, const QuantizerShape&, float*, float*) {
    throw std::runtime_error("this executor does not train rotations");
}
inline double Executor::additive_step(Dataset&, const AdditiveStep&) {
    throw std::runtime_error("this executor does not train additive quantizers");
}
inline void Executor::encode_residuals(const FirstRows&, const Quantizer&, uint8_t*) {
    throw std::runtime_error("this executor does not encode residuals");
}
inline double Executor::code_error(const FirstRows&, const QuantizerShape&, const float*,
                                   const uint8_t*) {
    throw std::runtime_error("this executor does not measure codes");
}
inline void Executor::rotate(const Rotation&, const float*, size_t, float*) {
    throw std::runtime_error("this executor does not rotate");
}

// Work ends with Interrupted once an interrupt is pending.
std::unique_ptr<Executor> make_cpu_executor(int threads, const Interrupts& interrupts);

}  // namespace pgwarp
