// The backward kernels for host memory: the functions of each, which has a file of its own, and their table.
//
// All share their work out over torch's own OpenMP threads, and their results do not depend on the number of threads.
#pragma once

#include "causal_conv1d/backward.h"

namespace hipconv {

// backward_simd.cpp computes vectors along tokens or channels, whichever are nearer neighbours in memory. It serves all but
// f64. Partial sums lie in the workspace as rows of (width + 1, dim), as on GPUs.
const char* causal_conv1d_bwd_simd_refusal(const CausalConv1dBwdParams& params);
int64_t causal_conv1d_bwd_simd_workspace(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_simd(const CausalConv1dBwdParams& params, void* workspace, void* stream);

// backward.cpp has plain loops that complete the sums of a channel at a time. It serves any call, and is there to
// compare with.
void causal_conv1d_bwd_openmp(const CausalConv1dBwdParams& params, void* workspace, void* stream);

// name, refusal, launch, workspace
constexpr KernelRow<CausalConv1dBwdParams> kBwdKernels[] = {
    {"simd", causal_conv1d_bwd_simd_refusal, causal_conv1d_bwd_simd, causal_conv1d_bwd_simd_workspace},
    {"openmp", nullptr, causal_conv1d_bwd_openmp},
};
static_assert(are_named(kBwdKernels, kCausalConv1dBwdNames.cpu), "names stand in causal_conv1d/backward.h too");

}  // namespace hipconv
