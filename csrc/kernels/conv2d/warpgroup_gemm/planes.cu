// This file has the instances of the warpgroup GEMM that multiply planes of x: 1x1 taps of contiguous images.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_warpgroup_gemm_planes(const WarpgroupGemmParams& params, Conv2dTile tile, int units, void* stream) {
    launch_warpgroup_gemm<true, true>(params, tile, units, stream);
}

}  // namespace hipconv
