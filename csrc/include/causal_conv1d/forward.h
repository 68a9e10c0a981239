// This file declares the causal depthwise conv1d as the bindings hand it to the kernels. It depends on neither torch nor HIP.
//
//   out[b, d, t] = act(bias[d] + sum_i weight[d, i] * x[b, d, t - width + 1 + i]),  x[., ., t < 0] = 0,  act = SiLU or identity
#pragma once

#include <cstdint>

#include "device/dtype.h"
#include "launch/kernel_table.h"

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

constexpr KernelNames kCausalConv1dFwdNames = {"HIPCONV_CONV1D_KERNEL",
                                               {"tile", "vector", "shared", "naive"},
                                               {"simd", "openmp"}};

// These are defined twice: in csrc/kernels for GPUs and simt, in csrc/cpu for host memory (whose launches ignore the stream).
// In calls, no size is zero; for launches, every tensor lies on the current device.
KernelTable<CausalConv1dFwdParams> causal_conv1d_fwd_kernels();

}  // namespace hipconv
