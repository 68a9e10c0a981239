// The prefill kernels for host memory: the functions of each, which has a file of its own, and their table.
//
// All share their work out over torch's own OpenMP threads, so torch.set_num_threads holds.
#pragma once

#include "causal_conv1d/prefill.h"

namespace hipconv {

// prefill_simd.cpp computes vectors along channels or tokens, whichever are nearer neighbours in memory. It serves
// windows that fit its buffers (serial.h).
const char* causal_conv1d_varlen_simd_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_simd(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);

// prefill.cpp has plain loops around the formula, a row for each channel of each sequence. It is there to compare with.
void causal_conv1d_varlen_openmp(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);

// name, refusal, launch
constexpr KernelRow<CausalConv1dVarlenParams, VarlenTile> kVarlenKernels[] = {
    {"simd", causal_conv1d_varlen_simd_refusal, causal_conv1d_varlen_simd},
    {"openmp", nullptr, causal_conv1d_varlen_openmp},
};
static_assert(are_named(kVarlenKernels, kCausalConv1dVarlenNames.cpu), "names stand in causal_conv1d/prefill.h too");

}  // namespace hipconv
