// The instances of `fma_gemm`.
#include <hip/hip_runtime.h>

#include "kernel.h"
#include "launch/compute_units.h"

namespace hipconv {

namespace {

template <typename S>
void launch_shape(const FmaGemmParams& p, unsigned blocks, void* stream) {
    // Blocks that come early lie beside those of the kernel before, and so several on one compute unit while others have none.
    const int64_t units = compute_units_here(), turns = ceil_of(p.products, S::kTurn);
    const bool early = turns <= 2 || 4 * int64_t{blocks} <= units || int64_t{blocks} >= 2 * S::kBlocks * units;
    const auto launch = [&](auto kernel) {
        HIPCONV_LAUNCH(early, kernel, dim3(blocks, 1, 1), dim3(S::kThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    };
    if (p.by_vectors)
        launch(conv2d_fma_gemm<S, true>);
    else
        launch(conv2d_fma_gemm<S, false>);
    check_launch("conv2d");
}

}  // namespace

void launch_fma_gemm(const FmaGemmParams& p, Conv2dTile tile, unsigned blocks, void* stream) {
    if (tile.tile_m == FmaWide::kTilePixels) return launch_shape<FmaWide>(p, blocks, stream);
    if (tile.tile_m == FmaSmall::kTilePixels) return launch_shape<FmaSmall>(p, blocks, stream);
    if (tile.tile_m == FmaShared::kTilePixels) return launch_shape<FmaShared>(p, blocks, stream);
    if (tile.tile_n == FmaNarrow::kTileFilters) return launch_shape<FmaNarrow>(p, blocks, stream);
    launch_shape<FmaNarrowest>(p, blocks, stream);
}

}  // namespace hipconv
