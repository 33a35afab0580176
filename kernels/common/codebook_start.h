// The first codewords of a product quantizer: rows that are drawn; CPU and devices draw the same.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"

#include <vector>

namespace pgwarp {

// The numbers of the rows, among `count`, that become codewords.
std::vector<uint32_t> draw_codewords(const QuantizerShape& shape, size_t count, uint64_t seed);

// The codebook, (dims)(256), of the drawn rows, (drawn)(dims). Where they are fewer than the
// codewords, they repeat.
void codebook_of_rows(const QuantizerShape& shape, const float* rows, size_t drawn,
                      float* codebook);

}  // namespace pgwarp
