// What the CPU kernels of the packed-sequence conv1d show each other.
#pragma once

#include "causal_conv1d/prefill.h"

namespace hipconv {

// prefill_simd.cpp: neighbouring channels are neighbours in memory, in x and the outputs.
bool causal_conv1d_varlen_simd_serves(const CausalConv1dVarlenParams& params);
void causal_conv1d_varlen_simd(const CausalConv1dVarlenParams& params);

}  // namespace hipconv
