#include "bench/recall_cell.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "bench/backend_clock.h"
#include "bench/clock.h"
#include "bench/recall.h"
#include "bench/text.h"

namespace pgwarp::bench {
namespace {

// Shapes with one query a statement: the vector is $1, the condition's bounds are $2 and $3. The
// author of a row is its column "chance".
const std::map<std::string, std::string> statements = {
    {"scan", "SELECT id FROM {table} {where} ORDER BY v {op} $1::vector LIMIT {k}"},
    {"join",
     "SELECT t.id FROM {table} AS t JOIN recall.authors AS a ON a.id = t.chance WHERE a.rank >= "
     "$2::int AND "
     "a.rank < $3::int ORDER BY t.v {op} $1::vector LIMIT {k}"},
    {"semi",
     "SELECT id FROM {table} AS t WHERE EXISTS (SELECT FROM recall.authors AS a WHERE a.id = "
     "t.chance AND "
     "a.rank >= $2::int AND a.rank < $3::int) ORDER BY v {op} $1::vector LIMIT {k}"},
    {"in",
     "SELECT id FROM {table} WHERE chance IN (SELECT id FROM recall.authors WHERE rank >= $2::int "
     "AND rank < "
     "$3::int) ORDER BY v {op} $1::vector LIMIT {k}"},
    {"anti",
     "SELECT id FROM {table} AS t WHERE NOT EXISTS (SELECT FROM recall.authors AS a WHERE a.id = "
     "t.chance AND "
     "(a.rank < $2::int OR a.rank >= $3::int)) ORDER BY v {op} $1::vector LIMIT {k}"},
    {"subquery",
     "SELECT id FROM (SELECT id, chance FROM {table} ORDER BY v {op} $1::vector OFFSET 0) AS s "
     "WHERE chance >= "
     "$2::int AND chance < $3::int LIMIT {k}"},
    {"window",
     "SELECT id FROM (SELECT id, chance, row_number() OVER (ORDER BY v {op} $1::vector) AS n FROM "
     "{table}) AS s "
     "WHERE chance >= $2::int AND chance < $3::int ORDER BY n LIMIT {k}"},
    {"cursor", "SELECT id FROM {table} ORDER BY v {op} {vector}"},
    {"batch",
     "SELECT query, tableoid, ctid FROM knn_search('{table}_v', ARRAY(SELECT v FROM recall.asked "
     "ORDER BY id), {k}, "
     "condition => {condition})"},
    {"lateral",
     "SELECT q.id + 1, t.id FROM recall.asked AS q CROSS JOIN LATERAL (SELECT id FROM {table} "
     "{where} ORDER BY "
     "v {op} q.v LIMIT {k}) AS t"},
};

constexpr size_t fetches = 10;  // of a cursor

std::string literal(std::span<const float> vector) {
    std::vector<std::string> values;
    for (const float value : vector) {
        char text[32];
        std::snprintf(text, sizeof(text), "%.9g", double(value));
        values.push_back(text);
    }
    return "'[" + join(values, ",") + "]'";
}

std::string condition_of(const Window& window) {
    return window.column + " >= " + std::to_string(window.low) + " AND " + window.column + " < " +
           std::to_string(window.high);
}

std::vector<std::string> parameters_of(const Questions& questions, size_t query) {
    std::vector<std::string> parameters = {binary_vector(questions.vectors.row(query), "vector")};
    const Window& window = questions.windows[query];
    if (!window.column.empty()) {
        parameters.push_back(binary_int4(window.low));
        parameters.push_back(binary_int4(window.high));
    }
    return parameters;
}

std::vector<int32_t> first_column(const Result& result) {
    std::vector<int32_t> ids;
    for (int i = 0; i < PQntuples(result.get()); i++)
        ids.push_back(read_binary_int4(PQgetvalue(result.get(), i, 0)));
    return ids;
}

}  // namespace

std::string CellRunner::statement(const Cell& cell, const Questions& questions) const {
    const Window& window = questions.windows[0];
    std::string where, condition = "NULL";
    if (!window.column.empty() && is_batch(cell)) {
        for (const Window& other : questions.windows)
            if (other < window || window < other)
                throw std::runtime_error("queries of a batch need one condition");
        where = "WHERE " + condition_of(window);
        condition = "'" + condition_of(window) + "'";
    } else if (!window.column.empty()) {
        where = "WHERE " + window.column + " >= $2::int AND " + window.column + " < $3::int";
    }
    std::string sql = statements.at(cell.shape);
    for (const auto& [name, value] :
         std::map<std::string, std::string>{{"{table}", cell.table},
                                            {"{where}", where},
                                            {"{condition}", condition},
                                            {"{op}", metric_operator(world_.metric())},
                                            {"{k}", std::to_string(cell.k)}})
        sql = replace_all(sql, name, value);
    return sql;
}

void CellRunner::apply_settings(const Cell& cell) {
    const bool exact = cell.source == "exact";
    connection_.set("ivfpq.target_recall", exact ? "1" : std::to_string(cell.target));
    connection_.set("ivfpq.executor", cell.source == "mirror" ? "service" : "cpu");
    connection_.set("ivfpq.enable_batched_join", cell.source == "pages" ? "off" : "on");
}

CellRunner::Searches CellRunner::searches(const std::string& table) {
    const std::array parameters = {table};
    const Result result = connection_.execute(
        "SELECT coalesce(sum(cpu_searches), 0), coalesce(sum(service_searches), 0) FROM "
        "pg_stat_pgwarp WHERE indexrelid IN "
        "(SELECT indexrelid FROM pg_index WHERE indrelid = $1::regclass OR indrelid IN "
        "(SELECT relid FROM pg_partition_tree($1::regclass)))",
        parameters);
    return {std::stod(PQgetvalue(result.get(), 0, 0)), std::stod(PQgetvalue(result.get(), 0, 1))};
}

// Single scans count as searches, by pages or by the service; a batch that searches lists of its
// own does not. Among dead rows a batch leaves queries to scans, so there the counters cannot tell
// a batch from single scans, and only exclude the service.
bool CellRunner::is_by_source(const Cell& cell, size_t count, const Searches& before) {
    const Searches after = searches(cell.table);
    const double queries = double(count);
    const double pages = after.by_pages - before.by_pages,
                 service = after.by_service - before.by_service;
    if (cell.source == "mirror") return service >= queries;
    if (cell.source == "pages") return pages >= queries && service == 0;
    if (cell.source == "store")
        return is_batch(cell) && service == 0 && (pages < queries / 2 || cell.dead_rows);
    return service == 0;
}

void CellRunner::load_asked(const Questions& questions) {
    connection_.execute("DROP TABLE IF EXISTS recall.asked");
    connection_.execute("CREATE TABLE recall.asked (id int PRIMARY KEY, v vector(" +
                        std::to_string(questions.vectors.dims) + "))");
    BinaryCopy copy(connection_, "COPY recall.asked FROM STDIN (FORMAT binary)");
    for (size_t i = 0; i < questions.vectors.rows; i++)
        copy.row(std::array{binary_int4(static_cast<int32_t>(i)),
                            binary_vector(questions.vectors.row(i), "vector")});
    copy.finish();
    connection_.execute("ANALYZE recall.asked");
}

void CellRunner::read_places(const std::string& table) {
    if (places_of_ == table) return;
    places_.clear();
    const Result result = connection_.execute_binary("SELECT tableoid, ctid, id FROM " + table, {});
    for (int i = 0; i < PQntuples(result.get()); i++)
        places_[std::string(PQgetvalue(result.get(), i, 0), 4) +
                std::string(PQgetvalue(result.get(), i, 1), 6)] =
            read_binary_int4(PQgetvalue(result.get(), i, 2));
    places_of_ = table;
}

std::vector<int32_t> CellRunner::ask_one(const Cell&, const Questions& questions, size_t query) {
    return first_column(connection_.execute_prepared("cell", parameters_of(questions, query)));
}

std::vector<int32_t> CellRunner::ask_cursor(const Cell& cell, const Questions& questions,
                                            size_t query) {
    connection_.execute("BEGIN");
    connection_.execute(
        "DECLARE reading CURSOR FOR " +
        replace_all(statement(cell, questions), "{vector}", literal(questions.vectors.row(query))));
    std::vector<int32_t> ids;
    while (ids.size() < cell.k) {
        const size_t wanted = std::min(cell.k - ids.size(), (cell.k + fetches - 1) / fetches);
        const auto more = first_column(
            connection_.execute_binary("FETCH " + std::to_string(wanted) + " FROM reading", {}));
        if (more.empty()) break;
        ids.insert(ids.end(), more.begin(), more.end());
    }
    connection_.execute("COMMIT");
    return ids;
}

CellRunner::Answers CellRunner::ask_all(const Cell& cell, const Questions& questions) {
    const Result result = connection_.execute_prepared("cell", {});
    Answers answers(questions.vectors.rows);
    for (int i = 0; i < PQntuples(result.get()); i++) {
        int32_t id;
        if (cell.shape == "lateral") {
            id = read_binary_int4(PQgetvalue(result.get(), i, 1));
        } else {
            const auto place = places_.find(std::string(PQgetvalue(result.get(), i, 1), 4) +
                                            std::string(PQgetvalue(result.get(), i, 2), 6));
            if (place == places_.end())
                throw std::runtime_error("knn_search returned a row that is not there");
            id = place->second;
        }
        answers.at(size_t(read_binary_int4(PQgetvalue(result.get(), i, 0)) - 1)).push_back(id);
    }
    return answers;
}

void CellRunner::check(const Questions& questions, const Answers& answers) const {
    for (size_t query = 0; query < answers.size(); query++) {
        std::vector<int32_t> ids = answers[query];
        std::sort(ids.begin(), ids.end());
        if (std::adjacent_find(ids.begin(), ids.end()) != ids.end())
            throw std::runtime_error("query " + std::to_string(query) + " got a row twice");
        for (const int32_t id : ids)
            if (id < 0 || size_t(id) >= world_.rows().rows || !world_.passes(questions, query, id))
                throw std::runtime_error("query " + std::to_string(query) + " got row " +
                                         std::to_string(id) + ", which does not pass");
    }
}

void CellRunner::note_scan(Outcome& outcome, size_t& noted) {
    const Result result = connection_.execute(
        "SELECT s->>'probes', coalesce(s->>'entries', s->>'entries_scanned'), s->>'candidates', "
        "s->>'ranked_rows' "
        "FROM to_json(ivfpq_last_scan()) AS s WHERE s->>'index' IS NOT NULL");
    if (PQntuples(result.get()) == 0) return;
    noted++;
    std::optional<double>* const means[] = {&outcome.lists, &outcome.entries, &outcome.candidates,
                                            &outcome.ranked};
    for (int i = 0; i < 4; i++)
        if (!PQgetisnull(result.get(), 0, i))
            *means[i] = means[i]->value_or(0) + std::stod(PQgetvalue(result.get(), 0, i));
}

std::optional<Outcome> CellRunner::run(const Cell& cell, const std::vector<Questions>& groups) {
    apply_settings(cell);
    if (cell.shape == "batch") read_places(cell.table);
    Outcome outcome;
    BackendClock clock(connection_);
    std::vector<float> times;
    size_t queries = 0, noted = 0;
    double cpu = 0;
    bool known_cpu = true;
    for (const Questions& questions : groups) {
        if (is_batch(cell)) load_asked(questions);
        const bool deletes = !questions.deleted.empty();
        if (deletes) {
            connection_.execute("BEGIN");
            std::vector<std::string> ids;
            for (const int32_t id : questions.deleted) ids.push_back(std::to_string(id));
            connection_.execute("DELETE FROM " + cell.table + " WHERE id = ANY ('{" +
                                join(ids, ",") + "}')");
        }
        if (cell.shape != "cursor") connection_.prepare("cell", statement(cell, questions));
        const Searches before = searches(cell.table);
        Answers answers(questions.vectors.rows);
        for (size_t repeat = 0; repeat <= cell.repeats; repeat++) {
            const auto cpu_before = clock.seconds();
            if (is_batch(cell)) {
                const Stopwatch watch;
                answers = ask_all(cell, questions);
                if (repeat == cell.repeats || repeat > 0)
                    times.push_back(float(1000 * watch.seconds() / double(answers.size())));
            } else {
                for (size_t query = 0; query < answers.size(); query++) {
                    const Stopwatch watch;
                    answers[query] = cell.shape == "cursor" ? ask_cursor(cell, questions, query)
                                                            : ask_one(cell, questions, query);
                    if (repeat == cell.repeats || repeat > 0)
                        times.push_back(float(1000 * watch.seconds()));
                    if (repeat == 0 && cell.one_index) note_scan(outcome, noted);
                }
            }
            const auto cpu_after = clock.seconds();
            known_cpu &= cpu_before && cpu_after;
            if (repeat > 0 && known_cpu) cpu += *cpu_after - *cpu_before;
            // The first round tells whether this version can do it at all.
            if (repeat == 0 && !is_by_source(cell, answers.size(), before)) {
                if (cell.shape != "cursor") connection_.execute("DEALLOCATE cell");
                if (deletes) connection_.execute("ROLLBACK");
                return {};
            }
        }
        if (cell.shape != "cursor") connection_.execute("DEALLOCATE cell");
        if (deletes) connection_.execute("ROLLBACK");
        check(questions, answers);
        for (size_t query = 0; query < answers.size(); query++) {
            const size_t wanted = std::min(cell.k, questions.neighbors[query].size());
            outcome.rows += double(answers[query].size());
            queries++;
            if (wanted == 0) {
                outcome.recall += 1;
                continue;
            }
            const double recall =
                double(count_hits(world_.metric(), world_.rows(), questions.vectors.row(query),
                                  questions.neighbors[query], answers[query], cell.k)) /
                double(wanted);
            outcome.recall += recall;
            outcome.below += recall < 0.8;
        }
    }
    const double count = double(queries);
    outcome.recall /= count;
    outcome.below /= count;
    outcome.rows /= count;
    outcome.p50 = percentile(times, 0.5);
    if (known_cpu && cell.repeats > 0) outcome.cpu = 1000 * cpu / (count * double(cell.repeats));
    for (std::optional<double>* mean :
         {&outcome.lists, &outcome.entries, &outcome.candidates, &outcome.ranked})
        if (*mean) **mean /= double(noted);
    return outcome;
}

}  // namespace pgwarp::bench
