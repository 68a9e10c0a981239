// The instances of the implicit GEMM for f32 that is split into two parts of TF32 each.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_gemm_split_f32(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    const bool large = tile.tile_m == 128, vectors = p.form == XForm::vectors;
    const auto launch = p.form == XForm::anything ? launch_gemm_instance<split_f32, 64, 64, XForm::anything>
                        : large && vectors        ? launch_gemm_instance<split_f32, 128, 64, XForm::vectors>
                        : large                   ? launch_gemm_instance<split_f32, 128, 64, XForm::elements>
                        : vectors                 ? launch_gemm_instance<split_f32, 64, 64, XForm::vectors>
                                                  : launch_gemm_instance<split_f32, 64, 64, XForm::elements>;
    launch(p, split_k, stream);
}

}  // namespace hipconv
