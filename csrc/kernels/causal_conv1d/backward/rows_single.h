// Rows of one token have a kernel of their own (rows_single.cu), which "rows" launches.
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/backward.h"

namespace hipconv {

bool causal_conv1d_bwd_single_serves(const CausalConv1dBwdParams& params);
int64_t causal_conv1d_bwd_single_workspace(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_single(const CausalConv1dBwdParams& params, void* workspace, hipStream_t stream);

}  // namespace hipconv
