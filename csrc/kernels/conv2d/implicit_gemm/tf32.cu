// The instances of the implicit GEMM for f32 that is rounded to TF32.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_tf32(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    const bool large = tile.tile_m == 128, vectors = p.form == XForm::vectors;
    const auto launch = p.form == XForm::anything ? launch_gemm_instance<tf32, 64, 64, XForm::anything>
                        : tile.tile_n == 128      ? launch_gemm_instance<tf32, 128, 128, XForm::vectors>
                        : large && vectors        ? launch_gemm_instance<tf32, 128, 64, XForm::vectors>
                        : large                   ? launch_gemm_instance<tf32, 128, 64, XForm::elements>
                        : vectors                 ? launch_gemm_instance<tf32, 64, 64, XForm::vectors>
                                                  : launch_gemm_instance<tf32, 64, 64, XForm::elements>;
    launch(p, split_k, stream);
}

}  // namespace hipconv
