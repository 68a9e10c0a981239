// The fast backward kernels share the derivative of SiLU, in pairs, and the question whether a call has states.
#pragma once

#include "../common/launch.h"
#include "../common/vector_math.h"
#include "causal_conv1d/backward.h"

namespace hipconv {

// The derivative of SiLU: with sigma = sigmoid(v), sigma * (1 + v * (1 - sigma)). (Forms with v * sigma alone in a sum lose the
// 1 where v is large. The product with log2(e) may overflow: sigma is then 0 or 1, as it should be.)
HIPCONV_INLINE Pair silu_derivative(Pair v) {
    const Pair scaled = multiply(v, twice(-kLog2e));
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    const Pair sigma = make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator)));
    return multiply(sigma, multiply_add(v, multiply_add(sigma, twice(-1.0f), twice(1.0f)), twice(1.0f)));
}

inline bool bwd_has_states(const CausalConv1dBwdParams& p) {
    return p.in.initial_states.data || p.dinitial_states.data || p.dfinal_states.data;
}

}  // namespace hipconv
