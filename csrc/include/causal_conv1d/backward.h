// The backward of the causal conv1d (states.h says what is differentiated). With s the sums before the activation,
//
//   g[t] = dout[t] * act'(s[t]),   dx[t] = sum_k weight[width - 1 - k] * g[t + k],
//   dweight[i] = sum_t g[t] * x[t - width + 1 + i],
//
// dbias = sum_t g[t], and dinitial_states the dx of the tokens before the row. s is computed again from x, which is cheaper than
// to keep it. Gradients of parameters are summed in an order that depends on nothing but sizes and strides: blocks leave partial
// sums in a workspace, which a second kernel adds up.
#pragma once

#include "causal_conv1d/states.h"

namespace hipconv {

struct CausalConv1dBwdParams {
    CausalConv1dInputs in;
    Sequences dout, dx;
    Sequences dfinal_states;    // (batch, dim, width - 1), or null: added to the gradients of the inputs that it holds
    Sequences dinitial_states;  // (batch, dim, width - 1), or null

    void* dweight;  // (dim, width), one after another, of dtype weight_dtype
    void* dbias;    // (dim,), one after another, of dtype bias_dtype; null where there is no bias
    void* partials;  // the workspace: floats
    const uint8_t* taps;  // in it, set by causal_conv1d_bwd where kernels look at it (causal_conv1d/backward/parts.h)
};

constexpr const char* kCausalConv1dBwdGpuKernels[] = {"tile", "vector", "naive"};
constexpr const char* kCausalConv1dBwdCpuKernels[] = {"simd", "openmp"};

// As in forward.h: defined twice, in csrc/kernels and in csrc/cpu. No size but the seqlen is zero.
std::vector<std::string> causal_conv1d_bwd_kernels();
bool causal_conv1d_bwd_serves_f64();
const char* causal_conv1d_bwd_choice(const CausalConv1dBwdParams& params);
const char* causal_conv1d_bwd_refusal(const CausalConv1dBwdParams& params, const std::string& kernel);
// How many numbers the workspace of `kernel` holds; `params.partials` need not be set yet.
int64_t causal_conv1d_bwd_workspace(const CausalConv1dBwdParams& params, const std::string& kernel);
void causal_conv1d_bwd(const CausalConv1dBwdParams& params, const std::string& kernel, void* stream);

}  // namespace hipconv
