// Asks a database which rows pass a filter.
#pragma once

#include "bench/connection.h"
#include "bench/truth.h"

namespace pgwarp::bench {

// The rows that pass, for each of truth.distinct (or one alone, if there are none). Reads the
// table, never an index: what an index has wrong must not become the truth.
std::vector<Rows> ask_passing(Connection& connection, const Truth& truth);

}  // namespace pgwarp::bench
