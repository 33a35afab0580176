// What a scan that repeats a search (audit/) searches for, instead of its keys.
#pragma once

#include "extension/scan/conditions.h"
#include "extension/types/vector_type.h"

namespace pgwarp {

struct RepeatedSearch {
    VectorView query;
    Conditions conditions;
};

}  // namespace pgwarp
