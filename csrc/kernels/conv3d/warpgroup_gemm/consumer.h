// The consumers: two warpgroups that multiply what the rings hold, each its blocks of 64 pixels of the tile.
#pragma once

#include "../../conv2d/gemm/ring.h"
#include "tiles.h"

namespace hipconv {

// Multiplies one tap of a patch by a stage of the filters, under way; the products of the step before are done.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_tap(const FrameWarpgroupParams& p, const Words4* patch, const int (&first_rows)[kBlocks],
                                 int tap_row, const Words4* filters, bool keeps_sums, bool ends_early,
                                 WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    const int group_bytes = p.pitch * kTileRowBytes;
    const auto multiply = [&](int bytes, bool keeps) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
            wgmma<T>(sums[block], patch, first_rows[block] + tap_row, group_bytes, filters, bytes, keeps);
    };
    // Each way has its own fence, commit and wait: where ways met in between, the assembler would add fences.
    if (ends_early) {
        wgmma_fence();
        multiply(0, keeps_sums);
        multiply(kWgmmaBytes, true);
        wgmma_commit();
        wgmma_wait<1>();
    } else {
        wgmma_fence();
        multiply(0, keeps_sums);
#pragma unroll
        for (int bytes = kWgmmaBytes; bytes < kTileRowBytes; bytes += kWgmmaBytes) multiply(bytes, true);
        wgmma_commit();
        wgmma_wait<1>();
    }
}

// Asks for the residual of a tile, a pixel a thread, so that the epilogue finds it in the L2 cache.
template <int kTileM, int kTileN>
HIPCONV_INLINE void prefetch_residual(const FrameWarpgroupParams& p, const FrameTile& t, int thread) {
    const Conv2dParams& c = p.frame.conv;
    if (!c.residual.data || !p.frame.along_filters || thread >= kTileM) return;
    const BlockPixels pixels{t.sample * p.frames_of_sample + t.frame, t.row, t.column, 0, p.log2_block_columns};
    if (!pixels.has(p.frame, thread)) return;
    const OutPixel at = pixels.at(p.frame, thread);
    const int64_t filter = static_cast<int64_t>(t.group) * p.frame.group_filters + t.first_filter;
    const int left = p.frame.group_filters - t.first_filter, bytes = element_bytes(c.residual_dtype);
    const char* const residual =
        global_pointer<const char>(c.residual.data) + offset_in(c.residual, at.n, filter, at.p, at.q) * bytes;
#pragma unroll 1
    for (int byte = 0; byte < (left < kTileN ? left : kTileN) * bytes; byte += 128) prefetch(residual + byte);
}

// Makes a tile's sums. The products of a step are under way while the warpgroup waits for the operands of the next; a step's
// stages go back to the producers one step later, when its products are done.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_frames(const FrameWarpgroupParams& p, int frame, const Ring& x, RingState& x_state,
                                    const Ring& filters, RingState& filter_state, const int (&first_rows)[kBlocks], int lane,
                                    WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    const SeenFrames taps(p.conv, frame);
    const int patches = (taps.end - taps.first) * p.channel_blocks;
    int read_filters = -1, read_x = -1;  // the stages that the step before was the last to read
    int channel_block = 0;
    bool keeps_sums = false;
#pragma unroll 1
    for (int patch = 0; patch < patches; ++patch) {
        wait_for_phase(&x.full[x_state.stage], x_state.phase);
        const bool is_last = channel_block + 1 == p.channel_blocks, ends_early = is_last && p.ends_early;
        int tap_row = 0;
#pragma unroll 1
        for (int row = 0; row < p.conv.kernel_height; ++row) {
#pragma unroll 1
            for (int column = 0; column < p.conv.kernel_width; ++column) {
                wait_for_phase(&filters.full[filter_state.stage], filter_state.phase);
                multiply_tap<T>(p, x.at(x_state), first_rows, tap_row + column, filters.at(filter_state), keeps_sums,
                                ends_early, sums);
                if (lane == 0) {
                    if (read_filters >= 0) arrive(&filters.empty[read_filters]);
                    if (read_x >= 0) arrive(&x.empty[read_x]);
                }
                keeps_sums = true;
                read_filters = filter_state.stage;
                read_x = -1;
                filter_state.advance(filters.stages);
            }
            tap_row += p.pitch;
        }
        read_x = x_state.stage;
        x_state.advance(x.stages);
        channel_block = is_last ? 0 : channel_block + 1;
    }
    wgmma_wait<0>();
    if (lane == 0) {
        arrive(&filters.empty[read_filters]);
        arrive(&x.empty[read_x]);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence_sums(sums[block]);
}

}  // namespace hipconv
