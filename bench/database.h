// A system's database: made, loaded, indexed, measured for size, dropped.
#pragma once

#include <string>
#include <vector>

#include "bench/connection.h"
#include "bench/options.h"
#include "bench/results.h"

namespace pgwarp::bench {

class Database {
  public:
    Database(const Options& options, const SystemOptions& system);

    // Makes the database, loads the base and builds the index, unless --keep finds one made of the
    // same data by the same SQL.
    BuildResult make(const Vectors& base, const std::string& data_key);

    // From now on the table holds more than was loaded, so a later run must not take it over.
    void forget();
    void drop();

    Connection connect() const { return Connection(options_.connection, name_); }
    // Of the table, but for the primary key.
    std::vector<std::string> index_names() const;

  private:
    bool find_kept(const std::string& key, BuildResult& result);
    void create();
    void load(const Vectors& base, BuildResult& result);
    void build(BuildResult& result);
    void measure_sizes(BuildResult& result);
    std::string key(const std::string& data_key) const;

    const Options& options_;
    const SystemOptions& system_;
    std::string name_;
};

}  // namespace pgwarp::bench
