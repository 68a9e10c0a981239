// The persistent tile scheduler gives block b the output tiles b, b + gridDim.x, …, each with the k-blocks that its sums take.
#pragma once

#include "../gemm/epilogue.h"
#include "params.h"

namespace hipconv {

struct WarpgroupTile {
    int part, group, first_filter;
    int image, row, column;  // of the first pixel
    int first_pixel;         // its number among all pixels; unused in patches
    int first_k_block, end_k_block;

    // Sets the place of a pixel, from its number among all.
    HIPCONV_INLINE void begin_at(const ConvGemmParams& g, int number) {
        first_pixel = number;
        image = static_cast<int>(divide(number, g.divide_by_image));
        const int pixel = number - image * g.conv.out_height * g.conv.out_width;
        row = static_cast<int>(divide(pixel, g.divide_by_row));
        column = pixel - row * g.conv.out_width;
    }
};

HIPCONV_INLINE int blocks_that_share(const WarpgroupGemmParams& p) { return p.shared == Shared::nothing ? 1 : 2; }
// The rank of this block in its cluster, of those that share operands.
HIPCONV_INLINE int rank_of_block(const WarpgroupGemmParams& p) {
    return static_cast<int>(blockIdx.x) & (blocks_that_share(p) - 1);
}

template <int kTileM>
HIPCONV_INLINE WarpgroupTile warpgroup_tile(const WarpgroupGemmParams& p, int number) {
    const ConvGemmParams& g = p.gemm;
    WarpgroupTile t{};
    if (p.split.by_clusters) {  // a cluster's blocks follow each other
        const int tile = divide(number, p.split.divide_by_parts);
        t.part = number - tile * p.split.parts;
        number = tile;
    } else if (p.split.parts > 1) {
        t.part = number / p.tiles_per_part;
        number -= t.part * p.tiles_per_part;
    }
    // Tiles of the same pixels follow each other, so that they find x in the L2 cache.
    const int rank = number & (blocks_that_share(p) - 1);
    if (p.shared != Shared::nothing) number /= 2;
    int tile_m = static_cast<int>(divide(number, g.divide_by_tiles_n));
    int tile_n = number - tile_m * g.tiles_n;
    if (p.shared == Shared::x) tile_n = tile_n * 2 + rank;
    if (p.shared == Shared::filters) tile_m = tile_m * 2 + rank;  // the last one may be behind all pixels
    t.first_filter = tile_n * p.tile_n;
    const int of_image = static_cast<int>(divide(tile_m, g.divide_by_tiles_m));
    tile_m -= of_image * g.tiles_m;
    if (p.patches) {  // the images of a group follow each other, then the next group
        t.group = g.conv.groups == 1 ? 0 : of_image / g.conv.batch;
        t.image = of_image - t.group * g.conv.batch;
        const int down = static_cast<int>(divide(tile_m, g.divide_by_patches));
        t.row = down * rows_of_patch(kTileM, p.patch_columns);
        t.column = (tile_m - down * g.patches_across) * p.patch_columns;
    } else {
        t.group = g.conv.groups == 1 ? 0 : of_image;
        t.begin_at(g, (tile_m + (of_image - t.group) * g.tiles_m) * kTileM);
    }
    t.first_k_block = t.part * p.k_blocks_per_part;
    t.end_k_block = t.first_k_block + p.k_blocks_per_part < p.k_blocks ? t.first_k_block + p.k_blocks_per_part : p.k_blocks;
    return t;
}

HIPCONV_INLINE int k_blocks_of_tile(const WarpgroupGemmParams& p, int number) {
    if (p.split.parts == 1) return p.k_blocks;
    const int left = p.k_blocks - number / p.tiles_per_part * p.k_blocks_per_part;
    return left < p.k_blocks_per_part ? left : p.k_blocks_per_part;
}

// Pixels of tiles that are cut into 64 consecutive pixels of an image each.
struct PixelsOfImages {
    int number;  // of the first one, where every image has as many as its pieces of 64 would have

    HIPCONV_INLINE OutPixel at(const ConvGemmParams& p, int i) const {
        const int piece = (number + i) / kWarpgroupPixels, n = static_cast<int>(divide(piece, p.divide_by_patches));
        const int pixel = (piece - n * p.patches_across) * kWarpgroupPixels + (number + i) % kWarpgroupPixels;
        const int row = static_cast<int>(divide(pixel, p.divide_by_row));
        return {n, row, pixel - row * p.conv.out_width};
    }
    HIPCONV_INLINE bool has(const ConvGemmParams& p, int i) const {
        const OutPixel pixel = at(p, i);
        return pixel.n < p.conv.batch && pixel.p < p.conv.out_height;
    }
};

// The columns of a tile's pixels, which the compiler knows of planes.
template <bool kPlanes>
HIPCONV_INLINE int columns_of(const WarpgroupGemmParams& p) {
    return kPlanes ? kOfImages : p.patch_columns;
}

// A tile's pixels from number `first` on, as the epilogue asks for them.
struct WarpgroupPixels {
    int patch_columns;
    const WarpgroupTile& tile;
    int first;

    HIPCONV_INLINE OutPixel at(const ConvGemmParams& p, int i) const {
        switch (patch_columns) {
            case kNarrow:
                return patch<kNarrow>().at(p, i);
            case kWide:
                return patch<kWide>().at(p, i);
            case kOfImages:
                return of_images().at(p, i);
            default:
                return run().at(p, i);
        }
    }
    HIPCONV_INLINE bool has(const ConvGemmParams& p, int i) const {
        switch (patch_columns) {
            case kNarrow:
                return tile.image < p.conv.batch && patch<kNarrow>().has(p, i);
            case kWide:
                return tile.image < p.conv.batch && patch<kWide>().has(p, i);
            case kOfImages:
                return of_images().has(p, i);
            default:
                return run().has(p, i);
        }
    }

  private:
    template <int kColumns>
    HIPCONV_INLINE PixelPatch<kColumns> patch() const {
        return {tile.image, tile.row, tile.column, first};
    }
    HIPCONV_INLINE PixelsOfImages of_images() const { return {tile.first_pixel + first}; }
    HIPCONV_INLINE PixelRun run() const { return {tile.image, tile.first_pixel + first}; }
};

// The channels and the tap of a k-block, from its number. The taps of the same 64 channels follow each other.
struct KBlock {
    int channel_block, tap, row, column;

    HIPCONV_INLINE KBlock(const WarpgroupGemmParams& p, int number) : channel_block(number), tap(0), row(0), column(0) {
        if (p.patches || number == 0) return;
        channel_block = static_cast<int>(divide(number, p.divide_by_taps));
        tap = number - channel_block * p.gemm.taps;
        row = static_cast<int>(divide(tap, p.divide_by_taps_across));
        column = tap - row * p.gemm.conv.kernel_width;
    }
    HIPCONV_INLINE void advance(const WarpgroupGemmParams& p) {
        if (p.patches || ++tap == p.gemm.taps) {
            tap = row = column = 0;
            ++channel_block;
        } else if (++column == p.gemm.conv.kernel_width) {
            column = 0;
            ++row;
        }
    }
};

}  // namespace hipconv
