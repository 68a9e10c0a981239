// What a thread of the varlen kernel `tile` holds of its channels: parameters, and where its outputs go.
#pragma once

#include "causal_conv1d_parts.h"
#include "causal_conv1d_varlen.h"

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
};

// Weights and bias of the channels from d on.
template <int kChannels, int kWidth>
HIPCONV_INLINE void load_parameters(const CausalConv1dVarlenParams& p, int64_t d, Pair (&weight)[kWidth][(kChannels + 1) / 2],
                                    Pair (&bias)[(kChannels + 1) / 2]) {
    constexpr int kHigh = kChannels > 1;
    float weights[kChannels * kWidth], biases[kChannels] = {};
    with_dtype(p.weight_dtype, [&](auto type) {
        using P = decltype(type);
        if constexpr (kChannels > 1) {
            load_packed(static_cast<const P*>(p.weight) + d * kWidth, weights);
        } else {
            for (int i = 0; i < kWidth; ++i) weights[i] = parameter<P>(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride);
        }
    });
    if (p.bias) {
        with_dtype(p.bias_dtype, [&](auto type) {
            using P = decltype(type);
            if constexpr (kChannels > 1)
                load_packed(static_cast<const P*>(p.bias) + d, biases);
            else
                biases[0] = parameter<P>(p.bias, d * p.bias_stride);
        });
    }
#pragma unroll
    for (int j = 0; j < (kChannels + 1) / 2; ++j) {
        bias[j] = make_pair(biases[2 * j], biases[2 * j + kHigh]);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[i][j] = make_pair(weights[2 * j * kWidth + i], weights[(2 * j + kHigh) * kWidth + i]);
    }
}

// The channels' outputs: of token t at `first + t * step`.
struct OutputColumn {
    char* first;
    int64_t step;  // bytes
};

// q, k or v is chosen by the vector's first channel: their boundaries lie between vectors.
template <typename T>
HIPCONV_INLINE OutputColumn output_column(const CausalConv1dVarlenParams& p, int64_t d) {
    constexpr int64_t kSize = sizeof(T);
    if (p.k_dim < 0) return {static_cast<char*>(p.out) + d * p.out_dim_stride * kSize, p.out_token_stride * kSize};
    const int64_t v_begin = int64_t{2} * p.k_dim;
    if (d < p.k_dim) return {static_cast<char*>(p.out) + d * kSize, p.k_dim * kSize};
    if (d < v_begin) return {static_cast<char*>(p.k) + (d - p.k_dim) * kSize, p.k_dim * kSize};
    return {static_cast<char*>(p.v) + (d - v_begin) * kSize, (p.dim - v_begin) * kSize};
}

}  // namespace hipconv
