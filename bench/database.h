// Creates, loads, indexes, measures the size of, and drops a system's database.
#pragma once

#include <string>
#include <vector>

#include "bench/connection.h"
#include "bench/options.h"
#include "bench/results.h"

namespace pgwarp::bench {

// What the table is loaded with; ids are row numbers.
struct TableRows {
    const Vectors& vectors;
    const std::vector<int32_t>& labels;  // column "far", one a row; empty: no such column
};

class Database {
  public:
    Database(const Options& options, const SystemOptions& system);

    // Creates the database, loads the rows and builds the index, unless --keep finds a database
    // with the same data and the same SQL.
    BuildResult make(const TableRows& rows, const std::string& data_key);

    // Marks the database as changed: its table has more rows than were loaded, so that a later run
    // with --keep must not reuse it.
    void forget();
    void drop();

    const std::string& type() const { return system_.type; }
    Connection connect() const { return Connection(options_.connection, name_); }
    // Indexes of the table, without the primary key.
    std::vector<std::string> index_names() const;

  private:
    bool find_kept(const std::string& key, BuildResult& result);
    void create();
    void load(const TableRows& rows, BuildResult& result);
    void build(BuildResult& result);
    void measure_sizes(BuildResult& result);
    std::string key(const std::string& data_key) const;

    const Options& options_;
    const SystemOptions& system_;
    std::string name_;
};

}  // namespace pgwarp::bench
