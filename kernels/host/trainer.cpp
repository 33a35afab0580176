#include "kernels/trainer.h"

#include "kernels/additive.h"
#include "kernels/bfloat16.h"
#include "kernels/common/groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace pgwarp {

namespace {

constexpr int kmeans_iterations = 8;
constexpr int codebook_iterations = 8;
constexpr int rotation_iterations = 16;
constexpr uint32_t combined_rows = 64;  // of a matrix, in one step
// Rows of the sample that place a parent well; more of them would take most of the time.
constexpr size_t rows_per_parent = 256;

// Shares `lists` out to parents in proportion to their rows, at least one each.
std::vector<uint32_t> share_lists(const std::vector<size_t>& rows, uint32_t lists) {
    const size_t all = std::accumulate(rows.begin(), rows.end(), size_t{0});
    std::vector<uint32_t> first(rows.size() + 1);
    size_t before = 0;
    for (size_t p = 0; p < rows.size(); ++p) {
        before += rows[p];
        const auto end = static_cast<uint32_t>(
            static_cast<double>(lists) * static_cast<double>(before) / static_cast<double>(all));
        // One for this parent, and one for each that follows.
        const auto left = static_cast<uint32_t>(rows.size() - 1 - p);
        first[p + 1] = std::clamp(end, first[p] + 1, lists - left);
    }
    first.back() = lists;
    return first;
}

}  // namespace

// The constructor lists the steps; each is one function. A step that throws Interrupted is repeated
// whole: it changes its results last, or does one call that continues by itself.
class Trainer::Steps {
  public:
    Steps(Executor& executor, const TrainingInput& input, TrainingProgress progress);

    bool advance() {
        if (next_ < steps_.size()) {
            steps_[next_]();
            ++next_;
        }
        return next_ < steps_.size();
    }
    const TrainedModel& model() const { return model_; }

  private:
    using Step = std::function<void()>;

    void add(Step step) { steps_.push_back(std::move(step)); }
    void add_iterations(TrainingPhase phase, int iterations, size_t rows, Step iteration);
    void add_reduction();
    void reduce();
    void add_lists();
    void add_lists_of_parents();
    void add_residuals();
    void add_product_codes();
    void add_rotation();
    void add_combination();
    void add_additive_codes();
    void add_additive_start();

    std::vector<float> host_rows(const uint32_t* numbers, size_t count) const;
    void make_parents();
    void assign_parents();
    void make_lists_of(uint32_t parent);
    void round_lists_of_parents();
    void round_centroids();
    void rotate_centroids();
    void combine(uint32_t begin, uint32_t end);
    void finish(double error);
    void report(TrainingPhase phase, uint64_t done, uint64_t total) const {
        if (progress_) progress_(phase, done, total);
    }

    const QuantizerShape& shape() const { return input_.shape; }
    uint32_t dims() const { return input_.shape.dims; }
    bool reduces() const { return dims() < input_.dims; }
    size_t residual_count() const { return std::min(input_.count, input_.residual_rows); }
    FirstRows first_rows(size_t count) const { return {*rows_, std::min(input_.count, count)}; }
    double variance() const { return executor_.variance(first_rows(input_.variance_rows)); }
    float* centroids() { return model_.centroids.data(); }
    float* codebook() { return model_.codebook.data(); }

    Executor& executor_;
    const TrainingInput input_;
    const TrainingProgress progress_;
    std::vector<Step> steps_;
    size_t next_ = 0;

    TrainedModel model_;
    std::vector<float> reduced_;     // (count)(shape.dims), where parents need it
    std::unique_ptr<Dataset> rows_;  // the sample; later the residuals
    double variance_ = 0;            // of the table's vectors
    double dropped_ = 0;             // of it, by the reduction
    double spread_ = 0;              // mean squared distance of rows from their centroids
    double error_ = 0;               // of the last iteration
    std::vector<float> reduction_;   // (shape.dims)(dims)
    // Where lists have parents: the sample's rows by parent, and sums of squared distances of all
    // rows from their centroids, as these are and rounded.
    std::vector<size_t> rows_begin_;  // (parents + 1)
    std::vector<uint32_t> row_numbers_;
    std::vector<float> rounded_;  // (lists)(shape.dims)
    double squares_ = 0;
    double rounded_squares_ = 0;
    std::vector<float> rotation_;  // (shape.dims)(shape.dims)
    // Of an additive quantizer: the codebook it starts with, (shape.dims)(256), and the codes of
    // the residuals, (residual_count)(m).
    std::vector<float> pieces_;
    std::vector<uint8_t> codes_;
    uint32_t additive_steps_ = 0;
};

