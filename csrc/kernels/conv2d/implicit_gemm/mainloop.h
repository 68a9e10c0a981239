// The mainloops of the implicit GEMM where operands come to LDS by asynchronous copies; the other one stands in kernel.h,
// because compilers make other code of it here.
#pragma once

#include "filter_loader.h"
#include "patch_loader.h"
#include "pixel_loader.h"

namespace hipconv {

// Takes a step of the inner product, for T or, where kHalvesShareKernels, for the 16-bit type that the call has.
template <typename T, int kPixels, int kFilters, bool kFreesAddresses = false, typename RowOf>
HIPCONV_INLINE void multiply(DType dtype, typename Mma<T, kPixels, kFilters>::Sums& sums, const Words4* pixels,
                             const Words4* filters, int lane, RowOf row_of) {
    with_halves<T>(dtype, [&](auto like) {
        Mma<decltype(like), kPixels, kFilters>::template step<kFreesAddresses>(sums, pixels, filters, lane, row_of);
    });
}

// A wave's rows of an operand tile, and of a patch.
struct SameRows {
    HIPCONV_INLINE int operator()(int row) const { return row; }
};
struct PatchRows {
    int first;
    HIPCONV_INLINE int operator()(int pixel) const {
        return first + pixel / kPatchColumns * kPatchPitch + pixel % kPatchColumns;
    }
};

// The row of products before which a step's copies are asked for, all together: the first rows' operands are on their way by
// then, and a copy among reads of LDS holds up those behind it.
constexpr int kCopyingRow = 2;

// The stage of a ring behind another.
template <int kStages>
HIPCONV_INLINE int after_stage(int stage) {
    return stage + 1 == kStages ? 0 : stage + 1;
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
    // Prologue: all stages but one.
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) fill(stage, first_step + stage);
    int stage = 0, free = kStages - 1;
    // Waits until all threads' copies of the next stage to multiply are there, and the stage before is read.
    const auto next = [&] {
        wait_for_copies<kStages - 2>();
        __syncthreads();
        const Words4* const tile = lds + stage * kStageChunks;
        stage = after_stage<kStages>(stage);
        return tile;
    };
    const auto fill_free_stage = [&](int step) {
        fill(free, step + kStages - 1);
        free = after_stage<kStages>(free);
    };
    const int first_pixel = wave_pixel * kTileChunks, first_filter = (kTileM + wave_filter) * kTileChunks;
    if constexpr (kIsSplit<T>) {
#pragma unroll 1
        for (int step = first_step; step < end; ++step) {
            const Words4* const tile = next();
            fill_free_stage(step);
            Mma<T, kPixels, kFilters>::step(sums, tile + first_pixel, tile + first_filter, lane, SameRows{});
        }
    } else {
        with_halves<T>(p.conv.dtype, [&](auto like) {
            using Wave = Mma<decltype(like), kPixels, kFilters>;
            const auto next_tile = [&] {
                const Words4* const tile = next();
                return typename Wave::template Tile<SameRows>{tile + first_pixel, tile + first_filter, {}};
            };
            typename Wave::Ahead ahead;
            auto tile = next_tile();
            Wave::load_first(ahead, tile, lane);
#pragma unroll 1
            for (int step = first_step; step < end; ++step) {
                const auto during = [&](int row) {
                    if (row == kCopyingRow) fill_free_stage(step);
                };
                tile = Wave::step_into_next(sums, ahead, tile, lane, during, next_tile);
            }
        });
    }
    wait_for_copies<0>();
}

// The same of 3x3 taps, by patches: a tap each step. During the first taps of a block of channels, the next patch is loaded
// part by part into the other half of LDS. Behind both patches is the ring of the filters' stages.
template <typename T, int kTileM, int kTileN, int kStages, int kPixels, int kFilters, bool kByVectors, typename Patch,
          typename Filters>
__device__ __forceinline__ void mainloop_patches(const ConvGemmParams& p, const Patch& patch, Filters& filters, int end,
                                                 int wave_pixel, int wave_filter, int lane, Words4* lds,
                                                 typename Mma<T, kPixels, kFilters>::Sums& sums) {
    constexpr int kTaps = kPatchTaps * kPatchTaps, kStageChunks = kTileN * kTileChunks;
    Words4* const ring = lds + 2 * Patch::kCount;
    const auto fill = [&](int stage, int step) {
        if (step < end) {
            filters.copy(ring + stage * kStageChunks);
            filters.advance(p);
        }
        close_copies();
    };
    // Prologue: the first patch and the first stages of filters.
    __syncthreads();  // the table of offsets is there
    typename Patch::Loaded loaded;
    patch.fill(p, lds, loaded);
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) fill(stage, stage);
    with_halves<T>(p.conv.dtype, [&](auto like) {
        using Wave = Mma<decltype(like), kPixels, kFilters>;
        int stage = 0, free = kStages - 1, channel_block = 0, row = 0, column = 0;  // of the next tap
        // Waits until the next stage and, at a first tap, the next patch are there, and the ones before are read.
        const auto next = [&] {
            wait_for_copies<kStages - 2>();
            __syncthreads();
            const typename Wave::template Tile<PatchRows> tile{lds + channel_block % 2 * Patch::kCount,
                                                               ring + stage * kStageChunks + wave_filter * kTileChunks,
                                                               {(wave_pixel / kPatchColumns + row) * kPatchPitch + column}};
            stage = after_stage<kStages>(stage);
            if (++column == kPatchTaps) {
                column = 0;
                if (++row == kPatchTaps) {
                    row = 0;
                    ++channel_block;
                }
            }
            return tile;
        };
        typename Wave::Ahead ahead;
        auto tile = next();
        Wave::load_first(ahead, tile, lane);
        int tap = 0, loading = 1;  // the tap of this step, and the patch that is loaded meanwhile
#pragma unroll 1
        for (int step = 0; step < end; ++step) {
            Words4* const to = lds + loading % 2 * Patch::kCount;
            const bool loads = tap < Patch::kParts && step + kTaps - tap < end;
            const auto during = [&](int of_step) {
                if (of_step != kCopyingRow) return;
                if (kByVectors && loads) patch.copy(p, tap, loading, to);
                fill(free, step + kStages - 1);
                free = after_stage<kStages>(free);
                if (!kByVectors && loads) patch.load(p, tap, loading, loaded);
            };
            const auto next_tap = [&] {
                if (!kByVectors && loads) patch.store(tap, to, loaded);
                return next();
            };
            tile = Wave::step_into_next(sums, ahead, tile, lane, during, next_tap);
            if (++tap == kTaps) {
                tap = 0;
                ++loading;
            }
        }
    });
    wait_for_copies<0>();
}

}  // namespace hipconv
