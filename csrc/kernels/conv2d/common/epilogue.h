// The epilogue of one output of conv2d, in f32: bias, residual, activation, one rounding.
#pragma once

#include "conv2d/params.h"
#include "device/activation.h"

namespace hipconv {

HIPCONV_INLINE float tanh_of(float v) {
    if (v > -0.25f && v < 0.25f) {  // the formula below would cancel; the first neglected term is 1e-8 of v
        const float s = v * v;
        return v * (1.0f + s * (-1.0f / 3 + s * (2.0f / 15 + s * (-17.0f / 315 + s * (62.0f / 2835)))));
    }
    return 1.0f - 2.0f * approx_rcp(1.0f + approx_exp2(2.0f * kLog2e * v));
}

// v times the normal distribution up to v. The tail beyond |v| follows Abramowitz and Stegun 7.1.26, within 8e-8.
HIPCONV_INLINE float gelu(float v) {
    const float size = v < 0 ? -v : v;
    const float t = approx_rcp(1.0f + 0.3275911f * 0.70710678118654752f * size);
    const float series = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float tail = 0.5f * series * approx_exp2(-0.5f * kLog2e * v * v);
    return v < 0 ? v * tail : v * (1.0f - tail);
}

// The tanh of GELU's formula is written as a sigmoid of twice the argument.
HIPCONV_INLINE float gelu_tanh(float v) { return v * sigmoid(1.59576912160573071f * v * (1.0f + 0.044715f * v * v)); }

HIPCONV_INLINE float clamp_to_six(float v) { return v < 0 ? 0.0f : v > 6 ? 6.0f : v; }  // keeps NaN, as torch does

HIPCONV_INLINE float activate(float v, Conv2dActivation activation) {
    switch (activation) {
        case Conv2dActivation::relu:
            return v < 0 ? 0.0f : v;
        case Conv2dActivation::relu6:
            return clamp_to_six(v);
        case Conv2dActivation::gelu:
            return gelu(v);
        case Conv2dActivation::gelu_tanh:
            return gelu_tanh(v);
        case Conv2dActivation::silu:
            return silu(v);
        case Conv2dActivation::sigmoid:
            return sigmoid(v);
        case Conv2dActivation::tanh:
            return tanh_of(v);
        case Conv2dActivation::leaky_relu:
            return v < 0 ? 0.01f * v : v;
        case Conv2dActivation::hardswish:
            return v * clamp_to_six(v + 3.0f) * (1.0f / 6);
        default:
            return v;
    }
}

// Calls apply(activation) with the activation as a constant: one switch, whatever the number of values that are activated.
template <typename Apply>
HIPCONV_INLINE void with_activation(Conv2dActivation activation, const Apply& apply) {
    switch (activation) {
        case Conv2dActivation::none:
            return;
        case Conv2dActivation::relu:
            return apply(Conv2dActivation::relu);
        case Conv2dActivation::relu6:
            return apply(Conv2dActivation::relu6);
        case Conv2dActivation::gelu:
            return apply(Conv2dActivation::gelu);
        case Conv2dActivation::gelu_tanh:
            return apply(Conv2dActivation::gelu_tanh);
        case Conv2dActivation::silu:
            return apply(Conv2dActivation::silu);
        case Conv2dActivation::sigmoid:
            return apply(Conv2dActivation::sigmoid);
        case Conv2dActivation::tanh:
            return apply(Conv2dActivation::tanh);
        case Conv2dActivation::leaky_relu:
            return apply(Conv2dActivation::leaky_relu);
        case Conv2dActivation::hardswish:
            return apply(Conv2dActivation::hardswish);
    }
}

HIPCONV_INLINE int64_t offset_in(const Image& image, int64_t n, int64_t k, int64_t p, int64_t q) {
    return n * image.batch_stride + k * image.channel_stride + p * image.row_stride + q * image.column_stride;
}

// Stores an element of a type known only at run time; all lanes take the same branch.
HIPCONV_INLINE void store_rounded(void* base, int64_t index, DType dtype, float v) {
    const float safe = canonical_nan(v);
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        static_cast<T*>(base)[index] = from_float<T>(safe);
    });
}

// Loads kCount elements of a type known only at run time, all under way at once.
template <int kCount>
HIPCONV_INLINE void load_each(float (&v)[kCount], const void* base, int64_t first, int64_t stride, DType dtype) {
    with_dtype(dtype, [&](auto type) {
        const auto* from = global_pointer<const decltype(type)>(base) + first;
#pragma unroll
        for (int i = 0; i < kCount; ++i) v[i] = to_float(from[i * stride]);
    });
}

// Adds elements of a type known only at run time to the first `count` of v; all of them are under way at once.
template <int kCount>
HIPCONV_INLINE void add_each(float (&v)[kCount], int count, const void* base, int64_t first, int64_t stride, DType dtype) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const auto* from = global_pointer<const T>(base) + first;
        T loaded[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            loaded[i] = *from;
            if (i + 1 < count) from += stride;
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float value = to_float(loaded[i]);
            v[i] += sizeof(T) == 4 ? canonical_nan(value) : value;
        }
    });
}

// Makes and stores one output from its finished sum, at the offsets that out_at() and residual_at() give. `Params` is
// Conv2dParams, or a kernel's own with the same members; the struct may be one that first_parameter_again gave.
template <typename Params, typename OutAt, typename ResidualAt>
HIPCONV_INLINE void conv2d_store_at(const Params& p, int64_t k, OutAt out_at, ResidualAt residual_at, float sum) {
    const auto global = [](const void* data) { return global_pointer<void>(data); };
    if (p.bias) sum += load_parameter(global(p.bias), k * p.bias_stride, p.bias_dtype);
    if (p.residual.data) sum += load_parameter(global(p.residual.data), residual_at(), p.residual_dtype);
    store_rounded(global(p.out.data), out_at(), p.out_dtype, activate(sum, p.activation));
}

template <typename Params>
HIPCONV_INLINE void conv2d_store(const Params& p, int64_t n, int64_t k, int64_t row, int64_t column, float sum,
                                 int64_t out_offset = 0) {
    const auto out_at = [&] { return out_offset + offset_in(p.out, n, k, row, column); };
    conv2d_store_at(p, k, out_at, [&] { return offset_in(p.residual, n, k, row, column); }, sum);
}

}  // namespace hipconv