Trainer::Steps::Steps(Executor& executor, const TrainingInput& input, TrainingProgress progress)
    : executor_(executor), input_(input), progress_(std::move(progress)) {
    model_.centroids.resize(size_t{shape().lists} * dims());
    model_.codebook.resize(size_t{shape().codebook_rows()} * codewords);
    model_.training_rows = input.count;
    add([this] {
        report(TrainingPhase::lists, 0, 0);
        rows_ = executor_.take(input_.rows, input_.count, input_.dims);
    });
    add([this] { variance_ = variance(); });
    if (reduces()) add_reduction();
    if (input.parents > 0)
        add_lists_of_parents();
    else
        add_lists();
    add_residuals();
    if (shape().additive())
        add_additive_codes();
    else
        add_product_codes();
}

void Trainer::Steps::add_iterations(TrainingPhase phase, int iterations, size_t rows,
                                    Step iteration) {
    const uint64_t total = static_cast<uint64_t>(iterations) * rows;
    add([this, phase, total] { report(phase, 0, total); });
    const auto shared = std::make_shared<const Step>(std::move(iteration));
    for (int i = 1; i <= iterations; ++i)
        add([this, phase, total, shared, done = static_cast<uint64_t>(i) * rows] {
            (*shared)();
            report(phase, done, total);
        });
}

// Projects the rows onto their strongest principal directions.
void Trainer::Steps::add_reduction() {
    add([this] {
        reduction_.resize(size_t{dims()} * input_.dims);
        executor_.principal_directions(first_rows(input_.direction_rows), dims(),
                                       reduction_.data());
    });
    add([this] { reduce(); });
    add([this] { dropped_ = std::max(0.0, variance_ - variance()); });
}

void Trainer::Steps::reduce() {
    const Rotation reduction{input_.dims, dims(), reduction_.data()};
    if (input_.parents == 0) {
        executor_.rotate_rows(*rows_, reduction);
        return;
    }
    // Parts of the rows are wanted here, too: see host_rows().
    reduced_.resize(input_.count * dims());
    executor_.rotate(reduction, input_.rows, input_.count, reduced_.data());
    rows_ = executor_.take(reduced_.data(), input_.count, dims());
}

void Trainer::Steps::add_lists() {
    add([this] { executor_.kmeans_start(*rows_, shape().lists, input_.seed, centroids()); });
    add_iterations(TrainingPhase::lists, kmeans_iterations, input_.count,
                   [this] { spread_ = executor_.kmeans_step(*rows_, shape().lists, centroids()); });
    add([this] { round_centroids(); });
}

// The parents are clusters of some rows of the sample, and the lists of a parent are clusters of
// its rows alone: comparing all rows with all lists would take most of a day where these are many.
void Trainer::Steps::add_lists_of_parents() {
    add([this] { make_parents(); });
    add([this] { assign_parents(); });
    const uint64_t total = static_cast<uint64_t>(kmeans_iterations) * input_.count;
    add([this, total] { report(TrainingPhase::lists, 0, total); });
    for (uint32_t parent = 0; parent < input_.parents; ++parent)
        add([this, parent, total] {
            if (parent + 1 >= model_.parent_first.size()) return;  // it was left out
            make_lists_of(parent);
            report(TrainingPhase::lists, kmeans_iterations * rows_begin_[parent + 1], total);
        });
    add([this] { round_lists_of_parents(); });
}

// Copies of rows of the sample.
std::vector<float> Trainer::Steps::host_rows(const uint32_t* numbers, size_t count) const {
    const float* from = reduces() ? reduced_.data() : input_.rows;
    std::vector<float> rows(count * dims());
    for (size_t i = 0; i < count; ++i)
        std::copy_n(from + size_t{numbers[i]} * dims(), dims(), rows.data() + i * dims());
    return rows;
}

void Trainer::Steps::make_parents() {
    const uint32_t parents = std::min(input_.parents, shape().lists);
    std::vector<uint32_t> numbers(std::min(input_.count, rows_per_parent * parents));
    std::iota(numbers.begin(), numbers.end(), 0u);
    std::vector<float> copies = host_rows(numbers.data(), numbers.size());
    const auto rows = executor_.take(copies.data(), numbers.size(), dims());
    std::vector<float> made(size_t{parents} * dims());
    executor_.kmeans_start(*rows, parents, input_.seed, made.data());
    for (int i = 0; i < kmeans_iterations; ++i) executor_.kmeans_step(*rows, parents, made.data());
    model_.parent_centroids = std::move(made);
}

