// This file says how the decode kernels' grids cover rows and channels. It is for files that include <hip/hip_runtime.h>.
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/decode_row.h"

namespace hipconv {

// A block works on one row: rows lie along z and y of the grid, a row's strips of channels along x. There is no loop over rows,
// which would keep all of the parameters in registers.
constexpr int64_t kRowsAlongY = 65535;  // what a grid can have there
HIPCONV_INLINE int64_t row_of_block(unsigned y, unsigned z) { return z * kRowsAlongY + y; }
inline dim3 strips_of_rows(const CausalConv1dUpdateParams& p, unsigned strips) {
    return dim3(strips, blocks_up_to(p.batch, 1, kRowsAlongY), blocks_up_to(p.batch, kRowsAlongY, kRowsAlongY));
}

// Tells whether row b has tokens of no row to set to zero (zero_rest).
HIPCONV_INLINE bool has_rest(const CausalConv1dUpdateParams& p, const RowIndices& indices, int64_t b) {
    if (!p.zero_padding || !p.query_start_loc.data) return false;
    return token_within(p, indices.rest) + b < p.total_tokens || (b == 0 && token_within(p, indices.first_token) > 0);
}

}  // namespace hipconv
