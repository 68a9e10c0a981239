// The mainloop of the implicit GEMM where operands come to LDS by asynchronous copies; the two others stand in
// kernel.h, because compilers make other code of them here.
#pragma once

#include "filter_loader.h"
#include "patch_loader.h"
#include "pixel_loader.h"

namespace hipconv {

// Takes a step of the inner product, for T or, where kHalvesShareKernels, for the 16-bit type that the call has.
template <typename T, int kPixels, int kFilters, bool kFreesAddresses = false, typename RowOf>
HIPCONV_INLINE void multiply(DType dtype, typename Mma<T, kPixels, kFilters>::Sums& sums, const Words4* pixels,
                             const Words4* filters, int lane, RowOf row_of) {
    if constexpr (sizeof(T) == 2 && kHalvesShareKernels) {
        if (dtype == DType::bf16)
            return Mma<bf16, kPixels, kFilters>::template step<kFreesAddresses>(sums, pixels, filters, lane, row_of);
    }
    Mma<T, kPixels, kFilters>::template step<kFreesAddresses>(sums, pixels, filters, lane, row_of);
}

// Makes a wave's sums. Asynchronous copies fill the ring of stages two steps ahead.
template <typename T, int kTileM, int kTileN, int kStages, int kPixels, int kFilters, typename Pixels, typename Filters>
__device__ __forceinline__ void mainloop_async_copies(const ConvGemmParams& p, Pixels& pixels, Filters& filters, int first_step,
                                                      int end, int wave_pixel, int wave_filter, int lane, Words4* lds,
                                                      typename Mma<T, kPixels, kFilters>::Sums& sums) {
    constexpr int kStageChunks = (kTileM + kTileN) * kTileChunks;
    const auto fill = [&](int stage, int step) {
        if (step < end) {
            pixels.copy(p, lds + stage * kStageChunks);
            filters.copy(lds + stage * kStageChunks + kTileM * kTileChunks);
            pixels.advance(p);
            filters.advance(p);
        }
        close_copies();
    };
    const auto same_row = [](int row) { return row; };
    // Prologue: all stages but one.
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) fill(stage, first_step + stage);
    int stage = 0, next = kStages - 1;
#pragma unroll 1
    for (int step = first_step; step < end; ++step) {
        wait_for_copies<kStages - 2>();
        __syncthreads();  // all threads' copies of this step are there, and the stage before is read
        fill(next, step + kStages - 1);
        const Words4* tile = lds + stage * kStageChunks;
        multiply<T, kPixels, kFilters>(p.conv.dtype, sums, tile + wave_pixel * kTileChunks,
                                       tile + (kTileM + wave_filter) * kTileChunks, lane, same_row);
        stage = stage + 1 == kStages ? 0 : stage + 1;
        next = next + 1 == kStages ? 0 : next + 1;
    }
    wait_for_copies<0>();
}

}  // namespace hipconv
