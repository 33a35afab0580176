#include "bench/cuda/bench.h"
#include "kernels/cuda/products/exact_search.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/lists/list_store.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <thread>

namespace pgwarp::gpu {

namespace {

constexpr uint32_t m = 32;

// Every entry has one attribute, a number below this.
constexpr uint32_t attribute_values = 1000;
AttributeLayout attribute_layout() {
    AttributeLayout layout;
    layout.count = 1;
    layout.bytes[0] = sizeof(uint32_t);
    return layout;
}

// An index of the rows: trained and encoded, with every list on pages.
struct BenchIndex {
    QuantizerShape shape;
    uint32_t lists;
    std::vector<float> centroids, codebook;
    std::vector<std::vector<uint32_t>> members;  // of each list
    std::vector<uint8_t> codes;                  // (row)(m)
    std::vector<float> offsets;

    BenchIndex(Executor& executor, const VectorSet& vectors, uint32_t list_count)
        : lists(list_count) {
        const uint32_t dims = vectors.dims;
        const size_t rows = vectors.base_count();
        shape = {dims, lists, m, Metric::l2};
        centroids.resize(size_t{lists} * dims);
        codebook.resize(size_t{dims} * codewords);
        std::vector<float> base = vectors.base;
        const auto data = executor.take(base.data(), rows, dims);
        executor.kmeans_start(*data, lists, 1, centroids.data());
        for (int i = 0; i < 20; ++i) executor.kmeans_step(*data, lists, centroids.data());
        const auto residuals = executor.take(base.data(), std::min<size_t>(rows, 65536), dims);
        executor.make_residuals(*residuals, lists, centroids.data());
        executor.codebook_start(*residuals, shape, 1, codebook.data());
        for (int i = 0; i < 20; ++i) executor.codebook_step(*residuals, shape, codebook.data());
        std::vector<uint32_t> list_of(rows);
        codes.resize(rows * m);
        offsets.resize(rows);
        executor.encode(quantizer(),
                        {vectors.base.data(), rows, list_of.data(), codes.data(), offsets.data()});
        members.resize(lists);
        for (size_t r = 0; r < rows; ++r) members[list_of[r]].push_back(static_cast<uint32_t>(r));
        make_pages();
    }

    Quantizer quantizer() const { return {shape, centroids.data(), codebook.data()}; }

    // Pages in the layout of an index.
    struct Pages {
        std::vector<std::vector<uint8_t>> codes, tids, attributes;
        std::vector<std::vector<float>> offsets;
        std::vector<ListPage> pages;
    };
    void make_pages() {
        constexpr uint32_t capacity = 192;
        lists_on_pages.resize(lists);
        for (uint32_t l = 0; l < lists; ++l) {
            Pages& made = lists_on_pages[l];
            for (size_t first = 0; first < members[l].size(); first += capacity) {
                const auto count =
                    static_cast<uint32_t>(std::min<size_t>(capacity, members[l].size() - first));
                std::vector<uint8_t> page(m * capacity), tids(size_t{count} * 6);
                std::vector<float> page_offsets(count);
                std::vector<uint8_t> attributes(attribute_layout().entry_bytes() * capacity);
                for (uint32_t i = 0; i < count; ++i) {
                    const uint32_t row = members[l][first + i];
                    for (uint32_t j = 0; j < m; ++j)
                        page[j * capacity + i] = codes[size_t{row} * m + j];
                    page_offsets[i] = offsets[row];
                    const uint16_t words[3] = {0, static_cast<uint16_t>(row >> 16),
                                               static_cast<uint16_t>(row)};
                    std::memcpy(tids.data() + size_t{i} * 6, words, 6);
                    const uint32_t number = row % attribute_values;
                    std::memcpy(attributes.data() + i * sizeof(number), &number, sizeof(number));
                }
                // Moving a vector leaves its elements where they are.
                made.pages.push_back({page.data(), capacity, count, page_offsets.data(),
                                      tids.data(), attributes.data()});
                made.codes.push_back(std::move(page));
                made.tids.push_back(std::move(tids));
                made.attributes.push_back(std::move(attributes));
                made.offsets.push_back(std::move(page_offsets));
            }
        }
    }
    // Each list has its pages this many times.
    void put_all(ListStore& store, uint32_t times = 1) const {
        for (uint32_t l = 0; l < lists; ++l) {
            std::vector<ListPage> pages;
            for (uint32_t i = 0; i < times; ++i)
                pages.insert(pages.end(), lists_on_pages[l].pages.begin(),
                             lists_on_pages[l].pages.end());
            store.put(l, pages);
        }
    }
    std::vector<Pages> lists_on_pages;
};

constexpr uint32_t few_lists = 1024;

class ListBench {
  public:
    // With `times`, the store repeats each list's pages that often, and takes filtered searches
    // only.
    ListBench(const Context& context, const Settings& settings, const VectorSet& vectors,
              uint32_t lists, uint32_t times = 0)
        : context_(context), settings_(settings), vectors_(vectors) {
        const auto executor = make_executor(context);
        index_ = std::make_unique<BenchIndex>(*executor, vectors, lists);
        if (times > 0) {
            filtered_ = make_list_store(context_, index_->quantizer(), attribute_layout());
            index_->put_all(*filtered_, times);
            return;
        }
        store_ = make_list_store(context, index_->quantizer(), {});
        const double put = time_on_host([&] { index_->put_all(*store_); }, 1, 1);
        report("putting 1024 lists, replacing what was there", put,
               format("%.0f MB/s", static_cast<double>(store_->bytes()) / put * 1e-6), "", "");
        find_truth();
    }

