// What the fast backward kernels share.
#pragma once

#include "../common/launch.h"
#include "../common/parts.h"
#include "causal_conv1d/backward.h"

namespace hipconv {

// The derivative of SiLU: with sigma = sigmoid(v), sigma * (1 + v * (1 - sigma)). (Forms with v * sigma alone in a sum lose the 1
// where v is large.)
HIPCONV_INLINE Pair silu_derivative(Pair v) {
    const Pair scaled = multiply(v, twice(-kLog2e));
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    const Pair sigma = make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator)));
    return multiply(sigma, multiply_add(v, multiply_add(sigma, twice(-1.0f), twice(1.0f)), twice(1.0f)));
}

// What sees what in rows with sequence ids, worked out once for all channels (sums.cu): a byte for each token, with
// bit i set if its tap i sees an input; none for padding, nor for tokens outside the row, of which there are some on either side.
constexpr int kTapsBefore = 16, kTapsAfter = 16;

HIPCONV_INLINE int64_t bwd_taps_pitch(int32_t seqlen) { return (int64_t{seqlen} + kTapsBefore + kTapsAfter + 3) / 4 * 4; }

HIPCONV_INLINE const uint8_t* bwd_taps_of(const CausalConv1dBwdParams& p, int64_t b, int64_t t) {
    return p.taps + b * bwd_taps_pitch(p.in.seqlen) + kTapsBefore + t;
}

inline bool bwd_has_states(const CausalConv1dBwdParams& p) {
    return p.in.initial_states.data || p.dinitial_states.data || p.dfinal_states.data;
}

constexpr int kMaxFastBwdWidth = 4;  // they are compiled for widths 2 to this: what models have; each width costs seconds of a build

}  // namespace hipconv
