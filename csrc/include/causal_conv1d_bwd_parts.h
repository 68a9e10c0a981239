// What the fast backward kernels share.
#pragma once

#include "causal_conv1d_bwd.h"
#include "causal_conv1d_launchers.h"
#include "causal_conv1d_parts.h"

namespace hipconv {

// The derivative of SiLU: with sigma = sigmoid(v), sigma * (1 + v * (1 - sigma)). (Forms with v * sigma alone in a sum lose the 1
// where v is large.)
HIPCONV_INLINE Pair silu_derivative(Pair v) {
    const Pair scaled = multiply(v, twice(-kLog2e));
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    const Pair sigma = make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator)));
    return multiply(sigma, multiply_add(v, multiply_add(sigma, twice(-1.0f), twice(1.0f)), twice(1.0f)));
}

// Asks for what will be loaded from an address later. NVIDIA's second-level cache then has it, for which registers would have to
// wait; AMD has more registers for loads under way.
HIPCONV_INLINE void prefetch(const void* address) {
#if defined(HIPCONV_NVIDIA)
    compat::prefetch(address);
#else
    (void)address;
#endif
}

// causal_conv1d_bwd_tile.cu
bool causal_conv1d_bwd_tile_serves(const CausalConv1dBwdParams& params);  // channel-last
int64_t causal_conv1d_bwd_tile_partials(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_tile(const CausalConv1dBwdParams& params, void* stream);

// causal_conv1d_bwd_vector.cu
bool causal_conv1d_bwd_vector_serves(const CausalConv1dBwdParams& params);  // channel-first
int64_t causal_conv1d_bwd_vector_partials(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_vector(const CausalConv1dBwdParams& params, void* stream);

constexpr int kMaxFastBwdWidth = 4;  // they are compiled for widths 2 to this: what models have; each width costs seconds of a build

}  // namespace hipconv
