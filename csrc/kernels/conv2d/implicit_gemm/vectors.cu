// This file has the instances of the implicit GEMM for 16-bit types that read x by vectors.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_vectors(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    const auto launch = tile.tile_m == 256   ? launch_gemm_16bit<256, 128, XForm::vectors>
                        : tile.tile_n == 128 ? launch_gemm_16bit<128, 128, XForm::vectors>
                        : tile.tile_m == 128 ? launch_gemm_16bit<128, 64, XForm::vectors>
                                             : launch_gemm_16bit<64, 64, XForm::vectors>;
    launch(p, split_k, stream);
}

}  // namespace hipconv
