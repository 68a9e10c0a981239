// This file has the formulas of the forward, an element at a time: the plain kernels of the GPU and of the CPU are loops around
// them.
#pragma once

#include "causal_conv1d/forward.h"
#include "causal_conv1d/states_formula.h"

namespace hipconv {

// Tells whether token t sees something else than it would if the row were one sequence without a state.
HIPCONV_INLINE bool differs_from_plain_row(const CausalConv1dInputs& p, int64_t b, int64_t t) {
    if (p.initial_states.data && t < p.width - 1) return true;
    if (!p.seq_idx.data) return false;
    const int32_t sequence = sequence_of(p, b, t);
    bool differs = sequence < 0;
    for (int k = 1; k < p.width && k <= t; ++k) differs |= sequence_of(p, b, t - k) != sequence;
    return differs;
}

template <typename T, typename A>
HIPCONV_INLINE void causal_conv1d_one_output(const CausalConv1dFwdParams& p, int64_t b, int64_t d, int64_t t) {
    A value{0};
    if (!is_padding(p, b, t)) {
        value = sum_at<T, A>(p, b, d, t);
        if (p.use_silu) {
            if constexpr (sizeof(A) == 8)
                value *= sigmoid(value);
            else
                value = silu(value);
        }
    }
    at<T>(p.out, b, d, t) = rounded<T>(value);
}

// All columns of a row's final state, oldest first: each comes from a column that is not older, so it may lie where the initial
// state does.
template <typename T>
HIPCONV_INLINE void causal_conv1d_one_final_state(const CausalConv1dFwdParams& p, int64_t b, int64_t d) {
    const int past = p.width - 1;
    for (int column = 0; column < past; ++column) {
        const int64_t t = int64_t{p.seqlen} - past + column;
        T value{};
        if (final_state_counts(p, b, t)) value = t < 0 ? at<T>(p.initial_states, b, d, t + past) : at<T>(p.x, b, d, t);
        at<T>(p.final_states, b, d, column) = value;
    }
}

// Tells whether neighbouring channels, rather than neighbouring tokens, are neighbours in memory: loops walk that axis fastest.
inline bool dim_is_inner(const Sequences& x) {
    const int64_t dim_step = x.dim_stride < 0 ? -x.dim_stride : x.dim_stride;
    const int64_t seqlen_step = x.seqlen_stride < 0 ? -x.seqlen_stride : x.seqlen_stride;
    return dim_step < seqlen_step;
}

}  // namespace hipconv
