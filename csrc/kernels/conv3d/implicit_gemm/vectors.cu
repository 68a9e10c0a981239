// This file has the instances of the implicit GEMM that read 16 bytes of channels of x at once.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_frame_gemm_vectors(const FrameGemmParams& p, int tile_n, void* stream) {
    const auto launch = tile_n == 128  ? launch_frame_gemm<128, true>
                        : tile_n == 96 ? launch_frame_gemm<96, true>
                                       : launch_frame_gemm<32, true>;
    launch(p, stream);
}

}  // namespace hipconv
