// The instances of the warpgroup GEMM for f32 that comes in two parts of TF32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_warpgroup_gemm<split_f32, true>(const WarpgroupGemmParams&, Conv2dTile, int, void*);

}  // namespace hipconv
