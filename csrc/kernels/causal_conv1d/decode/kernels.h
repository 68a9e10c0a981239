// The fast decode kernels, one pair of functions each: whether it can serve a call, and its launch (only if it can). Then what
// launches have in common. For files that include <hip/hip_runtime.h>.
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/decode.h"

namespace hipconv {

bool causal_conv1d_update_step_serves(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_step(const CausalConv1dUpdateParams& params, void* stream);

bool causal_conv1d_update_vector_serves(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_vector(const CausalConv1dUpdateParams& params, void* stream);

// `vector` on NVIDIA, where it serves: copies go past the registers there.
bool causal_conv1d_update_copied_serves(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_copied(const CausalConv1dUpdateParams& params, void* stream);

bool causal_conv1d_update_channel_serves(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_channel(const CausalConv1dUpdateParams& params, void* stream);

// A block works on one row: along z and y rows, along x its strips of channels. No loop over rows, which would keep all of the
// parameters in registers.
constexpr int64_t kRowsAlongY = 65535;  // what a grid can have there
HIPCONV_INLINE int64_t row_of_block(unsigned y, unsigned z) { return z * kRowsAlongY + y; }
inline dim3 strips_of_rows(const CausalConv1dUpdateParams& p, unsigned strips) {
    return dim3(strips, blocks_up_to(p.batch, 1, kRowsAlongY), blocks_up_to(p.batch, kRowsAlongY, kRowsAlongY));
}

}  // namespace hipconv
