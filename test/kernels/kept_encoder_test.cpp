// The encoder of an additive quantizer is made again exactly when the codebook has changed.

#include "kernels/additive.h"

#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <vector>

namespace pgwarp {
namespace {

struct FakeEncoder {
    LsqShape of;
    float first_word;
    const LsqShape& shape() const { return of; }
};

TEST(KeptLsqEncoder, IsMadeOnceACodebook) {
    KeptLsqEncoder<FakeEncoder> kept;
    int made = 0;
    bool fails = false;
    const auto make = [&](const LsqShape& shape, const float* words) {
        if (fails) throw std::runtime_error("no memory");
        ++made;
        return std::make_unique<FakeEncoder>(FakeEncoder{shape, words[0]});
    };
    QuantizerShape shape{3, 1, 2, Metric::l2};
    shape.search_rounds = 1;
    std::vector<float> codebook(size_t{shape.codebook_rows()} * codewords, 1.0f);
    const auto get = [&]() -> FakeEncoder& {
        return kept.get({shape, nullptr, codebook.data()}, make);
    };
    EXPECT_EQ(get().first_word, 1.0f);
    get();
    EXPECT_EQ(made, 1);
    codebook.back() = 2;
    get();
    EXPECT_EQ(made, 2);

    // Same numbers, other books.
    QuantizerShape other{2, 1, 3, Metric::l2};
    other.search_rounds = 1;
    EXPECT_EQ(kept.get({other, nullptr, codebook.data()}, make).shape().books, 3u);
    EXPECT_EQ(made, 3);

    fails = true;
    codebook.front() = 5;
    EXPECT_THROW(get(), std::runtime_error);
    fails = false;
    EXPECT_EQ(get().first_word, 5.0f);
    EXPECT_EQ(made, 4);
}

}  // namespace
}  // namespace pgwarp
