// The rows and queries that test/include/recall_sets.sql has made, read back from the database, and
// the true answers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bench/connection.h"
#include "bench/metric.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// Rows pass whose column is at least low and less than high.
struct Window {
    std::string column;  // "chance", "along" or "category"; "": all rows pass
    int32_t low = 0;
    int32_t high = 0;

    bool operator<(const Window& other) const {
        return std::tie(column, low, high) < std::tie(other.column, other.low, other.high);
    }
};

// Queries of one kind, with a condition each.
struct Questions {
    Vectors vectors;
    std::vector<Window> windows;                  // one a query
    std::vector<std::vector<int32_t>> neighbors;  // (query)(rank): of rows that pass, nearest first
    std::vector<int32_t> deleted;                 // rows that are not there, in ascending order
};

// Queries from number `first` to before `last`, from the beginning again where there are fewer: a
// batch may want more queries than there are.
Questions part_of(const Questions& questions, size_t first, size_t last);

class RecallWorld {
  public:
    RecallWorld(Connection& connection, Metric metric);

    // `condition` and `share` as recall.window_of() takes them; "": none. `depth`: neighbors to
    // know of each query.
    Questions questions(Connection& connection, const std::string& kind,
                        const std::string& condition, double share, size_t count,
                        size_t depth) const;

    // The same window for all queries.
    Questions questions(Connection& connection, const std::string& kind, const Window& window,
                        size_t count, size_t depth) const;

    // The same queries in groups, each with the `count` nearest rows of all its queries deleted: a
    // group has so few queries that more than half of the rows is left.
    std::vector<Questions> without_nearest(const Questions& questions, size_t count,
                                           size_t depth) const;

    bool passes(const Questions& questions, size_t query, int32_t row) const;

    const Vectors& rows() const { return rows_; }
    Metric metric() const { return metric_; }

  private:
    bool passes(const Window& window, int32_t row) const;
    void find_neighbors(Questions& questions, size_t depth) const;
    const std::vector<int32_t>& attribute(const std::string& column) const;

    Metric metric_;
    Vectors rows_;  // by id, which are numbers from 0 on
    std::map<std::string, std::vector<int32_t>> attributes_;
};

}  // namespace pgwarp::bench
