// The instances of the warpgroup GEMM for f16 that TMA loads.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_warpgroup_gemm<f16, true>(const WarpgroupGemmParams&, Conv2dTile, int, void*);

}  // namespace hipconv
