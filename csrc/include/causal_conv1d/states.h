// This file declares the causal conv1d of sequences that continue from a state, end in one, or are packed in a row: training
// needs these beyond forward.h. It depends on neither torch nor HIP.
//
// A row is [initial state | x]; before it there is nothing. Tap i of token t sees the input at t - width + 1 + i if that has
// the same sequence id as t. A state's id is that of the row's first token. Tokens with a negative id are padding: their output
// is zero. The final state is the last width - 1 inputs of the row; where there are ids, it holds those of the last token's
// sequence, and zeros in place of others.
#pragma once

#include "causal_conv1d/forward.h"

namespace hipconv {

// The CPU serves float64 here. It is not among the enumerators, because no other kernel knows of it.
constexpr DType kF64 = static_cast<DType>(3);

struct SequenceIds {
    const int32_t* data;  // (batch, seqlen), or null: each row is one sequence
    int64_t batch_stride, seqlen_stride;
};

// The output depends on these tensors. An absent tensor is null.
struct CausalConv1dInputs {
    int32_t batch, dim, seqlen, width;
    DType dtype;  // of x, outputs and states

    Sequences x;
    Sequences initial_states;  // (batch, dim, width - 1)
    SequenceIds seq_idx;

    const void* weight;  // (dim, width)
    int64_t weight_dim_stride, weight_width_stride;
    DType weight_dtype;

    const void* bias;  // (dim,)
    int64_t bias_stride;
    DType bias_dtype;

    bool use_silu;
};

struct CausalConv1dStatesParams {
    CausalConv1dInputs in;
    Sequences out;
    Sequences final_states;  // (batch, dim, width - 1), or null; may be the initial states' memory
};

// These are defined in csrc/kernels and in csrc/cpu. No size but the seqlen is zero. The fast kernels of forward.h have made
// `out` as if every row were one sequence without a state: here only the outputs for which that is wrong are made, near the
// start of a row or of a sequence in it. (In float64, which those kernels do not serve, all outputs are made here.)
bool causal_conv1d_states_serve_f64();
void causal_conv1d_states_fwd(const CausalConv1dStatesParams& params, void* stream);

}  // namespace hipconv
