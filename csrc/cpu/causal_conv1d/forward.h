// The forward kernels for host memory: the functions of each, which has a file of its own, and their table.
//
// All share rows out over torch's own OpenMP threads, so torch.set_num_threads holds.
#pragma once

#include "causal_conv1d/forward.h"

namespace hipconv {

// forward_simd.cpp computes vectors along tokens or channels, whichever are nearer neighbours in memory. It serves all but f64.
const char* causal_conv1d_simd_refusal(const CausalConv1dFwdParams& params);
const char* causal_conv1d_simd_form(const CausalConv1dFwdParams& params);
void causal_conv1d_simd(const CausalConv1dFwdParams& params, void* workspace, void* stream);

// forward.cpp has plain loops around the formula, the denser axis innermost. It serves any call, and is there to compare with.
const char* causal_conv1d_openmp_form(const CausalConv1dFwdParams& params);
void causal_conv1d_openmp(const CausalConv1dFwdParams& params, void* workspace, void* stream);

// name, refusal, launch, workspace, auto_takes, form
constexpr KernelRow<CausalConv1dFwdParams> kFwdKernels[] = {
    {"simd", causal_conv1d_simd_refusal, launch_and_final_states<causal_conv1d_simd>, nullptr, nullptr,
     causal_conv1d_simd_form},
    {"openmp", nullptr, launch_and_final_states<causal_conv1d_openmp>, nullptr, nullptr, causal_conv1d_openmp_form},
};
static_assert(are_named(kFwdKernels, kCausalConv1dFwdNames.cpu), "names stand in causal_conv1d/forward.h too");

}  // namespace hipconv
