// This file computes one output element of the causal conv1d by the formula. The naive GPU kernel and the plain CPU kernel are
// loops around it.
#pragma once

#include "causal_conv1d/forward.h"
#include "device/activation.h"
#include "device/dtype.h"

namespace hipconv {

template <typename T>
HIPCONV_INLINE void causal_conv1d_one_output(const CausalConv1dFwdParams& p, int64_t b, int64_t d, int64_t t) {
    const T* x = static_cast<const T*>(p.x.data) + b * p.x.batch_stride + d * p.x.dim_stride;
    float sum = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;
    // Taps that would reach before the row are skipped, not multiplied by zero: 0 * inf is NaN.
    for (int i = t < p.width - 1 ? p.width - 1 - static_cast<int>(t) : 0; i < p.width; ++i) {
        const float w = load_parameter(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
        sum += w * to_float(x[(t - p.width + 1 + i) * p.x.seqlen_stride]);
    }
    T* out = static_cast<T*>(p.out.data) + b * p.out.batch_stride + d * p.out.dim_stride;
    out[t * p.out.seqlen_stride] = from_float<T>(p.use_silu ? silu(sum) : sum);
}

// Tells whether neighbouring channels, rather than neighbouring tokens, are neighbours in memory: loops walk that axis fastest.
inline bool dim_is_inner(const Sequences& x) {
    const int64_t dim_step = x.dim_stride < 0 ? -x.dim_stride : x.dim_stride;
    const int64_t seqlen_step = x.seqlen_stride < 0 ? -x.seqlen_stride : x.seqlen_stride;
    return dim_step < seqlen_step;
}

}  // namespace hipconv
