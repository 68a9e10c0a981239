// What the CPU kernels of the causal conv1d show each other.
#pragma once

#include "causal_conv1d/forward.h"

namespace hipconv {

constexpr int64_t kSerialBelow = 1 << 14;  // outputs that are not worth waking a second thread for: about 5 us of work

// forward_simd.cpp
constexpr int kSimdMaxWidth = 8;
void causal_conv1d_simd(const CausalConv1dFwdParams& p, bool channels_inside);

}  // namespace hipconv
