// This file computes one channel of one sequence by the formula. The naive GPU kernel and the plain CPU kernel are loops around
// it.
#pragma once

#include "causal_conv1d/prefill_schedule.h"
#include "device/activation.h"

namespace hipconv {

// Elements of a type known only at run time.
HIPCONV_INLINE float load_element(const void* base, int64_t index, DType dtype) {
    return load_parameter(global_pointer<const char>(base), index, dtype);
}

HIPCONV_INLINE void store_element(void* base, int64_t index, DType dtype, float v) {
    if (dtype == DType::f32)
        global_pointer<float>(base)[index] = v;
    else
        global_pointer<uint16_t>(base)[index] = dtype == DType::f16 ? from_float<f16>(v).bits : from_float<bf16>(v).bits;
}

HIPCONV_INLINE int64_t state_index(const CausalConv1dVarlenParams& p, int32_t slot, int64_t d, int64_t column) {
    return slot * p.slot_stride + d * p.state_dim_stride + (p.first_column + column) * p.column_stride;
}

HIPCONV_INLINE float input(const CausalConv1dVarlenParams& p, int64_t d, int64_t token) {
    return load_element(p.x, d * p.x_dim_stride + token * p.x_token_stride, p.dtype);
}

// An input of the sequence, or of its initial state: positions count from its first token.
HIPCONV_INLINE float window_element(const CausalConv1dVarlenParams& p, const PackedSequence& s, int64_t d, int64_t position) {
    if (position >= 0) return input(p, d, s.begin + position);
    return s.read_slot == kNoSlot
               ? 0.0f
               : load_element(p.states, state_index(p, s.read_slot, d, p.width - 1 + position), p.state_dtype);
}

HIPCONV_INLINE void store_output(const CausalConv1dVarlenParams& p, int64_t d, int64_t token, float v) {
    if (p.k_dim < 0) return store_element(p.out, d * p.out_dim_stride + token * p.out_token_stride, p.dtype, v);
    const int64_t v_begin = int64_t{2} * p.k_dim;
    if (d < p.k_dim) return store_element(p.out, token * p.k_dim + d, p.dtype, v);
    if (d < v_begin) return store_element(p.k, token * p.k_dim + d - p.k_dim, p.dtype, v);
    store_element(p.v, token * (p.dim - v_begin) + d - v_begin, p.dtype, v);
}

HIPCONV_INLINE void dead_tokens(const CausalConv1dVarlenParams& p, int64_t d, int64_t begin, int64_t end) {
    if (p.dead_tokens == DeadTokens::leave) return;
    for (int64_t t = begin; t < end; ++t) store_output(p, d, t, p.dead_tokens == DeadTokens::zero ? 0.0f : input(p, d, t));
}

HIPCONV_INLINE void convolve_sequence(const CausalConv1dVarlenParams& p, const PackedSequence& s, int64_t d) {
    if (s.number < 0) return dead_tokens(p, d, s.begin, s.end);
    const int32_t past = p.width - 1;
    for (int64_t t = 0; t < s.end - s.begin; ++t) {
        float sum = p.bias ? load_element(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;
        // Taps that would reach before a sequence without a state are skipped, not multiplied by zero: 0 * inf is NaN.
        for (int64_t i = s.read_slot == kNoSlot && t < past ? past - t : 0; i < p.width; ++i) {
            const float w = load_element(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
            sum += w * window_element(p, s, d, t - past + i);
        }
        store_output(p, d, s.begin + t, p.use_silu ? silu(sum) : sum);
    }
    if (s.end <= s.begin) return;                                      // an empty sequence keeps its state
    const CausalConv1dVarlenParams& again = first_parameter_again(p);  // on a GPU, p is its kernel's
    const Boundaries boundaries = boundaries_of(again, s);
    for (int pass = 0; pass < 2; ++pass) {  // the slot that is read is overwritten last
        for (int32_t n = 0; n <= boundaries.count; ++n) {
            const StateToWrite to = state_to_write(again, s, boundaries, n);
            if (to.slot == kNoSlot || (to.slot == s.read_slot) != (pass == 1)) continue;
            // In this order a state may move within one slot: each column is read no later than it is written.
            for (int32_t i = 0; i < past; ++i)
                store_element(p.states, state_index(p, to.slot, d, i), p.state_dtype,
                              window_element(p, s, d, to.position - past + i));
        }
    }
}

// The sequence of this number; the one after the last stands for the tokens outside all sequences.
HIPCONV_INLINE void convolve_sequence(const CausalConv1dVarlenParams& p, int32_t number, int64_t d) {
    if (number < p.sequences) return convolve_sequence(p, packed_sequence(p, number), d);
    dead_tokens(p, d, 0, clamp_token(p, load_index(p.query_start_loc, 0)));
    dead_tokens(p, d, clamp_token(p, load_index(p.query_start_loc, p.sequences)), p.tokens);
}

}  // namespace hipconv
