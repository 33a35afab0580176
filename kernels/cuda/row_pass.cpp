// Three streams: rows come, are worked on, and what came of them goes. Rows are gathered in one of
// two buffers until there are enough to search at once; with a caller who wants the nearest after
// every block, a buffer has one.

#include "kernels/cuda/row_pass.h"

#include "kernels/cuda/assign.h"
#include "kernels/cuda/encode.h"
#include "kernels/cuda/exact_search.h"
#include "kernels/cuda/stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

namespace pgwarp::gpu {

namespace {

// Rows whose products with the centroids are made at once.
constexpr size_t most_tile_rows = 32768;
// Rows to search at a time: a tile of products is as wide, so that selections are begun seldom.
constexpr size_t gathered_rows = exact_tile_rows;

class CudaRowPass final : public RowPass {
  public:
    CudaRowPass(const Context& context, Uploader& uploader, const RowPassInput& input);
    ~CudaRowPass() override {
        cudaStreamSynchronize(copies_);
        cudaStreamSynchronize(stream_);
        cudaStreamSynchronize(answers_);
    }

    void start(const float* rows, const uint64_t* ids, size_t count) override;
    PassedBlock finish() override;
    void nearest(Neighbor* out) override;

  private:
    // Everything about a block under way.
    struct Slot {
        size_t count = 0;
        Buffer<uint32_t> lists;
        Buffer<uint8_t> codes;
        Buffer<float> offsets;
        PinnedBuffer<uint32_t> host_lists;
        PinnedBuffer<uint8_t> host_codes;
        PinnedBuffer<float> host_offsets;
        PinnedBuffer<Neighbor> host_nearest;
        Event worked, answered;
    };
    struct Gathered {
        Buffer<float> rows;
        Buffer<uint64_t> ids;
        size_t count = 0;
        Event searched;  // and free again
    };

    void encode(Slot& slot, const float* rows);
    void search_gathered();
    bool encodes() const { return model_.has_value(); }
    bool searches() const { return search_.has_value(); }

    const Context& context_;
    Uploader& uploader_;
    const uint32_t dims_;
    const size_t block_rows_;
    const bool tell_nearest_;
    const size_t results_;
    Stream copies_, stream_, answers_;
    Blas blas_;
    Event filled_;

    std::optional<Model> model_;
    std::optional<CentroidMatrix> centroids_;
    std::optional<Encoder> encoder_;
    ProductTile tile_;
    size_t tile_rows_ = 0;

    Buffer<float> queries_;
    std::optional<RunningSearch> search_;

