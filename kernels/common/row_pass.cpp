#include "kernels/row_pass.h"

#include "kernels/common/table_rows.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

namespace pgwarp {

namespace {

class PlainPass final : public RowPass {
  public:
    PlainPass(Executor& executor, Executor& searcher, const RowPassInput& input)
        : executor_(executor), searcher_(searcher), input_(input) {
        if (input.quantizer) {
            const QuantizerShape& shape = input.quantizer->shape;
            quantizer_.emplace(*input.quantizer);
            lists_.resize(input.block_rows);
            codes_.resize(input.block_rows * shape.m);
            offsets_.resize(input.block_rows);
        }
        nearest_.resize(input.nearest_count(), {std::numeric_limits<float>::infinity(), 0});
    }

    void start(const void* rows, const uint64_t* ids, size_t count) override {
        if (blocks_.size() == max_in_flight) throw std::logic_error("too many blocks under way");
        if (count > input_.block_rows) throw std::invalid_argument("block is too large");
        blocks_.push_back({rows, ids, count});
    }

    PassedBlock finish() override {
        if (blocks_.empty()) throw std::logic_error("no block is under way");
        const Block block = blocks_.front();
        PassedBlock passed;
        passed.count = block.count;
        const float* rows =
            widened(input_.elements, block.rows, block.count * input_.dims, widened_);
        if (quantizer_) {
            if (block.count > 0)
                encode_table_rows(
                    executor_, quantizer_->get(),
                    {rows, block.count, lists_.data(), codes_.data(), offsets_.data()}, rotated_);
            passed.lists = lists_.data();
            passed.codes = codes_.data();
            passed.offsets = offsets_.data();
        }
        if (block.count > 0)
            search_block(searcher_, input_, rows, block.ids, block.count, &nearest_);
        ++finished_;
        if (input_.report_nearest) passed.nearest = nearest_.data();
        passed.searched_blocks = finished_;
        blocks_.pop_front();
        return passed;
    }

    void nearest(Neighbor* out) override { std::copy(nearest_.begin(), nearest_.end(), out); }

  private:
    struct Block {
        const void* rows;
        const uint64_t* ids;
        size_t count;
    };
    Executor& executor_;
    Executor& searcher_;
    RowPassInput input_;
    std::optional<QuantizerCopy> quantizer_;
    std::vector<float> rotated_, widened_;
    std::deque<Block> blocks_;
    size_t finished_ = 0;
    std::vector<uint32_t> lists_;
    std::vector<uint8_t> codes_;
    std::vector<float> offsets_;
    std::vector<Neighbor> nearest_;
};

}  // namespace

void search_block(Executor& searcher, const RowPassInput& input, const float* rows,
                  const uint64_t* ids, size_t count, std::vector<Neighbor>* nearest) {
    const auto search = [&](size_t queries, uint32_t k, Neighbor* found) {
        if (queries > 0)
            searcher.exact_search(
                {input.queries, queries, rows, count, ids, input.dims, input.metric, k, found});
    };
    // An interrupted search may have written part of its results.
    std::vector<Neighbor> found = *nearest;
    search(input.query_count, input.k, found.data());
    search(input.wide_count, input.wide_k, found.data() + input.query_count * input.k);
    nearest->swap(found);
}

std::unique_ptr<RowPass> make_plain_pass(Executor& executor, Executor& searcher,
                                         const RowPassInput& input) {
    return std::make_unique<PlainPass>(executor, searcher, input);
}

}  // namespace pgwarp
