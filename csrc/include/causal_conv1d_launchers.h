// The fast forward kernels, one pair of functions each: whether it can serve a call, and its launch (only if it can). Then what
// launches have in common.
#pragma once

#include "causal_conv1d.h"

namespace hipconv {

bool causal_conv1d_tile_serves(const CausalConv1dFwdParams& params);  // channel-last, widths 2 to 4
void causal_conv1d_tile(const CausalConv1dFwdParams& params, void* stream);

bool causal_conv1d_vector_serves(const CausalConv1dFwdParams& params);  // channel-first, widths 2 to 4
void causal_conv1d_vector(const CausalConv1dFwdParams& params, void* stream);

constexpr int64_t kOffsetLimit = int64_t{1} << 31;  // what a lane's 32-bit byte offset is allowed to reach

// How many threads side by side serve `size` elements: short rows share a block.
inline unsigned power_of_two_up_to(int64_t size, unsigned limit) {
    unsigned threads = 1;
    while (threads < limit && threads < size) threads *= 2;
    return threads;
}

// How many blocks of `each` elements cover `size`, within the grid's limit; kernels loop over what is left.
inline unsigned blocks_up_to(int64_t size, int64_t each, int64_t limit) {
    const int64_t blocks = (size + each - 1) / each;
    return static_cast<unsigned>(blocks < limit ? blocks : limit);
}

}  // namespace hipconv
