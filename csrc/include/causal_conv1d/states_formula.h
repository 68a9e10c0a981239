// This file has the formulas of states.h and backward.h, an element at a time: the plain kernels of the GPU and of the CPU are
// loops around them. T is the type of the tensors, A the type of sums: float, or double where T is double.
#pragma once

#include "causal_conv1d/backward.h"
#include "device/activation.h"
#include "device/dtype.h"

namespace hipconv {

HIPCONV_INLINE double to_accumulator(double v) { return v; }
template <typename T>
HIPCONV_INLINE float to_accumulator(T v) {
    return to_float(v);
}

template <typename T, typename A>
HIPCONV_INLINE T rounded(A v) {
    if constexpr (sizeof(T) == 8)
        return v;
    else
        return from_float<T>(v);
}

inline double sigmoid(double v) { return 1.0 / (1.0 + exp(-v)); }

template <typename A>
HIPCONV_INLINE A parameter_at(const void* base, int64_t index, DType dtype) {
    if constexpr (sizeof(A) == 8) {
        if (dtype == kF64) return static_cast<const double*>(base)[index];
    }
    return load_parameter(global_pointer<const char>(base), index, dtype);
}

template <typename T>
HIPCONV_INLINE T& at(const Sequences& s, int64_t b, int64_t d, int64_t t) {
    return global_pointer<T>(s.data)[b * s.batch_stride + d * s.dim_stride + t * s.seqlen_stride];
}

// The sequence that a token belongs to; tokens before the row belong to that of its first one.
HIPCONV_INLINE int32_t sequence_of(const CausalConv1dInputs& p, int64_t b, int64_t t) {
    return global_pointer<const int32_t>(
        p.seq_idx.data)[b * p.seq_idx.batch_stride + (t < 0 ? 0 : t) * p.seq_idx.seqlen_stride];
}

HIPCONV_INLINE bool is_padding(const CausalConv1dInputs& p, int64_t b, int64_t t) {
    return p.seq_idx.data && sequence_of(p, b, t) < 0;
}

// Tells whether token t, which is in the row and not padding, sees the input at `from`.
HIPCONV_INLINE bool sees(const CausalConv1dInputs& p, int64_t b, int64_t t, int64_t from) {
    if (from < 0 && !p.initial_states.data) return false;
    return !p.seq_idx.data || sequence_of(p, b, from) == sequence_of(p, b, t);
}

// Tells whether the final state holds the input at t, one of the last width - 1 of [initial state | x].
HIPCONV_INLINE bool final_state_counts(const CausalConv1dInputs& p, int64_t b, int64_t t) {
    if (t < 0 && !p.initial_states.data) return false;
    if (!p.seq_idx.data || p.seqlen == 0) return true;
    const int32_t last = sequence_of(p, b, p.seqlen - 1);
    return last >= 0 && sequence_of(p, b, t) == last;
}

template <typename T, typename A>
HIPCONV_INLINE A input_at(const CausalConv1dInputs& p, int64_t b, int64_t d, int64_t t) {
    return to_accumulator(t < 0 ? at<const T>(p.initial_states, b, d, t + p.width - 1) : at<const T>(p.x, b, d, t));
}

template <typename A>
HIPCONV_INLINE A weight_at(const CausalConv1dInputs& p, int64_t d, int i) {
    return parameter_at<A>(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
}

// The sum before the activation. Taps that see nothing are skipped, not multiplied by zero: 0 * inf is NaN.
template <typename T, typename A>
HIPCONV_INLINE A sum_at(const CausalConv1dInputs& p, int64_t b, int64_t d, int64_t t) {
    A sum = p.bias ? parameter_at<A>(p.bias, d * p.bias_stride, p.bias_dtype) : A{0};
    for (int i = 0; i < p.width; ++i) {
        const int64_t from = t - p.width + 1 + i;
        if (sees(p, b, t, from)) sum += weight_at<A>(p, d, i) * input_at<T, A>(p, b, d, from);
    }
    return sum;
}

// g[t], the gradient of the sum of token t.
template <typename T, typename A>
HIPCONV_INLINE A gradient_at(const CausalConv1dBwdParams& p, int64_t b, int64_t d, int64_t t) {
    if (is_padding(p.in, b, t)) return A{0};
    const A g = to_accumulator(at<const T>(p.dout, b, d, t));
    if (!p.in.use_silu) return g;
    const A sum = sum_at<T, A>(p.in, b, d, t), sigma = sigmoid(sum);
    return g * (sigma + sum * sigma * (A{1} - sigma));
}

// dx[t], or dinitial_states where t < 0.
template <typename T, typename A>
HIPCONV_INLINE void bwd_one_input(const CausalConv1dBwdParams& p, int64_t b, int64_t d, int64_t t) {
    const int past = p.in.width - 1;
    A sum{0};
    const int64_t column = t - p.in.seqlen + past;
    if (p.dfinal_states.data && column >= 0 && final_state_counts(p.in, b, t))
        sum = to_accumulator(at<const T>(p.dfinal_states, b, d, column));
    for (int k = 0; k < p.in.width; ++k) {
        const int64_t to = t + k;
        if (to < 0 || to >= p.in.seqlen || !sees(p.in, b, to, t)) continue;
        sum += weight_at<A>(p.in, d, past - k) * gradient_at<T, A>(p, b, d, to);
    }
    (t < 0 ? at<T>(p.dinitial_states, b, d, t + past) : at<T>(p.dx, b, d, t)) = rounded<T>(sum);
}

// Token t adds this term to dweight[d, i] or, where i is the width, to dbias[d].
template <typename T, typename A>
HIPCONV_INLINE A bwd_one_term(const CausalConv1dBwdParams& p, int64_t b, int64_t d, int64_t t, int i) {
    if (i == p.in.width) return gradient_at<T, A>(p, b, d, t);
    const int64_t from = t - p.in.width + 1 + i;
    if (is_padding(p.in, b, t) || !sees(p.in, b, t, from)) return A{0};
    return gradient_at<T, A>(p, b, d, t) * input_at<T, A>(p.in, b, d, from);
}

// Stores the finished sum i of channel d: dweight[d, i] or dbias[d].
template <typename A>
HIPCONV_INLINE void bwd_store_sum(const CausalConv1dBwdParams& p, int64_t d, int i, A sum) {
    if (i == p.in.width && !p.dbias) return;
    void* to = i == p.in.width ? p.dbias : p.dweight;
    const int64_t index = i == p.in.width ? d : d * p.in.width + i;
    const DType dtype = i == p.in.width ? p.in.bias_dtype : p.in.weight_dtype;
    if constexpr (sizeof(A) == 8) {
        if (dtype == kF64) {
            static_cast<double*>(to)[index] = sum;
            return;
        }
    }
    switch (dtype) {
        case DType::f16:
            static_cast<f16*>(to)[index] = from_float<f16>(static_cast<float>(sum));
            return;
        case DType::bf16:
            static_cast<bf16*>(to)[index] = from_float<bf16>(static_cast<float>(sum));
            return;
        case DType::f32:
            static_cast<float*>(to)[index] = static_cast<float>(sum);
            return;
    }
}

}  // namespace hipconv
