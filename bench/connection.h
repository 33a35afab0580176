// libpq with C++ lifetimes: a result or an exception with the server's own words.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <libpq-fe.h>

namespace pgwarp::bench {

struct ResultDeleter {
    void operator()(PGresult* result) const { PQclear(result); }
};
using Result = std::unique_ptr<PGresult, ResultDeleter>;

// The first column of the first row, as text; "" if there is no row.
std::string first_value(const Result& result);

class Connection {
  public:
    // database overrides the one in the connection string.
    Connection(const std::string& connection_string, const std::string& database);

    // One or more statements without parameters.
    Result execute(const std::string& sql);
    // Text parameters.
    Result execute(const std::string& sql, std::span<const std::string> parameters);

    // A statement whose parameters and results are binary.
    void prepare(const std::string& name, const std::string& sql);
    Result execute_prepared(const std::string& name, std::span<const std::string> parameters);
    // The same without a name: parsed and planned each time.
    Result execute_binary(const std::string& sql, std::span<const std::string> parameters);

    // For this session.
    void set(const std::string& name, const std::string& value);
    std::string show(const std::string& name);

    std::string quote_identifier(const std::string& name);
    std::string quote_literal(const std::string& text);

    PGconn* raw() { return connection_.get(); }

  private:
    Result check(PGresult* result, const std::string& sql);

    struct Deleter {
        void operator()(PGconn* connection) const { PQfinish(connection); }
    };
    std::unique_ptr<PGconn, Deleter> connection_;
};

// COPY table FROM STDIN in binary, in large messages.
class BinaryCopy {
  public:
    BinaryCopy(Connection& connection, const std::string& sql);
    // One row; each field already in its type's binary form.
    void row(std::span<const std::string> fields);
    void finish();

  private:
    void send();

    Connection& connection_;
    std::string buffer_;
};

// Types in the binary form of PostgreSQL's protocol: big-endian. A vector is an int16 number of
// dimensions, an int16 zero, and float4 values.
std::string binary_int4(int32_t value);
// Of a type of vectors: "vector", or "halfvec", whose elements are rounded.
std::string binary_vector(std::span<const float> values, const std::string& type);
int32_t read_binary_int4(const char* bytes);

}  // namespace pgwarp::bench
