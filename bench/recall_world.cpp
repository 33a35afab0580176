#include "bench/recall_world.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "bench/neighbors.h"
#include "bench/parallel.h"

namespace pgwarp::bench {
namespace {

constexpr std::array<const char*, 3> columns = {"chance", "along", "category"};

uint16_t read_int2(const char* bytes) {
    return static_cast<uint16_t>(static_cast<unsigned char>(bytes[0]) << 8 |
                                 static_cast<unsigned char>(bytes[1]));
}

// A vector of PostgreSQL's protocol, see binary_vector().
void append_vector(const char* bytes, Vectors& vectors) {
    const size_t dims = read_int2(bytes);
    if (vectors.rows == 0) vectors.dims = dims;
    if (dims != vectors.dims) throw std::runtime_error("vectors of different dimensions");
    for (size_t i = 0; i < dims; i++) {
        const int32_t bits = read_binary_int4(bytes + 4 + 4 * i);
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        vectors.values.push_back(value);
    }
    vectors.rows++;
}

}  // namespace

RecallWorld::RecallWorld(Connection& connection, Metric metric) : metric_(metric) {
    // In pieces: a result is in memory as a whole.
    constexpr int32_t piece = 10000;
    for (int32_t first = 0;; first += piece) {
        const Result result = connection.execute_binary(
            "SELECT v, chance, along, category, id FROM recall.rows WHERE id >= $1::int AND id < "
            "$1::int + 10000 ORDER BY id",
            std::array{binary_int4(first)});
        const int count = PQntuples(result.get());
        for (int i = 0; i < count; i++) {
            if (read_binary_int4(PQgetvalue(result.get(), i, 4)) !=
                static_cast<int32_t>(rows_.rows))
                throw std::runtime_error("ids of recall.rows must be the numbers from 0 on");
            append_vector(PQgetvalue(result.get(), i, 0), rows_);
            for (size_t c = 0; c < columns.size(); c++)
                attributes_[columns[c]].push_back(
                    read_binary_int4(PQgetvalue(result.get(), i, static_cast<int>(c) + 1)));
        }
        if (count < piece) break;
    }
}

const std::vector<int32_t>& RecallWorld::attribute(const std::string& column) const {
    return attributes_.at(column);
}

bool RecallWorld::passes(const Questions& questions, size_t query, int32_t row) const {
    return passes(questions.windows[query], row) &&
           !std::binary_search(questions.deleted.begin(), questions.deleted.end(), row);
}

bool RecallWorld::passes(const Window& window, int32_t row) const {
    if (window.column.empty()) return true;
    const int32_t value = attribute(window.column)[static_cast<size_t>(row)];
    return value >= window.low && value < window.high;
}

Questions RecallWorld::questions(Connection& connection, const std::string& kind,
                                 const std::string& condition, double share, size_t count,
                                 size_t depth) const {
    const std::array parameters = {kind, std::to_string(count), condition, std::to_string(share)};
    const Result result = connection.execute(
        condition.empty()
            ? "SELECT v::text, 0, 0, '' FROM recall.queries AS q WHERE kind = $1 ORDER BY id LIMIT "
              "$2::int"
            : "SELECT v::text, low, high, recall.column_of($3) FROM recall.queries AS q, "
              "recall.window_of($3, $4::float8, id, along, category, far_category) WHERE kind = $1 "
              "ORDER BY id LIMIT $2::int",
        std::span(parameters).first(condition.empty() ? 2 : 4));
    Questions questions;
    for (int i = 0; i < PQntuples(result.get()); i++) {
        const char* text = PQgetvalue(result.get(), i, 0);
        size_t dims = 0;
        for (const char* at = text + 1; *at; dims++) {
            char* end;
            questions.vectors.values.push_back(std::strtof(at, &end));
            at = end + 1;
        }
        questions.vectors.dims = dims;
        questions.vectors.rows++;
        questions.windows.push_back({PQgetvalue(result.get(), i, 3),
                                     std::stoi(PQgetvalue(result.get(), i, 1)),
                                     std::stoi(PQgetvalue(result.get(), i, 2))});
    }
    if (questions.vectors.rows == 0)
        throw std::runtime_error("recall.queries has no queries of kind \"" + kind + "\"");
    find_neighbors(questions, depth);
    return questions;
}

Questions RecallWorld::questions(Connection& connection, const std::string& kind,
                                 const Window& window, size_t count, size_t depth) const {
    Questions questions = this->questions(connection, kind, "", 0, count, 0);
    std::fill(questions.windows.begin(), questions.windows.end(), window);
    find_neighbors(questions, depth);
    return questions;
}

void RecallWorld::find_neighbors(Questions& questions, size_t depth) const {
    questions.neighbors.assign(questions.vectors.rows, {});
    if (depth == 0) return;
    std::map<Window, std::vector<size_t>> groups;  // queries by their window
    for (size_t query = 0; query < questions.vectors.rows; query++)
        groups[questions.windows[query]].push_back(query);
    for (const auto& [window, queries] : groups) {
        Vectors asked{queries.size(), rows_.dims, {}}, passing{0, rows_.dims, {}};
        for (const size_t query : queries) {
            const auto values = questions.vectors.row(query);
            asked.values.insert(asked.values.end(), values.begin(), values.end());
        }
        std::vector<int32_t> ids;
        const bool all = window.column.empty() && questions.deleted.empty();
        for (size_t row = 0; row < rows_.rows && !all; row++) {
            if (!passes(questions, queries[0], static_cast<int32_t>(row))) continue;
            ids.push_back(static_cast<int32_t>(row));
            passing.values.insert(passing.values.end(), rows_.row(row).begin(),
                                  rows_.row(row).end());
        }
        passing.rows = ids.size();
        if (!all && ids.empty()) continue;
        const RowNumbers found =
            exact_neighbors(metric_, all ? rows_ : passing, asked, depth, default_threads());
        for (size_t i = 0; i < queries.size(); i++)
            for (const int32_t number : found.row(i))
                questions.neighbors[queries[i]].push_back(all ? number : ids[size_t(number)]);
    }
}

Questions part_of(const Questions& questions, size_t first, size_t last) {
    Questions part;
    part.vectors = {last - first, questions.vectors.dims, {}};
    part.deleted = questions.deleted;
    for (size_t i = first; i < last; i++) {
        const size_t query = i % questions.vectors.rows;
        const auto values = questions.vectors.row(query);
        part.vectors.values.insert(part.vectors.values.end(), values.begin(), values.end());
        part.windows.push_back(questions.windows[query]);
        part.neighbors.push_back(questions.neighbors[query]);
    }
    return part;
}

std::vector<Questions> RecallWorld::without_nearest(const Questions& questions, size_t count,
                                                    size_t depth) const {
    const size_t most = std::max<size_t>(1, rows_.rows * 2 / 5 / count);
    std::vector<Questions> groups;
    for (size_t first = 0; first < questions.vectors.rows; first += most) {
        Questions group = part_of(questions, first, std::min(first + most, questions.vectors.rows));
        find_neighbors(group, count);
        for (const auto& nearest : group.neighbors)
            group.deleted.insert(group.deleted.end(), nearest.begin(), nearest.end());
        std::sort(group.deleted.begin(), group.deleted.end());
        group.deleted.erase(std::unique(group.deleted.begin(), group.deleted.end()),
                            group.deleted.end());
        find_neighbors(group, depth);
        groups.push_back(std::move(group));
    }
    return groups;
}

}  // namespace pgwarp::bench
