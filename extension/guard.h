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

#include "kernels/workers.h"
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

// The same for work that polls QueryCancelPending and ProcDiePending and ends with Interrupted:
// lets PostgreSQL handle them, then starts the work again where that did not end the query.
//
// InterruptPending is no flag to poll: it is also raised for matters that PostgreSQL settles and
// goes on, some of them at regular intervals (client_connection_check_interval), and work that
// takes longer than the interval would start again for ever.
template <typename Function>
void guarded_interruptibly(Function&& function) {
    bool interrupted;
    do {
        interrupted = false;
        guarded([&] {
            try {
                function();
            } catch (const Interrupted&) {
                interrupted = true;
            }
        });
        if (interrupted) CHECK_FOR_INTERRUPTS();
    } while (interrupted);
}

// A C++ object that ends with a memory context: ereport unwinds no frames, but contexts are reset.
// Fill `object` inside guarded().
template <typename T>
struct Owned {
    T* object;
    MemoryContextCallback callback;
};

template <typename T>
Owned<T>* owned_by(MemoryContext context) {
    auto* owned = static_cast<Owned<T>*>(MemoryContextAllocZero(context, sizeof(Owned<T>)));
    owned->callback.func = [](void* argument) {
        auto* ending = static_cast<Owned<T>*>(argument);
        delete ending->object;
        ending->object = nullptr;
    };
    owned->callback.arg = owned;
    MemoryContextRegisterResetCallback(context, &owned->callback);
    return owned;
}

}  // namespace pgwarp
