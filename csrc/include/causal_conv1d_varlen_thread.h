// What a thread of the varlen kernel `tile` holds of its channels: parameters, and where its outputs go.
#pragma once

#include "causal_conv1d_parts.h"
#include "causal_conv1d_varlen.h"
#include "registers.h"

namespace hipconv {

// A thread's channels of a column of states, in memory.
enum class StateForm : int32_t {
    columns,   // neighbours: one vector a column
    rows,      // each channel's columns, all of the window and no others, are neighbours, and so are the channels
    elements,  // anything
};

// How a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows. Most blocks take a run of tokens a row,
// some the begin of a sequence a row; these are spread evenly among the others.
struct VarlenPlan {
    int32_t run;          // tokens
    uint32_t blocks;      // of both kinds, along the tokens
    uint64_t begins_of;   // of 2^32 such blocks, how many are of the second kind
    StateForm state_form;
    bool plain_indices;
};

// The DType of an element type.
template <typename T>
constexpr DType kDTypeOf = DType::f32;
template <>
constexpr DType kDTypeOf<f16> = DType::f16;
template <>
constexpr DType kDTypeOf<bf16> = DType::bf16;

// Weights and biases of a thread's channels as memory holds them, if they are of x's type: fetched early, waited for only where they are
// unpacked.
template <typename T, int kChannels, int kWidth>
struct Fetched {
    static constexpr int kWeights = kChannels * kWidth;
    static constexpr int kEach = kChannels == 1 ? 1 : kWeights * sizeof(T) % 16 == 0 ? 16 / static_cast<int>(sizeof(T)) : kChannels;
    using Weights = Words<T, kEach>[kWeights / kEach];
    using Biases = Words<T, kChannels>;
};

template <typename T, int kChannels, int kWidth>
HIPCONV_INLINE void fetch_parameters(const CausalConv1dVarlenParams& p, int64_t d, typename Fetched<T, kChannels, kWidth>::Weights& weights,
                                     typename Fetched<T, kChannels, kWidth>::Biases& biases) {
    using F = Fetched<T, kChannels, kWidth>;
    const CausalConv1dVarlenParams& again = first_argument_again(p);
    if (again.weight_dtype == kDTypeOf<T>) {
        const T* from = static_cast<const T*>(p.weight) + d * again.weight_dim_stride;
#pragma unroll
        for (int v = 0; v < F::kWeights / F::kEach; ++v)
            weights[v] = *reinterpret_cast<const Words<T, F::kEach>*>(from + v * (kChannels == 1 ? again.weight_width_stride : F::kEach));
    }
    if (p.bias && again.bias_dtype == kDTypeOf<T>)
        biases = *reinterpret_cast<const typename F::Biases*>(static_cast<const T*>(p.bias) + d * again.bias_stride);
}

// The parameters of pair j of the channels as floats: those fetched, or from memory.
template <typename T, int kChannels, int kWidth>
HIPCONV_INLINE void unpack_parameters(const CausalConv1dVarlenParams& p, int64_t d,
                                      const typename Fetched<T, kChannels, kWidth>::Weights& fetched_weights,
                                      const typename Fetched<T, kChannels, kWidth>::Biases& fetched_biases, int j, Pair (&weight)[kWidth],
                                      Pair& bias) {
    constexpr int kEach = Fetched<T, kChannels, kWidth>::kEach, kBoth = kChannels > 1 ? 2 : 1;
    const auto exact = [](float v) { return sizeof(T) == 4 ? canonical_nan(v) : v; };
    const CausalConv1dVarlenParams& again = first_argument_again(p);
    float weights[kBoth * kWidth], biases[kBoth] = {};
    if (again.weight_dtype == kDTypeOf<T>) {
#pragma unroll
        for (int i = 0; i < kBoth * kWidth; ++i) {
            const int at = 2 * j * kWidth + i;
            const Pair both = pair_of<T>(fetched_weights[at / kEach], at % kEach / 2);
            weights[i] = exact(at % kEach % 2 ? high(both) : low(both));
        }
    } else {
        with_dtype(again.weight_dtype, [&](auto type) {
            using P = decltype(type);
            if constexpr (kChannels > 1) {
                load_packed(static_cast<const P*>(p.weight) + (d + 2 * j) * kWidth, weights);
            } else {
                for (int i = 0; i < kWidth; ++i)
                    weights[i] = parameter<P>(p.weight, d * again.weight_dim_stride + i * again.weight_width_stride);
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

// The channels' outputs: of token t at `first + t * step`.
struct OutputColumn {
    char* first;
    uint32_t step;  // bytes
};

// q, k or v is chosen by the vector's first channel: their boundaries lie between vectors.
template <typename T>
HIPCONV_INLINE OutputColumn output_column(const CausalConv1dVarlenParams& p, int64_t d) {
    const CausalConv1dVarlenParams& again = first_argument_again(p);
    constexpr int64_t kSize = sizeof(T);
    const auto column = [](void* out, int64_t channel, int64_t dim_stride, int64_t token_stride) {
        return OutputColumn{static_cast<char*>(out) + channel * dim_stride * kSize, static_cast<uint32_t>(token_stride * kSize)};
    };
    if (again.k_dim < 0) return column(p.out, d, again.out_dim_stride, again.out_token_stride);
    const int64_t v_begin = int64_t{2} * again.k_dim;
    if (d < again.k_dim) return column(p.out, d, 1, again.k_dim);
    if (d < v_begin) return column(p.k, d - again.k_dim, 1, again.k_dim);
    return column(p.v, d - v_begin, 1, again.dim - v_begin);
}

}  // namespace hipconv
