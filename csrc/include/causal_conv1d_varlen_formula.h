// One channel of one sequence, the formula read aloud. The naive GPU kernel and the plain CPU kernel are loops around it.
#pragma once

#include "activation.h"
#include "causal_conv1d_varlen_schedule.h"

namespace hipconv {

template <typename S>
HIPCONV_INLINE S* state_of(const CausalConv1dVarlenParams& p, int32_t slot, int64_t d, int64_t column) {
    return static_cast<S*>(p.states) + slot * p.slot_stride + d * p.state_dim_stride + (p.first_column + column) * p.column_stride;
}

template <typename S, typename T>
HIPCONV_INLINE float window_element(const CausalConv1dVarlenParams& p, const PackedSequence& s, int64_t d, int64_t position) {
    if (position >= 0)
        return to_float(static_cast<const T*>(p.x)[d * p.x_dim_stride + (s.begin + position) * p.x_token_stride]);
    return s.read_slot == kNoSlot ? 0.0f : to_float(*state_of<S>(p, s.read_slot, d, p.width - 1 + position));
}

// Of the output tensors, the one that has channel d.
HIPCONV_INLINE const VarlenOutput& output_of(const CausalConv1dVarlenParams& p, int64_t d) {
    return p.outputs == 3 && d >= p.out[2].first_channel   ? p.out[2]
           : p.outputs == 3 && d >= p.out[1].first_channel ? p.out[1]
                                                           : p.out[0];
}

template <typename T>
HIPCONV_INLINE T* output_at(const CausalConv1dVarlenParams& p, int64_t d, int64_t token) {
    const VarlenOutput& out = output_of(p, d);
    return static_cast<T*>(out.data) + (d - out.first_channel) * out.dim_stride + token * out.token_stride;
}

template <typename T>
HIPCONV_INLINE void dead_tokens(const CausalConv1dVarlenParams& p, int64_t d, int64_t begin, int64_t end) {
    if (p.dead_tokens == DeadTokens::leave) return;
    for (int64_t t = begin; t < end; ++t)
        *output_at<T>(p, d, t) = p.dead_tokens == DeadTokens::zero
                                     ? from_float<T>(0.0f)
                                     : static_cast<const T*>(p.x)[d * p.x_dim_stride + t * p.x_token_stride];
}

template <typename S, typename T>
HIPCONV_INLINE void write_state(const CausalConv1dVarlenParams& p, const PackedSequence& s, int64_t d, StateToWrite to) {
    // Columns in this order may be moved within one slot: each is read no later than it is written.
    for (int32_t i = 0; i < p.width - 1; ++i)
        *state_of<S>(p, to.slot, d, i) =
            from_float<S>(canonical_nan(window_element<S, T>(p, s, d, to.position - (p.width - 1) + i)));
}

template <typename S, typename T>
HIPCONV_INLINE void convolve_sequence(const CausalConv1dVarlenParams& p, const PackedSequence& s, int64_t d) {
    if (!s.live) return dead_tokens<T>(p, d, s.begin, s.end);
    const int64_t length = s.end - s.begin;
    for (int64_t t = 0; t < length; ++t) {
        float sum = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;
        // Taps that would reach before a sequence without a state are skipped, not multiplied by zero: 0 * inf is NaN.
        const int64_t absent = s.read_slot == kNoSlot ? p.width - 1 - t : 0;
        for (int64_t i = absent < 0 ? 0 : absent; i < p.width; ++i) {
            const float w = load_parameter(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
            sum += w * window_element<S, T>(p, s, d, t - (p.width - 1) + i);
        }
        *output_at<T>(p, d, s.begin + t) = from_float<T>(p.use_silu ? silu(sum) : sum);
    }
    if (length <= 0) return;  // an empty sequence keeps its state
    const int32_t count = states_to_write(p, s);
    for (int pass = 0; pass < 2; ++pass) {  // the slot that is read is overwritten last
        for (int32_t n = 0; n < count; ++n) {
            const StateToWrite to = state_to_write(p, s, n);
            if (to.slot != kNoSlot && (to.slot == s.read_slot) == (pass == 1)) write_state<S, T>(p, s, d, to);
        }
    }
}

// The sequence of this number; the one after the last stands for the tokens outside all sequences.
template <typename S, typename T>
HIPCONV_INLINE void convolve_sequence(const CausalConv1dVarlenParams& p, int32_t number, int64_t d) {
    if (number < p.sequences) return convolve_sequence<S, T>(p, packed_sequence(p, number), d);
    dead_tokens<T>(p, d, 0, clamp_token(p, load_index(p.query_start_loc, 0)));
    dead_tokens<T>(p, d, clamp_token(p, load_index(p.query_start_loc, p.sequences)), p.tokens);
}

}  // namespace hipconv
