// This file has the instances of the warpgroup GEMM that multiply planes of f32, rounded to TF32: 1x1 taps of whole images.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_warpgroup_gemm_planes_tf32(const WarpgroupGemmParams& p, Conv2dTile tile, int units, void* stream) {
    const auto launch = tile.tile_m == 256   ? launch_warpgroup_instance<tf32, 256, 128, true, true>
                        : tile.tile_m == 64  ? launch_warpgroup_instance<tf32, 64, 64, true, true>
                        : tile.tile_n == 128 ? launch_warpgroup_instance<tf32, 128, 128, true, true>
                                             : launch_warpgroup_instance<tf32, 128, 64, true, true>;
    launch(p, units, stream);
}

}  // namespace hipconv
