// This file has the instances of the implicit GEMM for f32 that is split into two parts of TF32 each.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_split_f32(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    launch_gemm_32bit<split_f32>(p, tile, split_k, stream);
}

}  // namespace hipconv
