// The instances of the warpgroup GEMM for f32 that is rounded to TF32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_warpgroup_gemm_tf32(const WarpgroupGemmParams& p, Conv2dTile tile, int units, void* stream) {
    const auto launch = tile.tile_m == 256   ? launch_warpgroup_instance<tf32, 256, 128, true>
                        : tile.tile_m == 64  ? launch_warpgroup_instance<tf32, 64, 64, true>
                        : tile.tile_n == 128 ? launch_warpgroup_instance<tf32, 128, 128, true>
                                             : launch_warpgroup_instance<tf32, 128, 64, true>;
    launch(p, units, stream);
}

}  // namespace hipconv
