// A cell of the golden run: a shape of query, by a source of candidates, over one table, for one k
// and one target.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/connection.h"
#include "bench/recall_world.h"

namespace pgwarp::bench {

struct Cell {
    // scan, batch (knn_search), lateral; join, semi, in, anti, subquery, window: a query whose
    // LIMIT stands above what drops rows; cursor: ten FETCHes
    std::string shape;
    // pages, store (lists in private memory, as batches have them), mirror (the service), exact
    // (all rows)
    std::string source;
    std::string table;
    size_t k = 10;
    double target = 0.95;
    bool dead_rows = false;  // many entries are of rows that are not visible
    bool one_index =
        true;  // a table of its own, without partitions: ivfpq_last_scan() tells all of a scan
    size_t repeats =
        1;  // how often the queries are asked for their time, after once for their recall
};

struct Outcome {
    double recall = 0;
    double below = 0;           // the share of queries with a recall below 0.8
    double rows = 0;            // returned by a query
    double p50 = 0;             // ms of a query; of batches: a batch's time divided by its queries
    std::optional<double> cpu;  // ms of the session's processor for a query
    // Means of what ivfpq_last_scan() tells of single scans, as far as this version tells it.
    std::optional<double> lists, entries, candidates, ranked;
};

// Sends the queries of a cell over one connection.
class CellRunner {
  public:
    CellRunner(Connection& connection, const RecallWorld& world)
        : connection_(connection), world_(world) {}

    // Nothing where this version does not search this shape by that source: the counters of
    // pg_stat_pgwarp tell who searched. Throws on a row that no query may return, and on a row that
    // comes twice.
    std::optional<Outcome> run(const Cell& cell, const std::vector<Questions>& groups);

  private:
    using Answers = std::vector<std::vector<int32_t>>;  // (query)(rank): ids

    struct Searches {
        double by_pages = 0, by_service = 0;
    };

    bool is_batch(const Cell& cell) const {
        return cell.shape == "batch" || cell.shape == "lateral";
    }
    bool is_by_source(const Cell& cell, size_t count, const Searches& before);
    void apply_settings(const Cell& cell);
    void load_asked(const Questions& questions);
    std::string statement(const Cell& cell, const Questions& questions) const;
    Answers ask_all(const Cell& cell, const Questions& questions);
    std::vector<int32_t> ask_cursor(const Cell& cell, const Questions& questions, size_t query);
    std::vector<int32_t> ask_one(const Cell& cell, const Questions& questions, size_t query);
    void note_scan(Outcome& outcome, size_t& noted);
    void check(const Questions& questions, const Answers& answers) const;
    Searches searches(const std::string& table);
    void read_places(const std::string& table);

    Connection& connection_;
    const RecallWorld& world_;
    std::string places_of_;
    std::unordered_map<std::string, int32_t> places_;  // id by tableoid and ctid, in binary
};

}  // namespace pgwarp::bench
