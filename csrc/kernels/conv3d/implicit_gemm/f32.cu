// This file has the instances of the implicit GEMM for float32 whose products are those of float32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_frame_gemm_f32(const FrameGemmParams& p, int tile_n, void* stream) {
    launch_frame_gemm_32bit<float>(p, tile_n, stream);
}

}  // namespace hipconv
