// A thread of the fast varlen kernels holds this of its channels: their parameters, and the addresses of their outputs.
//
// Kernels are compiled for a width. With kAnyWidth, they serve smaller widths, too: the first taps are missing then, and so are
// the first columns of the window.
#pragma once

#include "../common/parts.h"
#include "causal_conv1d/prefill.h"

namespace hipconv {

// The places in memory of a thread's channels in a column of states.
enum class StateForm : int32_t {
    columns,   // neighbours: one vector a column
    rows,      // each channel's columns, all of the window and no others, are neighbours, and so are the channels
    elements,  // anything
};

// This plan says how a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows. Most blocks take
// a run of tokens a row. Some take the start of a sequence a row; these are spread evenly among the others.
struct VarlenPlan {
    int32_t run;         // tokens
    uint32_t blocks;     // of both kinds, along the tokens
    uint64_t begins_of;  // how many of 2^32 such blocks take starts of sequences
    StateForm state_form;
    bool plain_indices;
};

HIPCONV_INLINE uint32_t lowest_bits(int32_t count) { return count <= 0 ? 0 : count < 32 ? (1u << count) - 1 : 0xffffffffu; }

// The DType of an element type.
template <typename T>
inline constexpr DType kDTypeOf = DType::f32;
template <>
inline constexpr DType kDTypeOf<f16> = DType::f16;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::bf16;

template <int kWidth, bool kAnyWidth>
HIPCONV_INLINE int missing_taps(const CausalConv1dVarlenParams& p) {
    return kAnyWidth ? kWidth - first_parameter_again(p).width : 0;
}

// Weights and biases of a thread's channels. Those of x's type are fetched early as memory holds them, and waited for only
// where they are unpacked.
template <typename T, int kChannels, int kWidth, bool kAnyWidth>
struct TapsInMemory {
    static constexpr int kWeights = kChannels * kWidth, kBoth = kChannels > 1 ? 2 : 1;
    static constexpr int kEach = kChannels == 1                   ? 1
                                 : kWeights * sizeof(T) % 16 == 0 ? 16 / static_cast<int>(sizeof(T))
                                                                  : kChannels;

    const CausalConv1dVarlenParams& p;
    const int64_t d;
    Words<T, kEach> fetched_weights[kWeights / kEach]{};
    Words<T, kChannels> fetched_biases{};

    HIPCONV_INLINE TapsInMemory(const CausalConv1dVarlenParams& params, int64_t first_channel) : p(params), d(first_channel) {}

    // Whether a channel's weights are as many as the kernel is compiled for, so that they come in vectors.
    HIPCONV_INLINE bool are_whole() const { return !kAnyWidth || (kChannels > 1 && first_parameter_again(p).width == kWidth); }

    HIPCONV_INLINE void fetch() {
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        if (are_whole() && again.weight_dtype == kDTypeOf<T>) {
            const T* from = static_cast<const T*>(p.weight) + d * again.weight_dim_stride;
#pragma unroll
            for (int v = 0; v < kWeights / kEach; ++v)
                fetched_weights[v] =
                    *reinterpret_cast<const Words<T, kEach>*>(from + v * (kChannels == 1 ? again.weight_width_stride : kEach));
        }
        if (p.bias && again.bias_dtype == kDTypeOf<T>)
            fetched_biases =
                *reinterpret_cast<const Words<T, kChannels>*>(static_cast<const T*>(p.bias) + d * again.bias_stride);
    }

    // Those of pair j of the channels as floats: those fetched, or from memory.
    HIPCONV_INLINE void unpack(int j, Pair (&weight)[kWidth], Pair& bias) const {
        const auto exact = [](float v) { return sizeof(T) == 4 ? canonical_nan(v) : v; };
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        float weights[kBoth * kWidth] = {}, biases[kBoth] = {};
        if (are_whole() && again.weight_dtype == kDTypeOf<T>) {
#pragma unroll
            for (int i = 0; i < kBoth * kWidth; ++i) {
                const int at = 2 * j * kWidth + i;
                const Pair both = pair_of<T>(fetched_weights[at / kEach], at % kEach / 2);
                weights[i] = exact(at % kEach % 2 ? high(both) : low(both));
            }
        } else {
            const int missing = missing_taps<kWidth, kAnyWidth>(p);
            with_dtype(again.weight_dtype, [&](auto type) {
                using P = decltype(type);
                if constexpr (kChannels > 1 && !kAnyWidth) {
                    load_packed(static_cast<const P*>(p.weight) + (d + 2 * j) * kWidth, weights);
                } else {
#pragma unroll
                    for (int c = 0; c < kBoth; ++c)
#pragma unroll
                        for (int i = 0; i < kWidth; ++i)
                            if (i >= missing)
                                weights[c * kWidth + i] = parameter<P>(p.weight, (d + 2 * j + c) * again.weight_dim_stride +
                                                                                     (i - missing) * again.weight_width_stride);
                }
            });
        }
        if (p.bias && again.bias_dtype == kDTypeOf<T>) {
            const Pair both = pair_of<T>(fetched_biases, j);
            biases[0] = exact(low(both));
            if (kBoth == 2) biases[kBoth - 1] = exact(high(both));
        } else if (p.bias) {
            with_dtype(again.bias_dtype, [&](auto type) {
                using P = decltype(type);
#pragma unroll
                for (int i = 0; i < kBoth; ++i) biases[i] = parameter<P>(p.bias, (d + 2 * j + i) * again.bias_stride);
            });
        }
        bias = make_pair(biases[0], biases[kBoth - 1]);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[i] = make_pair(weights[i], weights[(kBoth - 1) * kWidth + i]);
    }
};

// The addresses of the channels' outputs: token t is at `first + t * step`.
struct OutputColumn {
    char* first;
    uint32_t step;  // bytes
};

// q, k or v is chosen by the vector's first channel: their boundaries lie between vectors.
template <typename T>
HIPCONV_INLINE OutputColumn output_column(const CausalConv1dVarlenParams& p, int64_t d) {
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    constexpr int64_t kSize = sizeof(T);
    const auto column = [](void* out, int64_t channel, int64_t dim_stride, int64_t token_stride) {
        return OutputColumn{static_cast<char*>(out) + channel * dim_stride * kSize,
                            static_cast<uint32_t>(token_stride * kSize)};
    };
    if (again.k_dim < 0) return column(p.out, d, again.out_dim_stride, again.out_token_stride);
    const int64_t v_begin = int64_t{2} * again.k_dim;
    if (d < again.k_dim) return column(p.out, d, 1, again.k_dim);
    if (d < v_begin) return column(p.k, d - again.k_dim, 1, again.k_dim);
    return column(p.v, d - v_begin, 1, again.dim - v_begin);
}

}  // namespace hipconv
