// This file has the instances of the implicit GEMM for float32 that is rounded to TF32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_frame_gemm_tf32(const FrameGemmParams& p, int tile_n, void* stream) {
    launch_frame_gemm_32bit<tf32>(p, tile_n, stream);
}

}  // namespace hipconv
