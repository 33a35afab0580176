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

// 16 moved the macros over varlena headers out of postgres.h.
#if PG_VERSION_NUM >= 160000
extern "C" {
#include "varatt.h"
}
#endif

// Rejects a value. From 16 on, an input function hands its fcinfo->context to it, and where that
// asks for soft errors (pg_input_is_valid, COPY with ON_ERROR) the error is noted and the calling
// function returns `result`. Before 16, and with no context, it is an ordinary error.
#if PG_VERSION_NUM >= 160000
#define PGWARP_REJECT(context, result, ...) ereturn(context, result, __VA_ARGS__)
#else
#define PGWARP_REJECT(context, result, ...) \
    do {                                    \
        (void)(context);                    \
        ereport(ERROR, __VA_ARGS__);        \
    } while (0)
#endif

// 16 exports what is marked PGDLLEXPORT and hides the rest; before it, PGDLLEXPORT is empty on
// this platform while we compile with -fvisibility=hidden. This form works in both.
#define PGWARP_EXPORT __attribute__((visibility("default")))

// Declares a function that SQL calls; its body follows.
#define PGWARP_FUNCTION(name)                                                  \
    extern "C" {                                                               \
    _Pragma("GCC visibility push(default)") PG_FUNCTION_INFO_V1(name);         \
    Datum name(PG_FUNCTION_ARGS);                                              \
    _Pragma("GCC visibility pop")                                              \
    }                                                                          \
    Datum name([[maybe_unused]] PG_FUNCTION_ARGS)
