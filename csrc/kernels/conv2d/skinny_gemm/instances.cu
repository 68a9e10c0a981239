// The instances of `skinny_gemm`.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <typename T, bool kVectors, int kPixels, int kFilters>
void launch_instance(const SkinnyGemmParams& p, unsigned blocks, unsigned threads, void* stream) {
    HIPCONV_LAUNCH(true, (conv2d_skinny_gemm<T, kVectors, kPixels, kFilters>), dim3(blocks, 1, 1), dim3(threads, 1, 1), 0,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

template <int kPixels, int kFilters, typename T>
void launch_type(const SkinnyGemmParams& p, unsigned blocks, unsigned threads, void* stream) {
    if constexpr (kPixels <= kSkinnyElementPixels) {
        if (!p.by_vectors) return launch_instance<T, false, kPixels, kFilters>(p, blocks, threads, stream);
    }
    launch_instance<T, true, kPixels, kFilters>(p, blocks, threads, stream);
}

template <int kPixels, int kFilters>
void launch_tile(const SkinnyGemmParams& p, unsigned blocks, unsigned threads, void* stream) {
    if (p.conv.dtype == DType::f32) return launch_type<kPixels, kFilters, float>(p, blocks, threads, stream);
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16) return launch_type<kPixels, kFilters, bf16>(p, blocks, threads, stream);
    }
    launch_type<kPixels, kFilters, f16>(p, blocks, threads, stream);
}

}  // namespace

void launch_skinny_gemm(const SkinnyGemmParams& p, Conv2dTile tile, unsigned blocks, unsigned threads, void* stream) {
    if (tile.tile_m == 1) return launch_tile<1, 2>(p, blocks, threads, stream);
    if (tile.tile_m == 4) return launch_tile<4, 4>(p, blocks, threads, stream);
    launch_tile<8, 4>(p, blocks, threads, stream);
}

}  // namespace hipconv
