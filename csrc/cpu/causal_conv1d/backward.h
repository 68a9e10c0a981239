// What the CPU kernels of the causal conv1d's backward show each other.
#pragma once

#include "causal_conv1d/backward.h"

namespace hipconv {

// backward_simd.cpp. Partial sums lie in the workspace as rows of (width + 1, dim), as on GPUs.
constexpr int kBwdSimdMaxWidth = 8;
int64_t causal_conv1d_bwd_simd_partials(const CausalConv1dBwdParams& p, bool channels_inside);
void causal_conv1d_bwd_simd(const CausalConv1dBwdParams& p, bool channels_inside);

}  // namespace hipconv
