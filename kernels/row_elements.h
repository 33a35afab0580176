// Rows on their way to an executor: as floats, or as halves, which take half the bytes. A device
// widens halves in its own memory.
#pragma once

#include "kernels/float16.h"

#include <cstring>
#include <vector>

namespace pgwarp {

enum class RowElements : uint8_t {
    float32,
    float16,  // finite
};

inline size_t bytes_of(RowElements elements) {
    return elements == RowElements::float16 ? sizeof(float16) : sizeof(float);
}

// The rows as floats: themselves, or widened into `room`.
inline const float* widened(RowElements elements, const void* rows, size_t count,
                            std::vector<float>& room) {
    if (elements == RowElements::float32) return static_cast<const float*>(rows);
    room.resize(count);
    for (size_t i = 0; i < count; ++i) room[i] = to_float(static_cast<const float16*>(rows)[i]);
    return room.data();
}

}  // namespace pgwarp
