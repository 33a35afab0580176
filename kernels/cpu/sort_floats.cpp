#include "kernels/sort_floats.h"

#include "hwy/contrib/sort/vqsort.h"

namespace pgwarp {

void sort_floats(float* values, size_t count) {
    hwy::Sorter()(values, count, hwy::SortAscending());
}

}  // namespace pgwarp
