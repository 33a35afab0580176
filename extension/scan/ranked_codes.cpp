#include <algorithm>
#include <cmath>

#include "extension/scan/ranked_codes.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

void note_code(RankedCodes* codes, double code, double exact) {
    constexpr Size first = 64;
    if (std::isnan(code)) return;
    if (codes->count == codes->room) {
        codes->room = std::max(first, 2 * codes->room);
        const Size bytes = codes->room * sizeof(RankedCode);
        codes->items = static_cast<RankedCode*>(
            codes->items ? repalloc_huge(codes->items, bytes)
                         : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
    }
    codes->items[codes->count++] = {code, exact};
}

double late_share(RankedCodes* codes, Size k) {
    // Fewer do not tell.
    constexpr Size least = 8;
    k = std::min(k, codes->count);
    if (codes->count < least || k == 0) return 0;
    RankedCode* end = codes->items + codes->count;
    RankedCode* middle = codes->items + codes->count / 2;
    std::nth_element(codes->items, middle, end,
                     [](const RankedCode& a, const RankedCode& b) { return a.code < b.code; });
    const double half = middle->code;
    std::nth_element(codes->items, codes->items + k - 1, end,
                     [](const RankedCode& a, const RankedCode& b) { return a.exact < b.exact; });
    const auto late = std::count_if(codes->items, codes->items + k,
                                    [half](const RankedCode& row) { return row.code >= half; });
    return static_cast<double>(late) / static_cast<double>(k);
}

}  // namespace pgwarp