    std::array<Gathered, 2> gathered_;
    size_t gathering_ = 0;
    std::array<Slot, most_under_way> slots_;
    size_t started_ = 0, finished_ = 0;
};

CudaRowPass::CudaRowPass(const Context& context, Uploader& uploader, const RowPassInput& input)
    : context_(context),
      uploader_(uploader),
      dims_(input.dims),
      block_rows_(std::max<size_t>(input.block_rows, 1)),
      tell_nearest_(input.tell_nearest),
      results_(input.query_count * input.k),
      blas_(stream_) {
    DeviceMemory& memory = context.memory;
    const size_t gather = input.query_count == 0 || tell_nearest_
                              ? block_rows_
                              : std::max(block_rows_, gathered_rows);
    for (Gathered& gathered : gathered_) {
        gathered.rows = Buffer<float>(memory, gather * dims_);
        gathered.ids = Buffer<uint64_t>(memory, gather);
    }
    if (input.query_count > 0) {
        queries_ = Buffer<float>(memory, input.query_count * dims_);
        uploader.upload(queries_.data(), input.queries, queries_.size(), stream_);
        search_.emplace(context, blas_, stream_,
                        RunningSearch::Shape{queries_.data(), input.query_count, dims_,
                                             input.metric, input.k, gather});
        if (tell_nearest_)
            for (Slot& slot : slots_) slot.host_nearest.grow(results_);
    }
    if (input.quantizer) {
        const QuantizerShape& shape = input.quantizer->shape;
        model_.emplace(context, stream_, *input.quantizer);
        centroids_.emplace(context, stream_, model_->view().centroids, shape.lists, shape.dims,
                           Origin::centroids);
        encoder_.emplace(context, stream_, blas_, *model_);
        tile_rows_ =
            std::min({most_tile_rows, block_rows_,
                      CentroidMatrix::tile_rows(shape.lists, shape.dims, context.scratch() / 2)});
        for (Slot& slot : slots_) {
            slot.lists = Buffer<uint32_t>(memory, block_rows_);
            slot.codes = Buffer<uint8_t>(memory, block_rows_ * shape.m);
            slot.offsets = Buffer<float>(memory, block_rows_);
            slot.host_lists.grow(block_rows_);
            slot.host_codes.grow(block_rows_ * shape.m);
            slot.host_offsets.grow(block_rows_);
        }
    }
    // Models are read from the caller's memory in the stream's order.
    stream_.synchronize();
}

void CudaRowPass::encode(Slot& slot, const float* rows) {
    const uint32_t m = model_->view().shape.m;
    for (size_t first = 0; first < slot.count; first += tile_rows_) {
        const size_t count = std::min(tile_rows_, slot.count - first);
        const float* chunk = rows + first * dims_;
        centroids_->multiply(blas_, stream_, {chunk, count, dims_, dims_}, tile_);
        encoder_->encode({chunk, count, &tile_, &*centroids_, slot.lists + first,
                          slot.codes + first * m, slot.offsets + first});
    }
}

// What has been gathered is searched; the other buffer gathers from here on.
void CudaRowPass::search_gathered() {
    Gathered& gathered = gathered_[gathering_];
    if (searches()) search_->add(gathered.rows.data(), gathered.ids.data(), gathered.count);
    gathered.searched.record(stream_);
    gathered.count = 0;
    gathering_ = (gathering_ + 1) % gathered_.size();
    copies_.wait(gathered_[gathering_].searched);
}

void CudaRowPass::start(const float* rows, const uint64_t* ids, size_t count) {
    context_.use();
    context_.check_interrupt();
    if (started_ - finished_ == most_under_way) throw std::logic_error("too many blocks under way");
    if (count > block_rows_) throw std::invalid_argument("block is too large");
    if (gathered_[gathering_].count + count > gathered_[gathering_].ids.size()) search_gathered();
    Gathered& gathered = gathered_[gathering_];
    Slot& slot = slots_[started_ % slots_.size()];
    slot.count = count;
    float* to = gathered.rows + gathered.count * dims_;
    uploader_.upload(to, rows, count * dims_, copies_);
    if (searches()) uploader_.upload(gathered.ids + gathered.count, ids, count, copies_);
    filled_.record(copies_);
    stream_.wait(filled_);
    gathered.count += count;
    if (encodes()) encode(slot, to);
    if (tell_nearest_ && searches()) search_gathered();
    if (!encodes() && !tell_nearest_) {
        // Nothing to tell but that the block has been read.
        slot.answered.record(copies_);
        ++started_;
        return;
    }
    slot.worked.record(stream_);
    answers_.wait(slot.worked);
    if (encodes()) {
        copy_async(slot.host_lists.data(), slot.lists.data(), count, answers_);
        copy_async(slot.host_codes.data(), slot.codes.data(), count * model_->view().shape.m,
                   answers_);
        copy_async(slot.host_offsets.data(), slot.offsets.data(), count, answers_);
    }
    if (tell_nearest_ && searches())
        copy_async(slot.host_nearest.data(), search_->nearest(), results_, answers_);
    slot.answered.record(answers_);
    // The next search writes where this is read from.
    if (tell_nearest_ && searches()) stream_.wait(slot.answered);
    ++started_;
}

PassedBlock CudaRowPass::finish() {
    context_.use();
    if (started_ == finished_) throw std::logic_error("no block is under way");
    Slot& slot = slots_[finished_ % slots_.size()];
    slot.answered.synchronize();
    ++finished_;
    PassedBlock passed;
    passed.count = slot.count;
    if (encodes()) {
        passed.lists = slot.host_lists.data();
        passed.codes = slot.host_codes.data();
        passed.offsets = slot.host_offsets.data();
    }
    if (tell_nearest_ && searches()) passed.nearest = slot.host_nearest.data();
    return passed;
}

void CudaRowPass::nearest(Neighbor* out) {
    context_.use();
    if (!searches()) return;
    search_gathered();
    copy_async(out, search_->nearest(), results_, stream_);
    stream_.synchronize();
}

}  // namespace

std::unique_ptr<RowPass> make_row_pass(const Context& context, Uploader& uploader,
                                       const RowPassInput& input) {
    context.use();
    return std::make_unique<CudaRowPass>(context, uploader, input);
}

}  // namespace pgwarp::gpu
