// The fast kernel of the varlen family: whether it can serve a call, and its launch (only if it can).
#pragma once

#include "causal_conv1d_varlen.h"

namespace hipconv {

bool causal_conv1d_varlen_tile_serves(const CausalConv1dVarlenParams& params);  // widths 2 to 6, states of x's dtype or f32
void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& params, const VarlenTile& tile, void* stream);

}  // namespace hipconv
