// The fast decode kernels, one pair of functions each: whether it can serve a call, and its launch (only if it can).
#pragma once

#include "causal_conv1d_update.h"

namespace hipconv {

bool causal_conv1d_update_vector_serves(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_vector(const CausalConv1dUpdateParams& params, void* stream);

bool causal_conv1d_update_channel_serves(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_channel(const CausalConv1dUpdateParams& params, void* stream);

}  // namespace hipconv
