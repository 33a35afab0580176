#include "bench/connection.h"
#include "kernels/float16.h"

#include <bit>
#include <cstring>
#include <stdexcept>

namespace pgwarp::bench {
namespace {

constexpr size_t copy_message_bytes = 1 << 18;

void append_int16(std::string& out, uint16_t value) {
    out.push_back(static_cast<char>(value >> 8));
    out.push_back(static_cast<char>(value));
}

void append_int32(std::string& out, uint32_t value) {
    append_int16(out, static_cast<uint16_t>(value >> 16));
    append_int16(out, static_cast<uint16_t>(value));
}

// libpq's messages end in a newline, ours do not.
std::string trimmed(const char* message) {
    std::string text = message;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

struct ParameterArrays {
    std::vector<const char*> values;
    std::vector<int> lengths;
    std::vector<int> formats;

    explicit ParameterArrays(std::span<const std::string> parameters, int format) {
        for (const std::string& parameter : parameters) {
            values.push_back(parameter.data());
            lengths.push_back(static_cast<int>(parameter.size()));
            formats.push_back(format);
        }
    }
    int count() const { return static_cast<int>(values.size()); }
};

}  // namespace

std::string first_value(const Result& result) {
    return PQntuples(result.get()) > 0 ? PQgetvalue(result.get(), 0, 0) : "";
}

Connection::Connection(const std::string& connection_string, const std::string& database) {
    // libpq expands the first dbname as a connection string; the second then overrides its dbname.
    const char* keywords[] = {"dbname", "dbname", "application_name", nullptr};
    const char* values[] = {connection_string.c_str(), database.c_str(), "pgwarp_bench", nullptr};
    connection_.reset(PQconnectdbParams(keywords, values, 1));
    if (PQstatus(connection_.get()) != CONNECTION_OK)
        throw std::runtime_error("no connection to database \"" + database +
                                 "\": " + trimmed(PQerrorMessage(connection_.get())));
    // NOTICEs of DROP ... IF EXISTS and the like would run into the report.
    execute("SET client_min_messages = warning");
}

Result Connection::check(PGresult* raw_result, const std::string& sql) {
    Result result(raw_result);
    const ExecStatusType status = PQresultStatus(result.get());
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_COPY_IN)
        return result;
    throw std::runtime_error(trimmed(PQerrorMessage(connection_.get())) +
                             "\nSTATEMENT:  " + sql.substr(0, 500));
}

Result Connection::execute(const std::string& sql) {
    return check(PQexec(connection_.get(), sql.c_str()), sql);
}

Result Connection::execute(const std::string& sql, std::span<const std::string> parameters) {
    const ParameterArrays arrays(parameters, 0);
    return check(PQexecParams(connection_.get(), sql.c_str(), arrays.count(), nullptr,
                              arrays.values.data(), nullptr, nullptr, 0),
                 sql);
}

void Connection::prepare(const std::string& name, const std::string& sql) {
    check(PQprepare(connection_.get(), name.c_str(), sql.c_str(), 0, nullptr), sql);
}

Result Connection::execute_prepared(const std::string& name,
                                    std::span<const std::string> parameters) {
    const ParameterArrays arrays(parameters, 1);
    return check(
        PQexecPrepared(connection_.get(), name.c_str(), arrays.count(), arrays.values.data(),
                       arrays.lengths.data(), arrays.formats.data(), 1),
        "EXECUTE " + name);
}

Result Connection::execute_binary(const std::string& sql, std::span<const std::string> parameters) {
    const ParameterArrays arrays(parameters, 1);
    return check(
        PQexecParams(connection_.get(), sql.c_str(), arrays.count(), nullptr, arrays.values.data(),
                     arrays.lengths.data(), arrays.formats.data(), 1),
        sql);
}

void Connection::set(const std::string& name, const std::string& value) {
    const std::string parameters[] = {name, value};
    try {
        execute("SELECT set_config($1, $2, false)", parameters);
    } catch (const std::runtime_error& error) {
        throw std::runtime_error("could not set " + name + " = " + value + ": " + error.what());
    }
}

std::string Connection::show(const std::string& name) {
    const std::string parameters[] = {name};
    return first_value(execute("SELECT current_setting($1)", parameters));
}

std::string Connection::quote_identifier(const std::string& name) {
    char* quoted = PQescapeIdentifier(connection_.get(), name.c_str(), name.size());
    std::string result = quoted;
    PQfreemem(quoted);
    return result;
}

std::string Connection::quote_literal(const std::string& text) {
    char* quoted = PQescapeLiteral(connection_.get(), text.c_str(), text.size());
    std::string result = quoted;
    PQfreemem(quoted);
    return result;
}

BinaryCopy::BinaryCopy(Connection& connection, const std::string& sql) : connection_(connection) {
    connection_.execute(sql);
    buffer_.append("PGCOPY\n\377\r\n\0", 11);
    append_int32(buffer_, 0);  // flags
    append_int32(buffer_, 0);  // length of the header's extension
}

void BinaryCopy::row(std::span<const std::string> fields) {
    append_int16(buffer_, static_cast<uint16_t>(fields.size()));
    for (const std::string& field : fields) {
        append_int32(buffer_, static_cast<uint32_t>(field.size()));
        buffer_ += field;
    }
    if (buffer_.size() >= copy_message_bytes) send();
}

void BinaryCopy::send() {
    if (PQputCopyData(connection_.raw(), buffer_.data(), static_cast<int>(buffer_.size())) != 1)
        throw std::runtime_error(trimmed(PQerrorMessage(connection_.raw())));
    buffer_.clear();
}

void BinaryCopy::finish() {
    append_int16(buffer_, 0xffff);
    send();
    if (PQputCopyEnd(connection_.raw(), nullptr) != 1)
        throw std::runtime_error(trimmed(PQerrorMessage(connection_.raw())));
    std::string failure;
    while (PGresult* raw_result = PQgetResult(connection_.raw())) {
        const Result result(raw_result);
        if (PQresultStatus(raw_result) != PGRES_COMMAND_OK && failure.empty())
            failure = trimmed(PQresultErrorMessage(raw_result));
    }
    if (!failure.empty()) throw std::runtime_error(failure);
}

std::string binary_int4(int32_t value) {
    std::string out;
    append_int32(out, static_cast<uint32_t>(value));
    return out;
}

std::string binary_vector(std::span<const float> values, const std::string& type) {
    const bool halves = type == "halfvec";
    std::string out;
    out.reserve(4 + values.size_bytes());
    append_int16(out, static_cast<uint16_t>(values.size()));
    append_int16(out, 0);
    for (const float value : values) {
        if (halves)
            append_int16(out, static_cast<uint16_t>(to_float16(value)));
        else
            append_int32(out, std::bit_cast<uint32_t>(value));
    }
    return out;
}

int32_t read_binary_int4(const char* bytes) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return static_cast<int32_t>(value);
}

}  // namespace pgwarp::bench
