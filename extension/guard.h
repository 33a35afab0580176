// The bridge from C++ to PostgreSQL's error handling.
//
// Two worlds: kernel code throws, PostgreSQL code longjmps, and neither may cross the other's
// frames. guarded() runs kernel code, catches what it throws, leaves the catch block (a longjmp
// out of one would leak the exception object), and only then reports. The function it runs must not
// call anything of PostgreSQL that can ereport, and its objects must not outlive it.
#pragma once

#include <exception>
#include <new>
#include <cstring>
#include <type_traits>

#include "kernels/interrupts.h"
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

// What long work of a backend polls.
//
// InterruptPending is not among the flags: PostgreSQL also raises it for events after which the
// query goes on, some of them periodic (client_connection_check_interval). Work that starts again
// after an interrupt, and takes longer than the interval, would start again forever.
inline Interrupts query_interrupts() {
    return {&QueryCancelPending, &ProcDiePending};
}

// Like guarded(), for work that polls query_interrupts() and throws Interrupted. PostgreSQL then
// handles the interrupt; if the query goes on, the work starts again.
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

// A C++ object that is deleted when its memory context is reset: ereport unwinds no C++ frames, but
// PostgreSQL resets contexts after an error. Assign `object` inside guarded().
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
