// The instances of the warpgroup GEMM for f32 that is rounded to TF32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_warpgroup_gemm<tf32, true>(const WarpgroupGemmParams&, Conv2dTile, int, void*);

}  // namespace hipconv
