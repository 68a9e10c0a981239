// This file has the instances of the implicit GEMM for 16-bit types that read x element by element.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_elements(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    const auto launch = p.form == XForm::anything ? launch_gemm_16bit<64, 64, XForm::anything>
                        : tile.tile_n == 128      ? launch_gemm_16bit<128, 128, XForm::elements>
                        : tile.tile_m == 128      ? launch_gemm_16bit<128, 64, XForm::elements>
                                                  : launch_gemm_16bit<64, 64, XForm::elements>;
    launch(p, split_k, stream);
}

}  // namespace hipconv
