// The one way into PostgreSQL's headers, and the one place for differences between its versions.
// Each difference says which version brought it and why we care.
//
// Include it after every standard and kernel header: postgres.h redefines printf and friends.
// Further PostgreSQL headers go into an extern "C" block after it.
#pragma once

extern "C" {
#include "postgres.h"
#include "fmgr.h"
}

#if PG_VERSION_NUM < 140000
#error "pgwarp needs PostgreSQL 14 or later"
#endif

// 16 exports what is marked PGDLLEXPORT and hides the rest; before it, PGDLLEXPORT is empty on
// this platform while we compile with -fvisibility=hidden. This form works in both.
#define PGWARP_EXPORT __attribute__((visibility("default")))

// Declares a function that SQL calls; its body follows.
#define PGWARP_FUNCTION(name)                                          \
    extern "C" {                                                       \
    _Pragma("GCC visibility push(default)") PG_FUNCTION_INFO_V1(name); \
    Datum name(PG_FUNCTION_ARGS);                                      \
    _Pragma("GCC visibility pop")                                      \
    }                                                                  \
    Datum name([[maybe_unused]] PG_FUNCTION_ARGS)
