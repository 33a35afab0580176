#include "bench/glove_json.h"

#include <cmath>

#include "bench/input_file.h"
#include "bench/json_reader.h"

namespace pgwarp::bench {
namespace {

// Reads one array of "vectors" into its row.
void read_word(JsonReader& json, Vectors& vectors, std::vector<bool>& seen) {
    json.string();
    json.expect(':');
    json.expect('[');
    std::vector<double> numbers;
    json.members(']', [&] { numbers.push_back(json.number()); });
    if (numbers.size() != vectors.dims + 2) json.fail("expected the values, a norm and a number");

    double squares = 0;
    for (size_t i = 0; i < vectors.dims; i++) squares += numbers[i] * numbers[i];
    const double norm = numbers[vectors.dims];
    if (std::abs(std::sqrt(squares) - norm) > 1e-3 * (1 + norm)) json.fail("norm does not match");

    const double row = numbers[vectors.dims + 1];
    if (!(row >= 0 && row < double(vectors.rows)) || seen[size_t(row)])
        json.fail("bad word number");
    seen[size_t(row)] = true;
    for (size_t i = 0; i < vectors.dims; i++)
        vectors.values[size_t(row) * vectors.dims + i] = static_cast<float>(numbers[i]);
}

}  // namespace

Vectors read_glove_json(const std::string& path) {
    const std::string text = read_text(path);
    JsonReader json(text, path);
    Vectors vectors;
    std::vector<bool> seen;
    size_t words = 0;
    json.expect('{');
    json.members('}', [&] {
        const std::string name = json.string();
        json.expect(':');
        if (name == "size") {
            vectors.rows = static_cast<size_t>(json.number());
        } else if (name == "dimensions") {
            vectors.dims = static_cast<size_t>(json.number());
        } else if (name == "vectors") {
            if (vectors.rows == 0 || vectors.dims == 0) json.fail("no size or dimensions before");
            vectors.values.resize(vectors.rows * vectors.dims);
            seen.resize(vectors.rows);
            json.expect('{');
            json.members('}', [&] {
                read_word(json, vectors, seen);
                words++;
            });
        } else {
            json.skip_value();
        }
    });
    if (words != vectors.rows) json.fail("fewer words than the file says");
    return vectors;
}

}  // namespace pgwarp::bench
