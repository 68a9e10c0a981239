// The backward of the causal conv1d (states.h says what is differentiated). With s the sums before the activation,
//
//   g[t] = dout[t] * act'(s[t]),   dx[t] = sum_k weight[width - 1 - k] * g[t + k],
//   dweight[i] = sum_t g[t] * x[t - width + 1 + i],
//
// dbias = sum_t g[t], and dinitial_states is the dx of the tokens before the row. s is computed again from x, which is cheaper
// than keeping it. The order in which gradients of parameters are summed depends on nothing but sizes and strides: blocks leave
// partial sums in a workspace, which a second kernel adds up.
#pragma once

#include "causal_conv1d/states.h"
#include "launch/kernel_table.h"

namespace hipconv {

struct CausalConv1dBwdParams {
    CausalConv1dInputs in;
    Sequences dout, dx;
    Sequences dfinal_states;    // (batch, dim, width - 1), or null: added to the gradients of the inputs that it holds
    Sequences dinitial_states;  // (batch, dim, width - 1), or null

    void* dweight;  // (dim, width), one after another, of dtype weight_dtype
    void* dbias;    // (dim,), one after another, of dtype bias_dtype; null where there is no bias
    // In the workspace, where launches set them:
    void* partials;       // the sums of parts of the tokens, floats
    const uint8_t* taps;  // see kernels/causal_conv1d/backward/taps.h; null where no kernel looks at it
};

constexpr KernelNames kCausalConv1dBwdNames = {"HIPCONV_CONV1D_BWD_KERNEL",
                                               {"rows", "runs", "tile", "vector", "staged", "naive"},
                                               {"simd", "openmp"}};

// These are defined twice, as in forward.h: in csrc/kernels and in csrc/cpu. In calls, no size but the seqlen is zero.
KernelTable<CausalConv1dBwdParams> causal_conv1d_bwd_kernels();
bool causal_conv1d_bwd_serves_f64();

}  // namespace hipconv