// Groups the sample by parent, and shares the lists out to the parents that have rows.
void Trainer::Steps::assign_parents() {
    const auto wanted = static_cast<uint32_t>(model_.parent_centroids.size() / dims());
    std::vector<uint32_t> nearest(input_.count);
    executor_.assign(*rows_, wanted, model_.parent_centroids.data(), nearest.data());
    const Groups groups(nearest, wanted);
    std::vector<float> kept;
    std::vector<size_t> sizes;
    rows_begin_.assign(1, 0);
    for (uint32_t p = 0; p < wanted; ++p) {
        if (groups.size(p) == 0) continue;
        const float* centroid = model_.parent_centroids.data() + size_t{p} * dims();
        kept.insert(kept.end(), centroid, centroid + dims());
        sizes.push_back(groups.size(p));
        rows_begin_.push_back(groups.begin[p + 1]);
    }
    row_numbers_ = groups.members;
    model_.parent_first = share_lists(sizes, shape().lists);
    model_.parent_centroids = std::move(kept);
    rounded_.resize(model_.centroids.size());
}

void Trainer::Steps::make_lists_of(uint32_t parent) {
    const size_t begin = rows_begin_[parent];
    const size_t count = rows_begin_[parent + 1] - begin;
    const size_t first = model_.parent_first[parent];
    const uint32_t lists = model_.parent_first[parent + 1] - model_.parent_first[parent];
    std::vector<float> copies = host_rows(row_numbers_.data() + begin, count);
    const auto rows = executor_.take(copies.data(), count, dims());
    std::vector<float> made(size_t{lists} * dims());
    executor_.kmeans_start(*rows, lists, input_.seed + parent, made.data());
    double spread = 0;
    for (int i = 0; i < kmeans_iterations; ++i)
        spread = executor_.kmeans_step(*rows, lists, made.data());
    std::vector<float> rounded = made;
    round_to_bfloat16(rounded.data(), rounded.size());
    std::vector<float> moved = rounded;
    const double rounded_spread = reduces() ? 0 : executor_.kmeans_step(*rows, lists, moved.data());
    std::copy(made.begin(), made.end(), model_.centroids.begin() + first * dims());
    std::copy(rounded.begin(), rounded.end(), rounded_.begin() + first * dims());
    squares_ += static_cast<double>(count) * spread;
    rounded_squares_ += static_cast<double>(count) * rounded_spread;
}

// As round_centroids().
void Trainer::Steps::round_lists_of_parents() {
    model_.wide = reduces() || rounded_squares_ > 1.01 * squares_;
    if (!model_.wide) {
        model_.centroids = std::move(rounded_);
        round_to_bfloat16(model_.parent_centroids.data(), model_.parent_centroids.size());
    }
    rounded_ = std::vector<float>();
    row_numbers_ = std::vector<uint32_t>();
}

void Trainer::Steps::round_centroids() {
    // Rounding a reduction would move all rows but no centroid: keep it in full precision.
    model_.wide = true;
    if (reduces()) return;
    std::vector<float> rounded = model_.centroids;
    round_to_bfloat16(rounded.data(), rounded.size());
    std::vector<float> moved = rounded;
    if (executor_.kmeans_step(*rows_, shape().lists, moved.data()) > 1.01 * spread_) return;
    model_.wide = false;
    model_.centroids = std::move(rounded);
}

void Trainer::Steps::add_residuals() {
    add([this] { executor_.keep_first(*rows_, residual_count()); });
    add([this] { executor_.make_residuals(*rows_, shape().lists, centroids(), model_.parents()); });
}

void Trainer::Steps::add_product_codes() {
    if (input_.rotate)
        add_rotation();
    else
        add([this] { executor_.codebook_start(*rows_, shape(), input_.seed, codebook()); });
    if (input_.rotate || reduces()) add_combination();
    add_iterations(TrainingPhase::codes, codebook_iterations, residual_count(),
                   [this] { error_ = executor_.codebook_step(*rows_, shape(), codebook()); });
    add([this] {
        rows_.reset();
        if (!model_.wide) round_to_bfloat16(codebook(), model_.codebook.size());
        finish(error_);
    });
}

// Trains a rotation for the residuals, and rotates them and the centroids. The codebook is left as
// of the last step.
void Trainer::Steps::add_rotation() {
    add([this] {
        rotation_.resize(size_t{dims()} * dims());
        executor_.rotation_start(first_rows(residual_count()), shape(), input_.seed,
                                 rotation_.data(), codebook());
    });
    add_iterations(TrainingPhase::codes, rotation_iterations, residual_count(), [this] {
        executor_.rotation_step(first_rows(residual_count()), shape(), rotation_.data(),
                                codebook());
    });
    add([this] {
        // Rows and queries will be rotated by the matrix that is stored: round it as stored.
        if (!model_.wide) round_to_bfloat16(rotation_.data(), rotation_.size());
    });
    add([this] { executor_.rotate_rows(*rows_, {dims(), dims(), rotation_.data()}); });
    add([this] { rotate_centroids(); });
}

