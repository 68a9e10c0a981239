// The edges of patches outside their frame, where rows and columns are not padded with zeros. TMA leaves zeros there; then a
// wave copies pixels of the same patch to them, before the consumers get it.
#pragma once

#include "../../conv2d/gemm/ring.h"
#include "tiles.h"

namespace hipconv {

// Where a patch lies in its frame. What else is known of it stands in the parameters, since a producer has few registers.
struct PatchEdges {
    const FrameWarpgroupParams& p;
    int top, left;

    HIPCONV_INLINE PatchEdges(const FrameWarpgroupParams& p, const FrameTile& t)
        : p(p), top(t.row - p.conv.pad_top), left(t.column - p.conv.pad_left) {}

    // The rows and columns of the frame that end what outputs read.
    HIPCONV_INLINE int end_of_rows(int patch_rows) const {
        const int needed = p.conv.out_height + p.conv.kernel_height - 1 - p.conv.pad_top;
        return top + patch_rows < needed ? top + patch_rows : needed;
    }
    HIPCONV_INLINE int end_of_columns() const {
        const int needed = p.conv.out_width + p.conv.kernel_width - 1 - p.conv.pad_left;
        return left + p.pitch < needed ? left + p.pitch : needed;
    }
    HIPCONV_INLINE bool has_any(int patch_rows) const {
        return top < 0 || left < 0 || end_of_rows(patch_rows) > p.conv.in_height || end_of_columns() > p.conv.in_width;
    }
    // The row or column of a frame that stands for one that may lie outside.
    HIPCONV_INLINE int inside(int at, int size) const {
        const int beyond = at < 0 ? -at : at - (size - 1);
        const int edge = at < 0 ? 0 : size - 1;
        if (at >= 0 && at < size) return at;
        return p.conv.padding_mode == PaddingMode::replicate ? edge : at < 0 ? beyond : edge - beyond;
    }

    // Eight lanes copy the chunks of a pixel.
    HIPCONV_INLINE void fill(Words4* patch, int patch_rows, int lane) const {
        const int end = end_of_columns(), chunk = lane % kTileChunks;
#pragma unroll 1
        for (int row = top; row < end_of_rows(patch_rows); ++row) {
            const int from_row = inside(row, p.conv.in_height);
#pragma unroll 1
            for (int column = left + lane / kTileChunks; column < end; column += 32 / kTileChunks) {
                const int from_column = inside(column, p.conv.in_width);
                if (from_row == row && from_column == column) continue;
                patch[swizzled_chunk((row - top) * p.pitch + column - left, chunk)] =
                    patch[swizzled_chunk((from_row - top) * p.pitch + from_column - left, chunk)];
            }
        }
    }
};

// Fills the patches that land, and hands them to the consumers; all lanes of a wave.
template <int kTileM>
HIPCONV_INLINE void fill_edges(const FrameWarpgroupParams& p, const Ring& ring, int lane) {
    const int patch_rows = (kTileM / kBlockSide >> p.log2_block_columns) + p.conv.kernel_height - 1;
    RingState place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const FrameTile t = frame_tile<kTileM>(p, number);
        const SeenFrames taps(p.conv, t.frame);
        const PatchEdges edges(p, t);
#pragma unroll 1
        for (int patch = (taps.end - taps.first) * p.channel_blocks; patch > 0; --patch) {
            wait_for_phase(&ring.full[kFirstLanded + place.stage], place.phase);
            if (edges.has_any(patch_rows)) edges.fill(ring.at(place), patch_rows, lane);
            fence_async_proxy();
            sync_wave();
            if (lane == 0) arrive(&ring.full[place.stage]);
            place.advance(ring.stages);
        }
    }
}

}  // namespace hipconv
