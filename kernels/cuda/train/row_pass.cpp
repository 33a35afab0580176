// There are two kinds of passes. EncodingPass works in batches: it gathers blocks on the device
// until they can keep it busy, encodes and searches them together, and downloads the results while
// the next batch is gathered. It has three streams: for uploads, kernels, and downloads.
//
// SearchingPass, usually with many queries, only searches. It gathers as many rows as memory holds,
// all of them where they fit, and then searches them at once: a selection has a high fixed cost.

#include "kernels/cuda/train/row_pass.h"

#include "kernels/cuda/products/assign.h"
#include "kernels/cuda/train/encode.h"
#include "kernels/cuda/products/exact_search.h"
#include "kernels/cuda/products/parent_tiles.h"
#include "kernels/cuda/products/running_search.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/base/widen.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace pgwarp::gpu {

namespace {

// An encoder's thread block takes 128 rows, and a multiprocessor holds up to five thread blocks.
constexpr size_t batch_rows = 24576;
// Where lists have parents: rows are sorted by them, and should fill whole tiles. But half of the
// blocks under way stay for the batch that is gathered meanwhile.
constexpr size_t batch_rows_with_parents = 262144;
size_t batch_rows_for(size_t block_rows) {
    return std::clamp(RowPass::max_in_flight / 2 * block_rows, batch_rows, batch_rows_with_parents);
}
// The most rows whose products with the centroids are computed at once.
constexpr size_t max_tile_rows = 32768;

void check_start(size_t in_flight, size_t count, size_t block_rows) {
    if (in_flight == RowPass::max_in_flight) throw std::logic_error("too many blocks under way");
    if (count > block_rows) throw std::invalid_argument("block is too large");
}

// Each parent's lists, and its rows, are padded to whole tiles: parents of few lists would take
// more memory and time than all lists do.
bool takes_parents(const Context& context, const Quantizer& quantizer) {
    constexpr uint32_t least_lists = 32;
    return quantizer.parents.count > 0 &&
           quantizer.shape.lists / quantizer.parents.count >= least_lists &&
           fits_tiles(context, quantizer.shape.dims);
}

class EncodingPass final : public RowPass {
  public:
    EncodingPass(const Context& context, Uploader& uploader, const RowPassInput& input);
    ~EncodingPass() override {
        cudaStreamSynchronize(copies_);
        cudaStreamSynchronize(stream_);
        cudaStreamSynchronize(answers_);
    }

    void start(const void* rows, const uint64_t* ids, size_t count) override;
    PassedBlock finish() override;
    void nearest(Neighbor* out) override;

  private:
    struct Batch {
        Buffer<float> rows;
        Buffer<uint64_t> ids;
        Buffer<uint32_t> lists;
        Buffer<uint8_t> codes;
        Buffer<float> offsets;
        PinnedBuffer<uint32_t> host_lists;
        PinnedBuffer<uint8_t> host_codes;
        PinnedBuffer<float> host_offsets;
        PinnedBuffer<Neighbor> host_nearest;
        size_t count = 0;            // rows
        size_t searched_blocks = 0;  // blocks of the pass searched up to this batch; set at launch
        bool launched = false;
        Event filled, worked, answered;
    };
    struct Block {
        size_t batch, first, count;
    };

    void launch_batch();
    bool searches() const { return search_.has_value(); }
    void copy_nearest(Neighbor* to, cudaStream_t stream);

    const Context& context_;
    Uploader& uploader_;
    RowUpload upload_;  // on copies_
    const uint32_t dims_;
    const size_t block_rows_;
    const size_t room_;  // rows of a batch
    const bool report_nearest_;
    const size_t results_, wide_results_;
    Stream copies_, stream_, answers_;
    Blas blas_;

    std::optional<Model> model_;
    std::optional<CentroidMatrix> centroids_;  // where lists have no parents, or rows are long
    std::optional<ParentTiles> parents_;       // where not
    std::optional<Encoder> encoder_;
    ProductTile tile_;
    size_t tile_rows_ = 0;

    Buffer<float> queries_;
    std::optional<RunningSearch> search_, wide_search_;
    bool shares_pairs_ = false;

