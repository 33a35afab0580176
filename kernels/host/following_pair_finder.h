// Finds pairs on the current builder: that of a device; after its failure that of another device or
// of the CPU, which begins with the rectangle that failed.
#pragma once

#include "kernels/similar_pairs.h"

#include <functional>

namespace pgwarp {

class FollowingPairFinder final : public PairFinder {
  public:
    using Work = std::function<void(GraphBuilder& builder)>;
    // Does the work on a builder, and again on another where that one fails.
    using Run = std::function<void(const Work& work)>;

    FollowingPairFinder(const GraphRows& rows, const PairSearch& search, Run run)
        : rows_(rows), search_(search), run_(std::move(run)) {
        run_([this](GraphBuilder& builder) { follow(builder); });
    }

    bool find(const PairRectangle& rectangle, size_t most, std::vector<RowPair>* found) override {
        bool complete = false;
        run_([&](GraphBuilder& builder) {
            follow(builder);
            try {
                complete = finder_->find(rectangle, most, found);
            } catch (...) {
                // Its builder may be destroyed before this finder is.
                leave();
                throw;
            }
        });
        return complete;
    }

    size_t best_side() const noexcept override { return finder_ ? finder_->best_side() : 1; }

  private:
    void follow(GraphBuilder& builder) {
        if (builder_ == &builder) return;
        leave();
        finder_ = builder.find_pairs(rows_, search_);
        builder_ = &builder;
    }
    void leave() {
        finder_.reset();
        builder_ = nullptr;
    }

    const GraphRows rows_;
    const PairSearch search_;
    const Run run_;
    GraphBuilder* builder_ = nullptr;
    std::unique_ptr<PairFinder> finder_;
};

}  // namespace pgwarp
