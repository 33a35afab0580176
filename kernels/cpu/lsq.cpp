#include "kernels/lsq.h"

#include "kernels/cpu/lsq_scores.h"
#include "kernels/cpu/products.h"
#include "kernels/distance.h"
#include "kernels/common/lsq_chance.h"
#include "kernels/common/lsq_scale.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace pgwarp {

namespace {

// Rows searched together, one codebook after the other, so that its tables stay in the cache.
constexpr size_t batch_rows = 32;
// For fewer rows, packing the words for a matrix product does not pay off.
constexpr size_t min_product_rows = 4;

uint64_t row_seed(const float* row, uint32_t dims) {
    uint64_t seed = 0;
    for (uint32_t d = 0; d < dims; ++d) {
        uint32_t bits;
        std::memcpy(&bits, row + d, sizeof bits);
        seed += seed_part(d, bits);
    }
    return seed;
}

}  // namespace

struct LsqEncoder::Tables {
    LsqShape shape;
    std::vector<float> words;
    std::vector<float> norms;  // (books)(256)
    // (books)(books)(256)(256): [k][l][b][c] is 2 <word c of k, word b of l> in steps. For a code b
    // of l, the values for all codes of k are contiguous.
    std::vector<uint16_t> pairs;
    LsqScale scale;

    const uint16_t* pair(uint32_t k, uint32_t l, uint8_t code) const {
        return pairs.data() + ((size_t{k} * shape.books + l) * codewords + code) * codewords;
    }
};

struct LsqEncoder::Batch {
    std::vector<float> products;  // (rows)(books)(256)
    std::vector<uint16_t> unary;  // the same, in steps
    std::vector<float> scratch;
    std::vector<float> decoded;    // (dims)
    std::vector<uint8_t> current;  // (rows)(books)
    std::vector<const uint16_t*> terms;
    std::vector<LsqChance> chance;
    std::vector<float> best_error;
    std::vector<uint32_t> unchanged;  // (rows): codes visited since the last one that changed

    Batch(const LsqShape& shape, size_t rows)
        : products(rows * shape.words()),
          unary(products.size()),
          scratch(products_scratch(rows)),
          decoded(shape.dims),
          current(rows * shape.books),
          terms(shape.books),
          chance(rows, LsqChance(0)),
          best_error(rows),
          unchanged(rows) {}
};

LsqEncoder::LsqEncoder(Workers& workers, const LsqShape& shape, const float* words)
    : tables_(std::make_unique<Tables>()) {
    Tables& t = *tables_;
    const uint32_t books = shape.books;
    t.shape = shape;
    t.words.assign(words, words + shape.words() * shape.dims);
    t.norms.resize(shape.words());
    for (size_t w = 0; w < shape.words(); ++w)
        t.norms[w] = static_cast<float>(squared_norm(words + w * shape.dims, shape.dims));
    t.pairs.resize(size_t{books} * books * codewords * codewords);
    constexpr size_t table = size_t{codewords} * codewords;
    std::vector<float> products(size_t{books} * (books - 1) / 2 * table);
    const auto products_of = [&](size_t k, size_t l) {
        return products.data() + (k * (k - 1) / 2 + l) * table;
    };
    auto scratch = workers.scratch(products_scratch(codewords));
    std::vector<float> lows(size_t{books} * books), highs(lows.size());
    workers.run(lows.size(), [&](size_t pair, int thread) {
        const size_t k = pair / books, l = pair % books;
        if (k <= l) return;
        float* out = products_of(k, l);
        inner_products({words + l * codewords * shape.dims, codewords,
                        words + k * codewords * shape.dims, codewords, shape.dims, 2, out},
                       scratch[thread].data());
        const auto [low, high] = std::minmax_element(out, out + table);
        lows[pair] = lows[l * books + k] = *low;
        highs[pair] = highs[l * books + k] = *high;
    });
    t.scale = LsqScale::of(books, lows.data(), highs.data());
    workers.run(lows.size(), [&](size_t pair, int) {
        const size_t k = pair / books, l = pair % books;
        if (k <= l) return;
        const float* from = products_of(k, l);
        uint16_t* of_k = t.pairs.data() + pair * table;
        uint16_t* of_l = t.pairs.data() + (l * books + k) * table;
        for (size_t i = 0; i < table; ++i)
            of_k[i] = LsqScale::steps(from[i] - lows[pair], t.scale.inverse, t.scale.most);
        for (size_t c = 0; c < codewords; ++c)
            for (size_t b = 0; b < codewords; ++b)
                of_l[c * codewords + b] = of_k[b * codewords + c];
    });
}

LsqEncoder::~LsqEncoder() = default;

const LsqShape& LsqEncoder::shape() const {
    return tables_->shape;
}

const float* LsqEncoder::words() const {
    return tables_->words.data();
}