    std::vector<Batch> batches_;
    size_t gathering_ = 0;  // the batch that start() adds blocks to
    std::deque<Block> in_flight_;
    size_t started_ = 0;
};

EncodingPass::EncodingPass(const Context& context, Uploader& uploader, const RowPassInput& input)
    : context_(context),
      uploader_(uploader),
      upload_(context.memory, uploader, input.elements),
      dims_(input.dims),
      block_rows_(std::max<size_t>(input.block_rows, 1)),
      room_(std::max(block_rows_, takes_parents(context, *input.quantizer)
                                      ? batch_rows_for(block_rows_)
                                      : batch_rows)),
      report_nearest_(input.report_nearest && input.query_count > 0),
      results_(input.query_count * input.k),
      wide_results_(input.wide_count * input.wide_k),
      blas_(stream_) {
    DeviceMemory& memory = context.memory;
    const QuantizerShape& shape = input.quantizer->shape;
    model_.emplace(context, stream_, *input.quantizer);
    if (takes_parents(context, *input.quantizer))
        parents_.emplace(context, blas_, stream_, model_->view().centroids, *input.quantizer);
    else
        centroids_.emplace(context, stream_, model_->view().centroids, shape.lists, shape.dims,
                           Origin::centroids, Wanted::nearest);
    encoder_.emplace(context, stream_, blas_, *model_, room_);
    if (input.query_count > 0) {
        queries_ = Buffer<float>(memory, input.query_count * dims_);
        uploader.upload(queries_.data(), input.queries, queries_.size(), stream_);
        // The search reuses the rows that find_nearest() has split (ProductTile::pairs).
        const bool splits = parents_ || centroids_->splits_rows();
        shares_pairs_ = splits && has_norms(input.metric);
        const float* origin = parents_ ? parents_->origin() : centroids_->origin();
        const auto begin = [&](std::optional<RunningSearch>& search, size_t queries, uint32_t k) {
            search.emplace(context, blas_, stream_,
                           RunningSearch::Shape{queries_.data(), queries, dims_, input.metric, k,
                                                room_, shares_pairs_ ? origin : nullptr});
        };
        begin(search_, input.query_count, input.k);
        if (input.wide_count > 0) begin(wide_search_, input.wide_count, input.wide_k);
    }
    tile_rows_ = room_;
    if (centroids_ && !centroids_->splits_rows())
        tile_rows_ =
            std::min({max_tile_rows, room_,
                      CentroidMatrix::tile_rows(shape.lists, shape.dims, context.scratch() / 2)});
    // Enough batches for all blocks in flight, however they are aligned, and one to gather into.
    const size_t blocks_of_batch = room_ / block_rows_;
    const size_t count = (max_in_flight + blocks_of_batch - 1) / blocks_of_batch + 2;
    for (size_t i = 0; i < count; ++i) {
        Batch& batch = batches_.emplace_back();
        batch.rows = Buffer<float>(memory, room_ * dims_);
        batch.ids = Buffer<uint64_t>(memory, room_);
        batch.lists = Buffer<uint32_t>(memory, room_);
        batch.codes = Buffer<uint8_t>(memory, room_ * shape.m);
        batch.offsets = Buffer<float>(memory, room_);
        batch.host_lists.grow(room_);
        batch.host_codes.grow(room_ * shape.m);
        batch.host_offsets.grow(room_);
        if (report_nearest_) batch.host_nearest.grow(results_ + wide_results_);
    }
    upload_.reserve(block_rows_ * dims_);
    // The stream copies the model from the caller's memory: wait until it has.
    stream_.synchronize();
}

void EncodingPass::start(const void* rows, const uint64_t* ids, size_t count) {
    context_.use();
    context_.check_interrupt();
    check_start(in_flight_.size(), count, block_rows_);
    if (batches_[gathering_].count + count > room_) launch_batch();
    Batch& batch = batches_[gathering_];
    upload_.upload(batch.rows + batch.count * dims_, rows, count * dims_, copies_);
    if (searches()) uploader_.upload(batch.ids + batch.count, ids, count, copies_);
    in_flight_.push_back({gathering_, batch.count, count});
    batch.count += count;
    ++started_;
}

// Launches the work on the gathered batch, and starts to gather the next one. finish() has returned
// all earlier blocks of that next one: there are more batches than blocks in flight can span.
void EncodingPass::launch_batch() {
    Batch& batch = batches_[gathering_];
    const uint32_t m = model_->view().shape.m;
    batch.filled.record(copies_);
    stream_.wait(batch.filled);
    for (size_t first = 0; first < batch.count; first += tile_rows_) {
        const size_t count = std::min(tile_rows_, batch.count - first);
        const float* chunk = batch.rows + first * dims_;
        const FloatMatrix rows{chunk, count, dims_, dims_};
        if (parents_)
            parents_->find_nearest(blas_, stream_, rows, tile_, batch.lists + first);
        else
            centroids_->find_nearest(blas_, stream_, rows, tile_, batch.lists + first);
        encoder_->encode(
            {chunk, count, batch.lists + first, batch.codes + first * m, batch.offsets + first});
    }
    for (auto* search : {&search_, &wide_search_})
        if (*search)
            (*search)->add(batch.rows.data(), batch.ids.data(), batch.count,
                           shares_pairs_ ? &tile_.pairs : nullptr);
    batch.worked.record(stream_);
    answers_.wait(batch.worked);
    copy_async(batch.host_lists.data(), batch.lists.data(), batch.count, answers_);
    copy_async(batch.host_codes.data(), batch.codes.data(), batch.count * m, answers_);
    copy_async(batch.host_offsets.data(), batch.offsets.data(), batch.count, answers_);
    if (report_nearest_) copy_nearest(batch.host_nearest.data(), answers_);
    batch.answered.record(answers_);
    // The next search overwrites what this copy reads.
    if (report_nearest_) stream_.wait(batch.answered);
    batch.searched_blocks = started_;
    batch.launched = true;
    gathering_ = (gathering_ + 1) % batches_.size();
    batches_[gathering_].count = 0;
    batches_[gathering_].launched = false;
}

PassedBlock EncodingPass::finish() {
    context_.use();
    if (in_flight_.empty()) throw std::logic_error("no block is under way");
    const Block block = in_flight_.front();
    if (!batches_[block.batch].launched) launch_batch();
    Batch& batch = batches_[block.batch];
    batch.answered.synchronize();
    in_flight_.pop_front();
    PassedBlock passed;
    passed.count = block.count;
    passed.lists = batch.host_lists.data() + block.first;
    passed.codes = batch.host_codes.data() + block.first * model_->view().shape.m;
    passed.offsets = batch.host_offsets.data() + block.first;
    if (report_nearest_) {
        passed.nearest = batch.host_nearest.data();
        passed.searched_blocks = batch.searched_blocks;
    }
    return passed;
}

void EncodingPass::nearest(Neighbor* out) {
    context_.use();
    if (!searches()) return;
    copy_nearest(out, stream_);
    stream_.synchronize();
}

void EncodingPass::copy_nearest(Neighbor* to, cudaStream_t stream) {
    copy_async(to, search_->nearest(), results_, stream);
    if (wide_search_) copy_async(to + results_, wide_search_->nearest(), wide_results_, stream);
}

class SearchingPass final : public RowPass {
  public:
    SearchingPass(const Context& context, Uploader& uploader, const RowPassInput& input);
    ~SearchingPass() override {
        cudaStreamSynchronize(copies_);
        cudaStreamSynchronize(stream_);
    }

