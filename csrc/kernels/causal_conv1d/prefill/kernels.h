// The fast kernels of the varlen family: whether they can serve a call, and their launches (only if they can).
#pragma once

#include "causal_conv1d/prefill.h"

namespace hipconv {

bool causal_conv1d_varlen_tile_serves(const CausalConv1dVarlenParams& params);  // widths 2 to 6, states of x's dtype or f32
void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* stream);

// In place: `strip` serves what `tile` does, up to 2^30 tokens; `walk`, of width 4 and with channels in vectors, is for long sequences.
bool causal_conv1d_varlen_strip_serves(const CausalConv1dVarlenParams& params);
bool causal_conv1d_varlen_walk_serves(const CausalConv1dVarlenParams& params);
bool causal_conv1d_varlen_walk_is_faster(const CausalConv1dVarlenParams& params);
void causal_conv1d_varlen_walk(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* stream);
void causal_conv1d_varlen_strip(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* stream);

}  // namespace hipconv
