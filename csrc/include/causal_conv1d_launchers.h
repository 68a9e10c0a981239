// The fast forward kernels, one pair of functions each: whether it can serve a call, and its launch (only if it can).
#pragma once

#include "causal_conv1d.h"

namespace hipconv {

bool causal_conv1d_tile_serves(const CausalConv1dFwdParams& params);  // channel-last, widths 2 to 4
void causal_conv1d_tile(const CausalConv1dFwdParams& params, void* stream);

bool causal_conv1d_vector_serves(const CausalConv1dFwdParams& params);  // channel-first, widths 2 to 4
void causal_conv1d_vector(const CausalConv1dFwdParams& params, void* stream);

}  // namespace hipconv
