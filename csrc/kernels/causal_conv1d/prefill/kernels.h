// This declares the prefill kernels on GPUs, which have a file of their own each, and has their tables.
#pragma once

#include "causal_conv1d/prefill.h"

namespace hipconv {

const char* causal_conv1d_varlen_tile_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);

// In place, two launches share out the work.
bool causal_conv1d_varlen_tile_takes_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile);
int64_t causal_conv1d_varlen_tile_workspace(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
int64_t causal_conv1d_varlen_tile_in_place_workspace(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_tile_in_place(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace,
                                        void* stream);

// These serve channels that are neighbours, a word a lane.
const char* causal_conv1d_varlen_words_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_words(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);
bool causal_conv1d_varlen_words_takes_in_place(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
int64_t causal_conv1d_varlen_words_workspace(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
int64_t causal_conv1d_varlen_words_in_place_workspace(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_words_in_place(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace,
                                         void* stream);

void launch_causal_conv1d_varlen_naive(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace,
                                       void* stream);

// By way of LDS: any layout and alignment, and in place.
const char* causal_conv1d_varlen_staged_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_staged(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace, void* stream);

const char* causal_conv1d_varlen_staged_in_place_refusal(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
int64_t causal_conv1d_varlen_staged_workspace(const CausalConv1dVarlenParams& params, const VarlenTile& tile);
void causal_conv1d_varlen_staged_in_place(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* workspace,
                                          void* stream);

// name, refusal, launch, workspace, auto_takes
constexpr KernelRow<CausalConv1dVarlenParams, VarlenTile> kVarlenKernels[] = {
    {"tile", causal_conv1d_varlen_tile_refusal, causal_conv1d_varlen_tile, causal_conv1d_varlen_tile_workspace},
    {"words", causal_conv1d_varlen_words_refusal, causal_conv1d_varlen_words, causal_conv1d_varlen_words_workspace},
    {"staged", causal_conv1d_varlen_staged_refusal, causal_conv1d_varlen_staged},
    {"naive", nullptr, launch_causal_conv1d_varlen_naive},
};
constexpr KernelRow<CausalConv1dVarlenParams, VarlenTile> kVarlenInPlaceKernels[] = {
    {"tile", causal_conv1d_varlen_tile_refusal, causal_conv1d_varlen_tile_in_place,
     causal_conv1d_varlen_tile_in_place_workspace, causal_conv1d_varlen_tile_takes_in_place},
    {"words", causal_conv1d_varlen_words_refusal, causal_conv1d_varlen_words_in_place,
     causal_conv1d_varlen_words_in_place_workspace, causal_conv1d_varlen_words_takes_in_place},
    {"staged", causal_conv1d_varlen_staged_in_place_refusal, causal_conv1d_varlen_staged_in_place,
     causal_conv1d_varlen_staged_workspace},
};
static_assert(are_named(kVarlenKernels, kCausalConv1dVarlenNames.gpu), "names stand in causal_conv1d/prefill.h too");
static_assert(are_named(kVarlenInPlaceKernels, kCausalConv1dVarlenNames.gpu), "names stand in causal_conv1d/prefill.h too");

}  // namespace hipconv