    // Times host to host: from queries in pageable memory to results in the batch.
    double run(size_t batch_size, uint32_t k, uint32_t probes, const std::string& bar) {
        const auto batch = store_->make_batch({batch_size, k, probes});
        for (size_t q = 0; q < batch_size; ++q) batch->wanted[q] = {k, probes};
        const auto call = searches(*store_, *batch, batch_size);
        const double time = time_on_host(call, batch_size < 1000 ? 301 : 21, 5);
        profile(settings_, call);
        double visited = 0;
        for (size_t q = 0; q < batch_size; ++q)
            for (uint32_t p = 0; p < probes; ++p)
                visited += static_cast<double>(
                    index_->members[batch->probed[q * batch->probed_stride + p]].size());
        char what[96];
        std::snprintf(what, sizeof what, "IVFPQ, batch %zu, probes %u, k = %u, host to host",
                      batch_size, probes, k);
        report(what, time,
               format("%.3f M queries/s", static_cast<double>(batch_size) / time * 1e-6),
               format("%.2fe12 look-ups/s", visited * m / time * 1e-12), bar);
        return time;
    }

    // The same where each query decides on its lists, of the number it is offered.
    void run_deciding(size_t batch_size, uint32_t k, uint32_t probes, float threshold) {
        const auto batch = store_->make_batch({batch_size, k, probes});
        for (size_t q = 0; q < batch_size; ++q) {
            batch->wanted[q] = {k, probes};
            batch->wanted[q].plan.threshold = threshold;
            batch->wanted[q].plan.k = 10;
        }
        const auto call = searches(*store_, *batch, batch_size);
        const double time = time_on_host(call, 301, 5);
        profile(settings_, call);
        uint64_t taken = 0;
        for (size_t q = 0; q < batch_size; ++q) taken += batch->taken[q];
        char what[96];
        std::snprintf(what, sizeof what, "IVFPQ, queries decide, batch %zu, probes %u, k = %u",
                      batch_size, probes, k);
        report(what, time,
               format("%.3f M queries/s", static_cast<double>(batch_size) / time * 1e-6),
               format("%.0f lists taken",
                      static_cast<double>(taken) / static_cast<double>(batch_size)),
               "");
    }

    // The same with a condition that this many entries of a thousand pass.
    void run_filtered(size_t batch_size, uint32_t probes, uint32_t passing) {
        constexpr uint32_t k = 120;  // candidates of a query with LIMIT 10
        if (!filtered_) {
            filtered_ = make_list_store(context_, index_->quantizer(), attribute_layout());
            index_->put_all(*filtered_);
        }
        const auto batch = filtered_->make_batch({batch_size, k, probes, true, 1, 1});
        for (size_t q = 0; q < batch_size; ++q) {
            batch->wanted[q] = {k, probes};
            batch->wanted[q].conditions = 1;
            batch->conditions[q] = {};
            batch->conditions[q].kind = ConditionKind::range;
            batch->conditions[q].high = passing - 1;
        }
        const auto call = searches(*filtered_, *batch, batch_size);
        const double time = time_on_host(call, 301, 5);
        profile(settings_, call);
        char what[96];
        std::snprintf(what, sizeof what, "IVFPQ, %.1f%% pass, batch %zu, probes %u, k = %u",
                      passing * 100.0 / attribute_values, batch_size, probes, k);
        report(what, time,
               format("%.3f M queries/s", static_cast<double>(batch_size) / time * 1e-6), "", "");
    }

    void recall(uint32_t probes) {
        const size_t queries = vectors_.real_queries;
        const double cuda = recall_of(*store_, queries, probes);
        if (!host_) {
            const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
            host_ = make_cpu_list_store(index_->quantizer(), {}, threads, {});
            index_->put_all(*host_);
        }
        const double cpu = recall_of(*host_, queries, probes);
        char what[96];
        std::snprintf(what, sizeof what, "  recall@10, probes %u, %zu queries", probes, queries);
        report(what, 0, format("%.4f", cuda), format("on the CPU %.4f", cpu), "equal");
    }

