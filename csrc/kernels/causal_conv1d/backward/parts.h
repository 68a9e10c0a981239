// The fast backward kernels share these parts.
#pragma once

#include "../common/launch.h"
#include "../common/parts.h"
#include "causal_conv1d/backward.h"

namespace hipconv {

// Kernels whose lanes hold one channel of f32 compute with floats where others compute with pairs.
HIPCONV_INLINE float multiply_add(float a, float b, float c) { return a * b + c; }
HIPCONV_INLINE float multiply(float a, float b) { return a * b; }
HIPCONV_INLINE float add(float a, float b) { return a + b; }
HIPCONV_INLINE float exp2_of(float v) { return approx_exp2(v); }
HIPCONV_INLINE Pair exp2_of(Pair v) { return make_pair(approx_exp2(low(v)), approx_exp2(high(v))); }
HIPCONV_INLINE float reciprocal_of(float v) { return approx_rcp(v); }
HIPCONV_INLINE Pair reciprocal_of(Pair v) { return make_pair(approx_rcp(low(v)), approx_rcp(high(v))); }

template <typename Value>
HIPCONV_INLINE Value all_of(float v) {
    if constexpr (sizeof(Value) == sizeof(float))
        return v;
    else
        return twice(v);
}

// The derivative of SiLU: with sigma = sigmoid(v), sigma * (1 + v * (1 - sigma)). (Forms with v * sigma alone in a sum lose the
// 1 where v is large. The product with log2(e) may overflow: sigma is then 0 or 1, as it should be.)
template <typename Value>
HIPCONV_INLINE Value silu_derivative(Value v) {
    const Value one = all_of<Value>(1.0f);
    const Value sigma = reciprocal_of(add(one, exp2_of(multiply(v, all_of<Value>(-kLog2e)))));
    return multiply(sigma, multiply_add(v, multiply_add(sigma, all_of<Value>(-1.0f), one), one));
}

inline bool bwd_has_states(const CausalConv1dBwdParams& p) {
    return p.in.initial_states.data || p.dinitial_states.data || p.dfinal_states.data;
}

// The channel-first kernel is compiled for widths 2 to this, which models have. Each width costs seconds of a build.
constexpr int kMaxFastBwdWidth = 4;

}  // namespace hipconv
