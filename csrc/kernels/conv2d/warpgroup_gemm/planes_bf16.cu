// The instances of the warpgroup GEMM that multiply planes of bf16: 1x1 taps of contiguous images.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_warpgroup_gemm<bf16, true, true>(const WarpgroupGemmParams&, Conv2dTile, int, void*);

}  // namespace hipconv
