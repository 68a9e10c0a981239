// The instances of the warpgroup GEMM for bf16 that TMA loads.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_warpgroup_gemm<bf16, true>(const WarpgroupGemmParams&, Conv2dTile, int, void*);

}  // namespace hipconv