  private:
    // Each call searches the next queries.
    std::function<void()> searches(ListStore& store, ListBatch& batch, size_t batch_size) const {
        return [&store, &batch, batch_size, this, at = size_t{0}]() mutable {
            const size_t dims = vectors_.dims;
            if (at + batch_size > vectors_.query_count()) at = 0;
            std::memcpy(batch.queries, vectors_.queries.data() + at * dims,
                        batch_size * dims * sizeof(float));
            at += batch_size;
            store.search(batch, batch_size);
        };
    }

    void find_truth() {
        constexpr uint32_t k = 10;
        Stream stream;
        const Blas blas(stream);
        Buffer<float> base(context_.memory, vectors_.base.size());
        Buffer<float> queries(context_.memory, vectors_.queries.size());
        Buffer<Neighbor> nearest(context_.memory, vectors_.query_count() * k);
        copy_async(base.data(), vectors_.base.data(), base.size(), stream);
        copy_async(queries.data(), vectors_.queries.data(), queries.size(), stream);
        DeviceExactSearch search;
        search.queries = queries.data();
        search.query_count = vectors_.query_count();
        search.rows = base.data();
        search.row_count = vectors_.base_count();
        search.dims = vectors_.dims;
        search.k = k;
        search.nearest = nearest.data();
        exact_search(context_, blas, stream, search);
        truth_.resize(nearest.size());
        copy_async(truth_.data(), nearest.data(), truth_.size(), stream);
        stream.synchronize();
    }

    double recall_of(ListStore& store, size_t queries, uint32_t probes) {
        constexpr uint32_t k = 10;
        const auto batch = store.make_batch({queries, k, probes});
        for (size_t q = 0; q < queries; ++q) batch->wanted[q] = {k, probes};
        std::memcpy(batch->queries, vectors_.queries.data(),
                    queries * vectors_.dims * sizeof(float));
        store.search(*batch, queries);
        size_t hits = 0;
        for (size_t q = 0; q < queries; ++q) {
            std::set<uint64_t> exact;
            for (uint32_t i = 0; i < k; ++i) exact.insert(truth_[q * k + i].id);
            for (uint32_t i = 0; i < batch->found_counts[q]; ++i)
                hits += exact.count(batch->found[q * batch->found_stride + i].id);
        }
        return static_cast<double>(hits) / static_cast<double>(queries * k);
    }

    const Context& context_;
    const Settings& settings_;
    const VectorSet& vectors_;
    std::unique_ptr<BenchIndex> index_;
    std::unique_ptr<ListStore> store_, host_, filtered_;
    std::vector<Neighbor> truth_;
};

}  // namespace

void bench_lists(const Context& context, const Settings& settings, const Limits&,
                 const VectorSet& vectors) {
    ListBench bench(context, settings, vectors, few_lists);
    const size_t batch = vectors.query_count();
    const double ten = bench.run(batch, 10, 32, ">= 2.9 M queries/s");
    const double ten_128 = bench.run(batch, 10, 128, ">= 1.1 M queries/s");
    const double hundred = bench.run(batch, 100, 32, ">= 70% of k = 10");
    report("  share of k = 10", 0, format("%.0f%%", 100 * ten / hundred), "", "");
    const double hundred_128 = bench.run(batch, 100, 128, ">= 70% of k = 10");
    report("  share of k = 10", 0, format("%.0f%%", 100 * ten_128 / hundred_128), "", "");
    bench.run(1, 10, 32, "<= 70 us");
    bench.run(64, 10, 32, ">= 1 M queries/s");
    for (size_t size : {1, 16, 64}) {
        bench.run(size, 120, 48, "");
        bench.run_filtered(size, 160, 100);
        bench.run_filtered(size, 320, 10);
        bench.run_filtered(size, 640, 1);
    }
    // As searches for ten rows of other queries than rows, at targets of 0.95 and 0.99.
    for (size_t size : {1, 8, 16, 64}) {
        bench.run_deciding(size, 112, 112, 1e5f);
        bench.run_deciding(size, 288, 280, 3e6f);
    }
    if (settings.profile) return;
    bench.run(batch, 2048, 128, "");
    for (size_t size : {8, 32, 127, 128, 256, 500, 1000, 2000, 4000})
        if (size < batch) bench.run(size, 10, 32, "");
    for (uint32_t probes : {1u, 32u, 128u}) bench.recall(probes);
}

// As many entries and lists as 100,000,000 rows have.
void bench_many_lists(const Context& context, const Settings& settings, const VectorSet& vectors) {
    constexpr uint32_t lists = 16384;
    constexpr size_t entries = 100'000'000;
    ListBench bench(context, settings, vectors, lists,
                    static_cast<uint32_t>(entries / vectors.base_count()));
    for (size_t size : {1, 16, 64})
        for (uint32_t probes : {14, 56, 224}) bench.run_filtered(size, probes, 1);
}

}  // namespace pgwarp::gpu
