// The two ways of the CPU's vectorised backward, and what they share.
#pragma once

#include "along_channels.h"
#include "along_tokens.h"
#include "backward.h"
#include "causal_conv1d/forward_formula.h"
#include "serial.h"

namespace hipconv {

// Each walk of so many tokens leaves a row of partial sums.
int64_t bwd_walk_along_tokens(const CausalConv1dBwdParams& p);
int64_t bwd_walk_along_channels(const CausalConv1dBwdParams& p);

void causal_conv1d_bwd_along_tokens(const CausalConv1dBwdParams& p);
void causal_conv1d_bwd_along_channels(const CausalConv1dBwdParams& p);

inline float* partials_of(const CausalConv1dBwdParams& p, int64_t row, int64_t d) {
    return static_cast<float*>(p.partials) + row * (p.in.width + 1) * p.in.dim + d;
}

inline bool is_parallel(const CausalConv1dBwdParams& p) {
    return static_cast<double>(p.in.batch) * p.in.dim * p.in.seqlen >= kSerialBelow;
}

}  // namespace hipconv
