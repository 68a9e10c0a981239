// The instances of the warpgroup GEMM for f32 that comes in two parts of TF32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_warpgroup_gemm_split(const WarpgroupGemmParams& p, Conv2dTile tile, int units, void* stream) {
    const auto launch = tile.tile_m == 64    ? launch_warpgroup_instance<split_f32, 64, 64, true>
                        : tile.tile_n == 128 ? launch_warpgroup_instance<split_f32, 128, 128, true>
                                             : launch_warpgroup_instance<split_f32, 128, 64, true>;
    launch(p, units, stream);
}

}  // namespace hipconv
