// The instances of the warpgroup GEMM that multiply planes of f32, rounded to TF32: 1x1 taps of whole images.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_warpgroup_gemm<tf32, true, true>(const WarpgroupGemmParams&, Conv2dTile, int, void*);

}  // namespace hipconv
