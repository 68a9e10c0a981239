// Instances of the GEMM of warpgroups whose x comes by the copy engine.
#include <hip/hip_runtime.h>

#include "conv2d_warpgroup_gemm_kernel.h"

namespace hipconv {

void launch_warpgroup_gemm_boxes(const WarpgroupGemmParams& params, Conv2dTile tile, int units, void* stream) {
    launch_warpgroup_gemm<true>(params, tile, units, stream);
}

}  // namespace hipconv
