// This file has the instances of the implicit GEMM that read x element by element, whatever its strides.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_frame_gemm_elements(const FrameGemmParams& p, int tile_n, void* stream) {
    (tile_n == 96 ? launch_frame_gemm<96, false> : launch_frame_gemm<32, false>)(p, stream);
}

}  // namespace hipconv
