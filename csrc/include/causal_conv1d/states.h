// This file declares what an output of the causal conv1d depends on, as the bindings hand it to the kernels. It depends on
// neither torch nor HIP.
//
//   out[b, d, t] = act(bias[d] + sum_i weight[d, i] * row[b, d, t - width + 1 + i]),  act = SiLU or identity
//
// A row is [initial state | x]; before it there is nothing. Tap i of token t sees the input at t - width + 1 + i if that has
// the same sequence id as t. A state's id is that of the row's first token. Tokens with a negative id are padding: their output
// is zero. The final state is the last width - 1 inputs of the row; where there are ids, it holds those of the last token's
// sequence, and zeros in place of others.
#pragma once

#include <cstdint>

#include "causal_conv1d/parameters.h"
#include "device/dtype.h"

namespace hipconv {

// The CPU serves float64 in some forms. It is not among the enumerators, because no other kernel knows of it.
constexpr DType kF64 = static_cast<DType>(3);

// A (batch, dim, seqlen) tensor. Strides count elements, and may be zero or negative for an input.
struct Sequences {
    void* data;
    int64_t batch_stride, dim_stride, seqlen_stride;
};

struct SequenceIds {
    const int32_t* data;  // (batch, seqlen), or null: each row is one sequence
    int64_t batch_stride, seqlen_stride;
};

// An absent tensor is null.
struct CausalConv1dRows {
    int32_t batch, dim, seqlen, width;
    DType dtype;  // of x, outputs and states

    Sequences x;
    Sequences initial_states;  // (batch, dim, width - 1); null too where the width is 1
    SequenceIds seq_idx;
};

// The filters stand behind the rows: with them in front, AMD's compilers allocate other registers, and the backward takes two
// more instructions a token on RDNA 4.
struct CausalConv1dInputs : CausalConv1dRows, FilterParams<const void*> {};

// Rows are plain where each is one sequence without a state.
inline bool rows_are_plain(const CausalConv1dInputs& in) { return !in.initial_states.data && !in.seq_idx.data; }

}  // namespace hipconv
