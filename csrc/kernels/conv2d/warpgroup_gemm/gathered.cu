// The instances of the warpgroup GEMM whose producer waves gather x.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_warpgroup_gemm<bf16, false>(const WarpgroupGemmParams&, Conv2dTile, int, void*);
template void launch_warpgroup_gemm<f16, false>(const WarpgroupGemmParams&, Conv2dTile, int, void*);

}  // namespace hipconv
