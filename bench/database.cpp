#include "bench/database.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iostream>
#include <stdexcept>

#include "bench/clock.h"
#include "bench/text.h"

namespace pgwarp::bench {
namespace {

// Only a database with this comment is dropped, so that a user's own bench_x is not lost.
constexpr const char* mark = "made by pgwarp_bench, may be dropped";

std::string database_name(const std::string& system) {
    std::string name = "bench_";
    for (const char c : system) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return name.substr(0, 63);
}

// Without it, a later checkpoint's writes would disturb the next measurement. The role may lack the
// privilege for CHECKPOINT.
void checkpoint(Connection& connection) {
    try {
        connection.execute("CHECKPOINT");
    } catch (const std::runtime_error& error) {
        std::cerr << "no CHECKPOINT before measuring: " << error.what() << "\n";
    }
}

// Reports a condition with a mistake before the slow work.
void check_filters(Connection& connection, const std::vector<Filter>& filters) {
    for (const Filter& filter : filters)
        connection.prepare("", "SELECT id, $1::vector FROM items " + where_clause(filter));
}

}  // namespace

Database::Database(const Options& options, const SystemOptions& system)
    : options_(options), system_(system), name_(database_name(system.name)) {}

std::string Database::key(const std::string& data_key) const {
    std::string key = data_key + "\n" + system_.extension + "\n" +
                      describe(system_.build_settings) + "\n" +
                      (system_.primary_key ? "primary key" : "") + "\n" + system_.index + "\n" +
                      metric_operator_class(options_.metric, system_.type);
    if (options_.farthest > 0) key += "\nfarthest " + std::to_string(options_.farthest);
    for (const std::string& sql : system_.setup) key += "\n" + sql;
    return key;
}

BuildResult Database::make(const TableRows& rows, const std::string& data_key) {
    BuildResult result;
    if (options_.keep && find_kept(key(data_key), result)) {
        std::cerr << system_.name << ": using database " << name_ << " as it was left\n";
        measure_sizes(result);
        return result;
    }
    create();
    load(rows, result);
    build(result);
    measure_sizes(result);

    Connection connection = connect();
    connection.execute(
        "CREATE TABLE bench_state (key text, load_seconds float8, build_seconds float8[],"
        " work_mem text, workers text)");
    std::vector<std::string> builds;
    for (const double seconds : result.build_seconds) builds.push_back(std::to_string(seconds));
    const std::string values[] = {key(data_key), std::to_string(result.load_seconds),
                                  "{" + join(builds, ",") + "}", result.maintenance_work_mem,
                                  result.parallel_workers};
    connection.execute("INSERT INTO bench_state VALUES ($1, $2::float8, $3::float8[], $4, $5)",
                       values);
    checkpoint(connection);
    return result;
}

bool Database::find_kept(const std::string& wanted, BuildResult& result) {
    Connection admin(options_.connection, "postgres");
    const std::string names[] = {name_};
    if (first_value(admin.execute("SELECT 1 FROM pg_database WHERE datname = $1", names)).empty())
        return false;
    Connection connection = connect();
    if (first_value(connection.execute("SELECT to_regclass('bench_state')")).empty()) return false;
    const std::string keys[] = {wanted};
    const Result row = connection.execute(
        "SELECT load_seconds, array_to_string(build_seconds, ','), work_mem, workers"
        " FROM bench_state WHERE key = $1",
        keys);
    if (PQntuples(row.get()) != 1) return false;
    result.load_seconds = std::stod(PQgetvalue(row.get(), 0, 0));
    for (const std::string& seconds : split(PQgetvalue(row.get(), 0, 1), ','))
        if (!seconds.empty()) result.build_seconds.push_back(std::stod(seconds));
    result.maintenance_work_mem = PQgetvalue(row.get(), 0, 2);
    result.parallel_workers = PQgetvalue(row.get(), 0, 3);
    return true;
}

void Database::create() {
    drop();
    Connection admin(options_.connection, "postgres");
    admin.execute("CREATE DATABASE " + admin.quote_identifier(name_));
    admin.execute("COMMENT ON DATABASE " + admin.quote_identifier(name_) + " IS " +
                  admin.quote_literal(mark));
}

void Database::drop() {
    Connection admin(options_.connection, "postgres");
    const std::string names[] = {name_};
    const Result found = admin.execute(
        "SELECT coalesce(shobj_description(oid, 'pg_database'), '') FROM pg_database"
        " WHERE datname = $1",
        names);
    if (PQntuples(found.get()) == 0) return;
    if (first_value(found) != mark)
        throw std::runtime_error("database \"" + name_ +
                                 "\" is there already, and not made by this program\nHINT:  Give "
                                 "the system another name, or drop the database yourself.");
    admin.execute("DROP DATABASE " + admin.quote_identifier(name_));
}

void Database::load(const TableRows& rows, BuildResult& result) {
    const Vectors& base = rows.vectors;
    const bool labelled = !rows.labels.empty();
    Connection connection = connect();
    connection.execute("CREATE EXTENSION " + connection.quote_identifier(system_.extension) +
                       " CASCADE");
    connection.execute("CREATE TABLE items (id int, v " + system_.type + "(" +
                       std::to_string(base.dims) + ")" + (labelled ? ", far int" : "") + ")");
    for (const std::string& sql : system_.setup) connection.execute(sql);
    check_filters(connection, options_.filters);

    std::cerr << system_.name << ": loading " << base.rows << " x " << base.dims << "\n";
    const Stopwatch watch;
    BinaryCopy copy(connection, std::string("COPY items (id, v") + (labelled ? ", far" : "") +
                                    ") FROM STDIN (FORMAT binary)");
    for (size_t row = 0; row < base.rows; row++) {
        std::vector<std::string> fields = {binary_int4(static_cast<int32_t>(row)),
                                           binary_vector(base.row(row), system_.type)};
        if (labelled) fields.push_back(binary_int4(rows.labels[row]));
        copy.row(fields);
    }
    copy.finish();
    result.load_seconds = watch.seconds();
    if (system_.primary_key) connection.execute("ALTER TABLE items ADD PRIMARY KEY (id)");
    // Sets hint bits, which the build would otherwise pay for, and gathers statistics for the
    // planner. Autovacuum then has no reason to start during a measurement.
    connection.execute("VACUUM ANALYZE items");
    checkpoint(connection);
}

void Database::build(BuildResult& result) {
    Connection connection = connect();
    apply(connection, system_.build_settings);
    result.maintenance_work_mem = connection.show("maintenance_work_mem");
    result.parallel_workers = connection.show("max_parallel_maintenance_workers");
    if (system_.index.empty()) return;
    const std::string sql =
        replace_all(system_.index, "{ops}", metric_operator_class(options_.metric, system_.type));
    for (size_t i = 0; i < options_.builds; i++) {
        for (const std::string& index : index_names())
            connection.execute("DROP INDEX " + connection.quote_identifier(index));
        checkpoint(connection);
        std::cerr << system_.name << ": building (" << i + 1 << " of " << options_.builds << ") "
                  << sql << "\n";
        const Stopwatch watch;
        connection.execute(sql);
        result.build_seconds.push_back(watch.seconds());
        std::cerr << system_.name << ": built in " << fixed(watch.seconds(), 1) << " s\n";
    }
}

void Database::measure_sizes(BuildResult& result) {
    Connection connection = connect();
    result.table_bytes =
        std::stoll(first_value(connection.execute("SELECT pg_table_size('items')")));
    result.index_bytes = std::stoll(first_value(connection.execute(
        "SELECT coalesce(sum(pg_relation_size(indexrelid)), 0)::bigint FROM pg_index"
        " WHERE indrelid = 'items'::regclass AND NOT indisprimary")));
}

std::vector<std::string> Database::index_names() const {
    Connection connection = connect();
    const Result rows = connection.execute(
        "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
        " WHERE indrelid = 'items'::regclass AND NOT indisprimary");
    std::vector<std::string> names;
    for (int i = 0; i < PQntuples(rows.get()); i++) names.push_back(PQgetvalue(rows.get(), i, 0));
    return names;
}

void Database::forget() {
    connect().execute("DROP TABLE IF EXISTS bench_state");
}

}  // namespace pgwarp::bench
