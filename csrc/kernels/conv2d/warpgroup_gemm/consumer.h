// The consumers: warpgroups that multiply the stages of the rings, and so make the sums of a tile.
#pragma once

#include "../gemm/ring.h"
#include "../gemm/warpgroup_epilogue.h"
#include "tile_scheduler.h"

namespace hipconv {

// Multiplies one tap of x by a stage of the filters: the channels of 128 bytes, kWgmmaBytes of them at a time.
template <typename T, bool kPlanes = false, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_stage(const WarpgroupGemmParams& p, const Words4* x, int first_row, const Words4* filters,
                                   bool keeps_sums, WarpgroupSums<kTileN> (&sums)[kBlocks]) {
#pragma unroll
    for (int bytes = 0; bytes < kTileRowBytes; bytes += kWgmmaBytes) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            const int row = first_row + block * p.rows_of_64;
            wgmma<T, kTileN, kPlanes>(sums[block], x, row, p.group_bytes, filters, bytes, keeps_sums || bytes > 0);
        }
    }
}

// The same, under way; the products of the step before are done.
template <typename T, bool kPlanes, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_later(const WarpgroupGemmParams& p, const Words4* x, int first_row, const Words4* filters,
                                   bool keeps_sums, WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    wgmma_fence();
    multiply_stage<T, kPlanes>(p, x, first_row, filters, keeps_sums, sums);
    wgmma_commit();
    wgmma_wait<1>();
}

// The products of split f32, done: of the large parts, which a stage has first, and of each small part and the other's large
// one. The matrix cores round towards zero, so they make the sums of one step only, the smallest products first.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_parts(const WarpgroupGemmParams& p, const Words4* x, int x_chunks, int first_row,
                                   const Words4* filters, int filter_chunks, WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    wgmma_fence();
    multiply_stage<T>(p, x + x_chunks, first_row, filters, false, sums);
    multiply_stage<T>(p, x, first_row, filters + filter_chunks, true, sums);
    multiply_stage<T>(p, x, first_row, filters, true, sums);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence_sums(sums[block]);
}

template <int kTileN, int kBlocks>
HIPCONV_INLINE void clear_sums(WarpgroupSums<kTileN> (&sums)[kBlocks]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int e = 0; e < kTileN / 2; ++e) sums[block].values[e] = 0.0f;
}

template <int kTileN, int kBlocks>
HIPCONV_INLINE void add_sums(WarpgroupSums<kTileN> (&sums)[kBlocks], const WarpgroupSums<kTileN> (&more)[kBlocks]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int e = 0; e < kTileN / 2; ++e) sums[block].values[e] += more[block].values[e];
}

// Makes a tile's sums over its k-blocks. The products of a step are under way while the warpgroup waits for the operands of the
// next; a step's stages go back to the producers one step later, when its products are done.
template <typename T, bool kPlanes, int kTileN, int kBlocks>
HIPCONV_INLINE void mainloop(const WarpgroupGemmParams& p, const WarpgroupTile& t, const Ring& x, RingState& x_state,
                             const Ring& filters, RingState& filter_state, int first_block_row, int lane,
                             WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    int read_filters = -1, read_x = -1;  // the stages that the step before was the last to read
    bool keeps_sums = false;
    if constexpr (kIsSplit<T>) clear_sums(sums);
#pragma unroll 1
    for (int k_block = t.first_k_block; k_block < t.end_k_block; ++k_block) {
        wait_for_phase(&x.full[x_state.stage], x_state.phase);
        int tap_row = 0, column = 0;  // the tap's first row of LDS, counted from the first tap's; its column
#pragma unroll 1
        for (int tap = 0; tap < p.taps_per_k_block; ++tap) {
            wait_for_phase(&filters.full[filter_state.stage], filter_state.phase);
            if constexpr (kIsSplit<T>) {
                WarpgroupSums<kTileN> more[kBlocks];
                multiply_parts<T>(p, x.at(x_state), x.chunks / 2, first_block_row + tap_row, filters.at(filter_state),
                                  filters.chunks / 2, more);
                if (lane == 0) {
                    arrive(&filters.empty[filter_state.stage]);
                    if (tap == p.taps_per_k_block - 1) arrive(&x.empty[x_state.stage]);
                }
                add_sums(sums, more);
            } else {
                multiply_later<T, kPlanes>(p, x.at(x_state), first_block_row + tap_row, filters.at(filter_state), keeps_sums,
                                           sums);
                if (lane == 0) {
                    if (read_filters >= 0) arrive(&filters.empty[read_filters]);
                    if (read_x >= 0) arrive(&x.empty[read_x]);
                }
            }
            keeps_sums = true;
            read_filters = filter_state.stage;
            read_x = -1;
            filter_state.advance(filters.stages);
            ++tap_row;
            if (++column == kPatchTaps) {
                column = 0;
                tap_row += p.patch_pitch - kPatchTaps;
            }
        }
        read_x = x_state.stage;
        x_state.advance(x.stages);
    }
    if constexpr (kIsSplit<T>) return;
    wgmma_wait<0>();
    if (lane == 0) {
        arrive(&filters.empty[read_filters]);
        arrive(&x.empty[read_x]);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence_sums(sums[block]);
}

}  // namespace hipconv
