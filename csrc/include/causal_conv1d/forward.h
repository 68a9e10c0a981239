// Causal depthwise conv1d: what the bindings hand to the kernels. Knows neither torch nor HIP.
//
//   out[b, d, t] = act(bias[d] + sum_i weight[d, i] * x[b, d, t - width + 1 + i]),   x[., ., t < 0] = 0,   act = SiLU or identity
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/dtype.h"

namespace hipconv {

// A (batch, dim, seqlen) tensor. Strides count elements, and may be zero or negative for an input.
struct Sequences {
    void* data;
    int64_t batch_stride, dim_stride, seqlen_stride;
};

struct CausalConv1dFwdParams {
    int32_t batch, dim, seqlen, width;
    DType dtype;  // of x and out

    Sequences x, out;

    const void* weight;  // (dim, width)
    int64_t weight_dim_stride, weight_width_stride;
    DType weight_dtype;

    const void* bias;  // (dim,), or null for none
    int64_t bias_stride;
    DType bias_dtype;

    bool use_silu;
};

// The kernels' names, the fastest first. Each backend knows the other's: HIPCONV_CONV1D_KERNEL may hold either.
constexpr const char* kCausalConv1dFwdGpuKernels[] = {"tile", "vector", "shared", "naive"};
constexpr const char* kCausalConv1dFwdCpuKernels[] = {"simd", "openmp"};

// Defined twice with one signature: in csrc/kernels for GPUs and simt, in csrc/cpu for host memory (which ignores `stream`).
// No size is zero. Only the launch touches memory; the others depend on sizes, strides, types and the alignment of addresses.
std::vector<std::string> causal_conv1d_fwd_kernels();
const char* causal_conv1d_fwd_choice(const CausalConv1dFwdParams& params);  // the kernel that "auto" means
// Whether `kernel` serves the call: then null, else what it does serve.
const char* causal_conv1d_fwd_refusal(const CausalConv1dFwdParams& params, const std::string& kernel);
// Which of its forms `kernel` takes for the call.
const char* causal_conv1d_fwd_form(const CausalConv1dFwdParams& params, const std::string& kernel);
// Every tensor lies on the current device, and the kernel serves the call.
void causal_conv1d_fwd(const CausalConv1dFwdParams& params, const std::string& kernel, void* stream);

}  // namespace hipconv