double LsqEncoder::search_batch(const LsqSearch& search, const float* rows, size_t count,
                                bool improve, uint8_t* codes, Batch& batch) const {
    const Tables& t = *tables_;
    const uint32_t books = t.shape.books, dims = t.shape.dims;
    const size_t words = t.shape.words();
    if (count < min_product_rows) {
        for (size_t i = 0; i < count; ++i) {
            float* products = batch.products.data() + i * words;
            dot_products(rows + i * dims, {t.words.data(), dims, words}, dims, products);
            for (size_t w = 0; w < words; ++w) products[w] *= -2;
        }
    } else {
        inner_products({rows, count, t.words.data(), words, dims, -2, batch.products.data()},
                       batch.scratch.data());
    }
    for (size_t part = 0; part < count * books; ++part) {
        float* values = batch.products.data() + part * codewords;
        const float* norms = t.norms.data() + part % books * codewords;
        float least = std::numeric_limits<float>::infinity();
        for (uint32_t c = 0; c < codewords; ++c) {
            values[c] += norms[c];
            least = std::min(least, values[c]);
        }
        uint16_t* unary = batch.unary.data() + part * codewords;
        for (uint32_t c = 0; c < codewords; ++c)
            unary[c] = LsqScale::steps(values[c] - least, t.scale.inverse, t.scale.most);
    }

    // The best code of k given the codes of the first `known` codebooks.
    const auto best_code = [&](size_t i, uint32_t k, const uint8_t* code, uint32_t known) {
        const uint16_t** terms = batch.terms.data();
        uint32_t used = 0;
        terms[used++] = batch.unary.data() + i * words + size_t{k} * codewords;
        for (uint32_t l = 0; l < known; ++l)
            if (l != k) terms[used++] = t.pair(k, l, code[l]);
        return argmin_of_sums(terms, used);
    };
    const auto descend = [&] {
        std::fill_n(batch.unchanged.begin(), count, 0u);
        for (uint32_t sweep = 0; sweep < search.sweeps; ++sweep)
            for (uint32_t k = 0; k < books; ++k)
                for (size_t i = 0; i < count; ++i) {
                    // After a sweep without a change nothing will change.
                    if (batch.unchanged[i] >= books) continue;
                    uint8_t* code = batch.current.data() + i * books;
                    const uint8_t best = best_code(i, k, code, books);
                    batch.unchanged[i] = best == code[k] ? batch.unchanged[i] + 1 : 1;
                    code[k] = best;
                }
    };
    const auto keep_better = [&] {
        for (size_t i = 0; i < count; ++i) {
            const uint8_t* code = batch.current.data() + i * books;
            lsq_decode(t.shape, t.words.data(), code, batch.decoded.data());
            const float error = squared_l2_distance(rows + i * dims, batch.decoded.data(), dims);
            if (!(error < batch.best_error[i])) continue;
            batch.best_error[i] = error;
            std::copy_n(code, books, codes + i * books);
        }
    };

    for (size_t i = 0; i < count; ++i) batch.chance[i] = LsqChance(row_seed(rows + i * dims, dims));
    if (improve) {
        std::copy_n(codes, count * books, batch.current.begin());
    } else {
        // Greedy: one codebook after the other, given the codes of those before.
        std::fill_n(codes, count * books, uint8_t{0});
        for (uint32_t k = 0; k < books; ++k)
            for (size_t i = 0; i < count; ++i) {
                uint8_t* code = batch.current.data() + i * books;
                code[k] = best_code(i, k, code, k);
            }
    }
    std::fill_n(batch.best_error.begin(), count, std::numeric_limits<float>::infinity());
    descend();
    keep_better();
    for (uint32_t round = 0; round < search.rounds; ++round) {
        for (size_t i = 0; i < count; ++i) {
            uint8_t* code = batch.current.data() + i * books;
            std::copy_n(codes + i * books, books, code);
            batch.chance[i].perturb(books, search.perturbed, [&](uint32_t k, uint32_t chosen) {
                code[k] = static_cast<uint8_t>(chosen);
            });
        }
        descend();
        keep_better();
    }
    return std::accumulate(batch.best_error.begin(), batch.best_error.begin() + count, 0.0);
}

double LsqEncoder::encode(Workers& workers, const LsqSearch& search, const float* rows,
                          size_t count, bool improve, uint8_t* codes) const {
    const LsqShape& shape = tables_->shape;
    std::vector<std::unique_ptr<Batch>> batches(static_cast<size_t>(workers.threads()));
    const size_t tasks = (count + batch_rows - 1) / batch_rows;
    std::vector<double> errors(tasks);
    workers.run(tasks, [&](size_t task, int thread) {
        auto& batch = batches[static_cast<size_t>(thread)];
        if (!batch) batch = std::make_unique<Batch>(shape, std::min(batch_rows, count));
        const size_t first = task * batch_rows;
        errors[task] =
            search_batch(search, rows + first * shape.dims, std::min(batch_rows, count - first),
                         improve, codes + first * shape.books, *batch);
    });
    return std::accumulate(errors.begin(), errors.end(), 0.0);
}

double LsqEncoder::encode(const LsqSearch& search, const float* rows, size_t count, bool improve,
                          uint8_t* codes) const {
    const LsqShape& shape = tables_->shape;
    Batch batch(shape, std::min(batch_rows, count));
    double error = 0;
    for (size_t first = 0; first < count; first += batch_rows)
        error +=
            search_batch(search, rows + first * shape.dims, std::min(batch_rows, count - first),
                         improve, codes + first * shape.books, batch);
    return error;
}

void lsq_decode(const LsqShape& shape, const float* words, const uint8_t* code, float* out) {
    std::copy_n(words + size_t{code[0]} * shape.dims, shape.dims, out);
    for (uint32_t k = 1; k < shape.books; ++k) {
        const float* word = words + (size_t{k} * codewords + code[k]) * shape.dims;
        for (uint32_t d = 0; d < shape.dims; ++d) out[d] += word[d];
    }
}

}  // namespace pgwarp
