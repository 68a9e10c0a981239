// The prefill kernels on GPUs: the functions that each has in a file of its own, and their tables.
#pragma once

#include "causal_conv1d/prefill.h"

namespace hipconv {

const char* causal_conv1d_varlen_tile_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);

void launch_causal_conv1d_varlen_naive(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace,
                                       void* stream);

// In place: `strip` serves what `tile` does, up to 2^30 tokens; `walk`, of width 4 and with channels in vectors, is for long
// sequences.
const char* causal_conv1d_varlen_walk_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
bool causal_conv1d_varlen_walk_is_faster(const CausalConv1dVarlenParams& params, const VarlenTile& tile);  // than strip
void causal_conv1d_varlen_walk(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);

const char* causal_conv1d_varlen_strip_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_strip(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);

// name, refusal, launch, workspace, auto_takes
constexpr KernelRow<CausalConv1dVarlenParams, VarlenTile> kVarlenKernels[] = {
    {"tile", causal_conv1d_varlen_tile_refusal, causal_conv1d_varlen_tile},
    {"naive", nullptr, launch_causal_conv1d_varlen_naive},
};
constexpr KernelRow<CausalConv1dVarlenParams, VarlenTile> kVarlenInPlaceKernels[] = {
    {"walk", causal_conv1d_varlen_walk_refusal, causal_conv1d_varlen_walk, nullptr, causal_conv1d_varlen_walk_is_faster},
    {"strip", causal_conv1d_varlen_strip_refusal, causal_conv1d_varlen_strip},
};
static_assert(are_named(kVarlenKernels, kCausalConv1dVarlenNames.gpu), "names stand in causal_conv1d/prefill.h too");
static_assert(are_named(kVarlenInPlaceKernels, kCausalConv1dVarlenNames.gpu), "names stand in causal_conv1d/prefill.h too");

}  // namespace hipconv
