// Single-row inserts into an indexed table.
#pragma once

#include "bench/database.h"
#include "bench/results.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// Inserts rows [first, first + count) of `rows` from one client, each in its own transaction, with
// ids from first_id on.
InsertResult measure_inserts(const Database& database, const Vectors& rows, size_t first,
                             size_t count, size_t first_id, const std::string& commit);

}  // namespace pgwarp::bench
