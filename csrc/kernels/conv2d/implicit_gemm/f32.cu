// This file has the instances of the implicit GEMM for f32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_f32(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    launch_gemm_32bit<float>(p, tile, split_k, stream);
}

}  // namespace hipconv
