// The tiles of a block: block b makes the tiles b, b + gridDim.x, … Tiles of the same pixels follow each other, filters first,
// then frames, so that they find x in the L2 cache.
#pragma once

#include "params.h"

namespace hipconv {

struct FrameTile {
    int sample, group, frame, row, column, first_filter;
};

template <int kTileM>
HIPCONV_INLINE FrameTile frame_tile(const FrameWarpgroupParams& p, int number) {
    FrameTile t{};
    int rest = static_cast<int>(divide(number, p.frame.divide_by_tiles_n));
    t.first_filter = (number - rest * p.frame.tiles_n) * p.tile_n;
    const int place = static_cast<int>(divide(rest, p.divide_by_frames));
    t.frame = rest - place * p.conv.out_frames;
    const int of_all = static_cast<int>(divide(place, p.frame.divide_by_tiles_m));
    const int of_frame = place - of_all * p.frame.tiles_m;
    t.sample = static_cast<int>(divide(of_all, p.divide_by_groups));
    t.group = of_all - t.sample * p.conv.groups;
    const int down = static_cast<int>(divide(of_frame, p.divide_by_across));
    t.row = down * (kTileM / kBlockSide >> p.log2_block_columns);
    t.column = (of_frame - down * p.tiles_across) * (kBlockSide << p.log2_block_columns);
    return t;
}

// The frames of taps that a tile multiplies: at least one, which is all zeros where the tile sees nothing but padding.
struct SeenFrames : TapFrames {
    HIPCONV_INLINE SeenFrames(const Conv3dParams& p, int t) : TapFrames(p, t) {
        if (first == end) first = 0, end = 1;
    }
};

// A tile's pixels from number `first` on, as the epilogue asks for them: blocks of 8 by 8.
struct BlockPixels {
    int frame, row, column, first, log2_block_columns;

    HIPCONV_INLINE OutPixel at(const ConvGemmParams&, int i) const {
        const int number = first + i, block = number / (kBlockSide * kBlockSide), pixel = number % (kBlockSide * kBlockSide);
        const int down = block >> log2_block_columns, across = block - (down << log2_block_columns);
        return {frame, row + down * kBlockSide + pixel / kBlockSide, column + across * kBlockSide + pixel % kBlockSide};
    }
    HIPCONV_INLINE bool has(const ConvGemmParams& p, int i) const {
        const OutPixel pixel = at(p, i);
        return pixel.p < p.conv.out_height && pixel.q < p.conv.out_width;
    }
};

}  // namespace hipconv