void Trainer::Steps::rotate_centroids() {
    const auto rotate = [this](const std::vector<float>& rows) {
        std::vector<float> rotated(rows.size());
        if (rows.empty()) return rotated;
        executor_.rotate({dims(), dims(), rotation_.data()}, rows.data(), rows.size() / dims(),
                         rotated.data());
        if (!model_.wide) round_to_bfloat16(rotated.data(), rotated.size());
        return rotated;
    };
    std::vector<float> rotated = rotate(model_.centroids);
    model_.parent_centroids = rotate(model_.parent_centroids);
    model_.centroids = std::move(rotated);
}

// The matrix of the model: the rotation, the reduction, or one after the other.
void Trainer::Steps::add_combination() {
    if (!input_.rotate || !reduces()) {
        add([this] { model_.matrix = std::move(input_.rotate ? rotation_ : reduction_); });
        return;
    }
    add([this] { model_.matrix.resize(size_t{dims()} * input_.dims); });
    for (uint32_t begin = 0; begin < dims(); begin += combined_rows)
        add([this, begin] { combine(begin, std::min(dims(), begin + combined_rows)); });
}

// Rows of the product of the rotation and the reduction.
void Trainer::Steps::combine(uint32_t begin, uint32_t end) {
    const uint32_t from = input_.dims;
    for (uint32_t t = begin; t < end; ++t) {
        float* both = model_.matrix.data() + size_t{t} * from;
        std::fill_n(both, from, 0.0f);
        for (uint32_t k = 0; k < dims(); ++k)
            for (uint32_t f = 0; f < from; ++f)
                both[f] += rotation_[size_t{t} * dims() + k] * reduction_[size_t{k} * from + f];
    }
}

void Trainer::Steps::add_additive_codes() {
    if (reduces()) add_combination();
    add([this] { codes_.resize(residual_count() * shape().m); });
    add_additive_start();
    const uint32_t steps = lsq_iterations(residual_count());
    add_iterations(TrainingPhase::codes, static_cast<int>(steps), residual_count(), [this, steps] {
        executor_.additive_step(
            *rows_, {shape(), additive_steps_, steps, input_.seed, codebook(), codes_.data()});
        ++additive_steps_;
    });
    add([this] {
        if (!model_.wide) round_to_bfloat16(codebook(), model_.codebook.size());
    });
    // The error of codes found as for rows of the table.
    const size_t some = std::min(residual_count(), input_.error_rows);
    add([this, some] {
        executor_.encode_residuals(first_rows(some), {shape(), nullptr, codebook()}, codes_.data());
    });
    add([this, some] {
        const double error =
            executor_.code_error(first_rows(some), shape(), codebook(), codes_.data());
        rows_.reset();
        finish(error);
    });
}

// The first codebook and codes: those of a rotated product quantizer, with its codebook rotated
// back.
void Trainer::Steps::add_additive_start() {
    const QuantizerShape product{dims(), 1, shape().m, shape().metric};
    const size_t some = std::min(residual_count(), input_.rotation_rows);
    add([this, product, some] {
        rotation_.resize(size_t{dims()} * dims());
        pieces_.resize(size_t{dims()} * codewords);
        executor_.rotation_start(first_rows(some), product, input_.seed, rotation_.data(),
                                 pieces_.data());
    });
    add_iterations(TrainingPhase::codes, rotation_iterations, some, [this, product, some] {
        executor_.rotation_step(first_rows(some), product, rotation_.data(), pieces_.data());
    });
    add([this, product] {
        executor_.encode_residuals(
            first_rows(residual_count()),
            {product, nullptr, pieces_.data(), {dims(), dims(), rotation_.data()}}, codes_.data());
    });
    add([this] {
        additive_start(shape(), rotation_.data(), pieces_.data(), codebook());
        rotation_ = std::vector<float>();
        pieces_ = std::vector<float>();
    });
}

void Trainer::Steps::finish(double error) {
    model_.quantization_error = variance_ > 0 ? (error + dropped_) / variance_ : 0;
}

Trainer::Trainer(Executor& executor, const TrainingInput& input, TrainingProgress progress)
    : steps_(std::make_unique<Steps>(executor, input, std::move(progress))) {}

Trainer::~Trainer() = default;

bool Trainer::advance() {
    return steps_->advance();
}

const TrainedModel& Trainer::model() const {
    return steps_->model();
}

}  // namespace pgwarp
