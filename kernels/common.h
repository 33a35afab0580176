// The base of every kernel header. A kernel knows vectors, codes and lists, and nothing of
// PostgreSQL: a file that includes postgres.h first does not compile. (An extension file includes
// kernel headers before compat.h, which brings postgres.h and its macros over printf and friends.)
#pragma once

#ifdef PG_VERSION_NUM
#error "kernel headers must come before postgres.h"
#endif

#include "kernels/metric.h"

#include <cstddef>
#include <cstdint>
