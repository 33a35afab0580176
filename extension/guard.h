// The bridge from C++ to PostgreSQL's error handling.
//
// Two worlds: kernel code throws, PostgreSQL code longjmps, and neither may cross the other's
// frames. caught() runs kernel code and catches what it throws. guarded() reports that as an error
// of PostgreSQL, once the catch block is left (a longjmp out of one would leak the exception
// object). The function they run must not call anything of PostgreSQL that can ereport, and its
// objects must not outlive it.
#pragma once

#include <exception>
#include <new>
#include <cstring>
#include <type_traits>

#include "kernels/interrupts.h"
#include "extension/compat.h"

namespace pgwarp {

enum class Thrown { nothing, interrupted, out_of_memory, error, unknown };

// Runs a function and writes the message of what it throws. Reports nothing, so threads may call
// it, too.
template <typename Function>
Thrown caught(char* message, size_t size, Function&& function) {
    try {
        function();
        return Thrown::nothing;
    } catch (const Interrupted& error) {
        strlcpy(message, error.what(), size);
        return Thrown::interrupted;
    } catch (const std::bad_alloc& error) {
        strlcpy(message, error.what(), size);
        return Thrown::out_of_memory;
    } catch (const std::exception& error) {
        strlcpy(message, error.what(), size);
        return Thrown::error;
    } catch (...) {
        strlcpy(message, "unknown exception", size);
        return Thrown::unknown;
    }
}

inline void report_thrown(Thrown thrown, const char* message) {
    if (thrown == Thrown::nothing) return;
    const bool out_of_memory = thrown == Thrown::out_of_memory;
    if (out_of_memory) message = "out of memory";
    if (thrown == Thrown::unknown) message = "unknown exception in pgwarp";
    ereport(ERROR, (errcode(out_of_memory ? ERRCODE_OUT_OF_MEMORY : ERRCODE_INTERNAL_ERROR),
                    errmsg("%s", message)));
}

template <typename Function>
inline constexpr bool nothing_to_destroy =
    std::is_trivially_destructible_v<std::remove_reference_t<Function>>;

template <typename Function>
void guarded(Function&& function) {
    static_assert(nothing_to_destroy<Function>,
                  "capture by reference: ereport would skip a captured object's destructor");
    char message[512];
    const Thrown thrown = caught(message, sizeof(message), function);
    report_thrown(thrown, message);
}

// What long work of a backend polls.
//
// InterruptPending is not among the flags: PostgreSQL also raises it for events after which the
// query goes on, some of them periodic (client_connection_check_interval). Work that starts again
// after an interrupt, and takes longer than the interval, would start again forever.
inline Interrupts query_interrupts() {
    return {&QueryCancelPending, &ProcDiePending};
}

// Like guarded(), for work that polls query_interrupts(). False: an interrupt ended it.
template <typename Function>
bool guarded_until_interrupt(Function&& function) {
    static_assert(nothing_to_destroy<Function>,
                  "capture by reference: ereport would skip a captured object's destructor");
    char message[512];
    const Thrown thrown = caught(message, sizeof(message), function);
    if (thrown == Thrown::interrupted) return false;
    report_thrown(thrown, message);
    return true;
}

// The same, but PostgreSQL handles the interrupt; if the query goes on, the work starts again.
template <typename Function>
void guarded_interruptibly(Function&& function) {
    while (!guarded_until_interrupt(function)) CHECK_FOR_INTERRUPTS();
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
