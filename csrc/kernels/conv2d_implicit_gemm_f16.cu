// The implicit GEMM of f16 tensors: its instances, in a file of their own so that they compile side by side with the others.
#include <hip/hip_runtime.h>

#include "conv2d_implicit_gemm_kernel.h"

namespace hipconv {

void launch_conv_gemm_f16(const ConvGemmParams& params, Conv2dTile tile, XForm form, int split_k, void* stream) {
    launch_conv_gemm<f16>(params, tile, form, split_k, stream);
}

}  // namespace hipconv
