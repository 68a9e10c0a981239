// This file has the instances of the warpgroup GEMM whose producer waves gather x.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_warpgroup_gemm_gathered(const WarpgroupGemmParams& params, Conv2dTile tile, int units, void* stream) {
    launch_warpgroup_gemm<false>(params, tile, units, stream);
}

}  // namespace hipconv