    void start(const void* rows, const uint64_t* ids, size_t count) override;
    PassedBlock finish() override;
    void nearest(Neighbor* out) override;

  private:
    void search_gathered();

    const Context& context_;
    Uploader& uploader_;
    RowUpload upload_;  // on copies_
    const RowPassInput input_;
    const size_t block_rows_;
    Stream copies_, stream_;
    Blas blas_;
    Buffer<float> queries_;
    Buffer<Neighbor> nearest_, before_;
    std::vector<Neighbor> reported_;
    bool merge_ = false;

    Buffer<float> rows_;
    Buffer<uint64_t> ids_;
    size_t gathered_ = 0;
    struct Block {
        size_t count = 0;
        Event read;
    };
    std::array<Block, max_in_flight> blocks_;
    size_t started_ = 0, finished_ = 0;
};

SearchingPass::SearchingPass(const Context& context, Uploader& uploader, const RowPassInput& input)
    : context_(context),
      uploader_(uploader),
      upload_(context.memory, uploader, input.elements),
      input_(input),
      block_rows_(std::max<size_t>(input.block_rows, 1)),
      blas_(stream_) {
    if (input.wide_count > 0) throw std::invalid_argument("only a pass that encodes is wide");
    if (input.query_count == 0) return;
    if (input.k == 0 || input.k > max_exact_k)
        throw std::runtime_error("exact search on a device finds at most " +
                                 std::to_string(max_exact_k) + " neighbors");
    DeviceMemory& memory = context.memory;
    queries_ = Buffer<float>(memory, input.query_count * input.dims);
    uploader.upload(queries_.data(), input.queries, queries_.size(), stream_);
    upload_.reserve(block_rows_ * input.dims);
    nearest_ = Buffer<Neighbor>(memory, input.query_count * input.k);
    if (input.report_nearest) reported_.resize(nearest_.size());
    // Room for all expected rows and some more, where that fits into half of the free memory.
    const size_t row_bytes = input.dims * sizeof(float) + sizeof(uint64_t);
    const size_t least = std::max(block_rows_, exact_tile_rows);
    const size_t wanted = input.expected_rows + input.expected_rows / 16 + block_rows_;
    const size_t fitting = memory.available() / 2 / row_bytes;
    const size_t most = std::min<size_t>(size_t{1} << 31, std::max(fitting, block_rows_));
    const size_t room = std::clamp(wanted, std::min(least, most), most);
    rows_ = Buffer<float>(memory, room * input.dims);
    ids_ = Buffer<uint64_t>(memory, room);
    stream_.synchronize();
}

void SearchingPass::start(const void* rows, const uint64_t* ids, size_t count) {
    context_.use();
    context_.check_interrupt();
    check_start(started_ - finished_, count, block_rows_);
    Block& block = blocks_[started_ % blocks_.size()];
    block.count = count;
    if (input_.query_count > 0) {
        if (gathered_ + count > ids_.size()) search_gathered();
        upload_.upload(rows_ + gathered_ * input_.dims, rows, count * input_.dims, copies_);
        uploader_.upload(ids_ + gathered_, ids, count, copies_);
        gathered_ += count;
    }
    block.read.record(copies_);
    ++started_;
}

PassedBlock SearchingPass::finish() {
    context_.use();
    if (started_ == finished_) throw std::logic_error("no block is under way");
    Block& block = blocks_[finished_ % blocks_.size()];
    if (input_.report_nearest && input_.query_count > 0) {
        search_gathered();
        copy_async(reported_.data(), nearest_.data(), reported_.size(), stream_);
        stream_.synchronize();
    }
    block.read.synchronize();
    ++finished_;
    PassedBlock passed;
    passed.count = block.count;
    if (input_.report_nearest) {
        passed.nearest = reported_.data();
        passed.searched_blocks = started_;
    }
    return passed;
}

// Waits for the search to end.
void SearchingPass::search_gathered() {
    if (gathered_ == 0 && merge_) return;
    copies_.synchronize();
    DeviceExactSearch search;
    search.queries = queries_.data();
    search.query_count = input_.query_count;
    search.rows = rows_.data();
    search.row_count = gathered_;
    search.ids = ids_.data();
    search.dims = input_.dims;
    search.metric = input_.metric;
    search.k = input_.k;
    search.nearest = nearest_.data();
    search.merge = merge_;
    // An interrupted search has merged a part of its results, and will be repeated: restore what
    // was there before it.
    if (merge_) {
        before_.grow(context_.memory, nearest_.size());
        copy_async(before_.data(), nearest_.data(), nearest_.size(), stream_);
    }
    try {
        exact_search(context_, blas_, stream_, search);
    } catch (const Interrupted&) {
        if (merge_) copy_async(nearest_.data(), before_.data(), nearest_.size(), stream_);
        throw;
    }
    merge_ = true;
    gathered_ = 0;
}

void SearchingPass::nearest(Neighbor* out) {
    context_.use();
    if (input_.query_count == 0) return;
    search_gathered();
    copy_async(out, nearest_.data(), nearest_.size(), stream_);
    stream_.synchronize();
}

}  // namespace

std::unique_ptr<RowPass> make_row_pass(const Context& context, Uploader& uploader,
                                       const RowPassInput& input) {
    context.use();
    if (input.quantizer) return std::make_unique<EncodingPass>(context, uploader, input);
    return std::make_unique<SearchingPass>(context, uploader, input);
}

}  // namespace pgwarp::gpu
