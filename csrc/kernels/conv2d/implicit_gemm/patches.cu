// This file has the instances of the implicit GEMM for 16-bit types that read x in patches.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_patches(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    const auto launch =
        tile.tile_m == 256 ? launch_gemm_16bit<256, 128, XForm::patches> : launch_gemm_16bit<128, 128, XForm::patches>;
    launch(p, split_k, stream);
}

}  // namespace hipconv
