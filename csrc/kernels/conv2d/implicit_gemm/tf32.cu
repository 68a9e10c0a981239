// This file has the instances of the implicit GEMM for f32 that is rounded to TF32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_tf32(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    if (p.form == XForm::vectors && tile.tile_n == 128)
        return launch_gemm_instance<tf32, 128, 128, XForm::vectors>(p, split_k, stream);
    launch_gemm_32bit<tf32>(p, tile, split_k, stream);
}

}  // namespace hipconv
