// The instances of conv3d's warpgroup GEMM for bf16.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

template void launch_frame_warpgroups<bf16>(const FrameWarpgroupParams&, int, int, int, void*);

}  // namespace hipconv
