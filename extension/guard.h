// The bridge from C++ to PostgreSQL's error handling.
//
// Two worlds: kernel code throws, PostgreSQL code longjmps, and neither may cross the other's
// frames. guarded() runs kernel code, catches what it throws, leaves the catch block (a longjmp
// out of one would leak the exception object), and only then reports. The function it runs calls
// nothing of PostgreSQL that can ereport, and keeps its objects inside itself.
#pragma once

#include <exception>
#include <new>
#include <cstring>
#include <type_traits>

#include "extension/compat.h"

namespace pgwarp {

template <typename Function>
void guarded(Function&& function) {
    static_assert(std::is_trivially_destructible_v<std::remove_reference_t<Function>>,
                  "capture by reference: ereport would skip a captured object's destructor");
    char message[512];
    int code = ERRCODE_INTERNAL_ERROR;
    try {
        function();
        return;
    } catch (const std::bad_alloc&) {
        code = ERRCODE_OUT_OF_MEMORY;
        strlcpy(message, "out of memory", sizeof(message));
    } catch (const std::exception& error) {
        strlcpy(message, error.what(), sizeof(message));
    } catch (...) {
        strlcpy(message, "unknown exception in pgwarp", sizeof(message));
    }
    ereport(ERROR, (errcode(code), errmsg("%s", message)));
}

}  // namespace pgwarp
