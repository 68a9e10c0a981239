// The fast varlen kernels share this: how a launch divides the work, and the addresses of a thread's outputs.
//
// Kernels are compiled for a width. With kAnyWidth, they serve smaller ones, too: the first taps are missing then, and so are
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

// The blocks of a launch of `tile` are of one kind or two.
enum class VarlenPhase : int32_t {
    whole,   // starts of sequences, and runs of tokens
    begins,  // in place, first: starts of sequences, and tokens that blocks of the next launch share are saved
    runs     // in place: runs of tokens
};

// This plan says how a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows. Most blocks take
// a run of tokens a row. Some take the start of a sequence a row; these are spread evenly among the others.
struct VarlenPlan {
    int32_t run;         // tokens
    uint32_t blocks;     // of both kinds, along the tokens
    uint64_t begins_of;  // how many of 2^32 such blocks take starts of sequences
    StateForm state_form;
    bool plain_indices;
    bool shifts;  // rows of outputs may begin in the middle of a word
    VarlenPhase phase;
    bool begun_by_token;  // the outputs of a sequence's start are number start / kPast, not number `sequence`
    char *halos, *begun;  // in place: kPast tokens before each block of runs but the first; kPast outputs a start of a sequence
};

// The kernel's parameter. Its members are read where they are needed: together they would fill a wave's scalar registers (AMD).
struct TileCall {
    CausalConv1dVarlenParams params;
    VarlenPlan plan;
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
