// conv2d as a product of matrices by warpgroups (warpgroup_mma.h): the same product as conv2d/gemm/gemm.h, in larger tiles and
// with other roles of the waves. What the launcher hands to the kernels, and which tiles there are.
//
// Two warpgroups multiply, or one where a tile has 64 pixels. The operands come to two rings in LDS by the copy engine; x whose
// channels are not dense comes by other waves, in vectors of eight pixels of a channel, which they channel_block into vectors of channels on
// the way. A k_block of x's ring holds a channel_block, 64 channels, of a tile's pixels: for one tap, or for all nine of 3x3 taps of stride
// 1, of the rectangle that they see.
#pragma once

#include "../gemm/gemm.h"
#include "matrix/tma.h"
#include "split_k.h"

namespace hipconv {

struct WarpgroupGemmParams {
    ConvGemmParams gemm;
    bool patches;                        // a k_block is for all taps
    int32_t patch_columns, patch_pitch;  // of a tile's pixels; of x in LDS
    int32_t taps_per_k_block;
    int32_t rows_of_64, group_bytes;  // of LDS: from 64 pixels to the next; from eight of them to the next
    int32_t k_blocks;             // of a tile
    int32_t k_blocks_per_part;      // of them, with split_k > 1
    int32_t tiles, tiles_per_part;  // in all; of each part
    int32_t tile_n;
    SplitK split;
    TensorMap x, filters;
};

// Patches: a tile has 8 or 64 columns of pixels, so that the pixels of a product are groups of eight rows of LDS after one another,
// at one distance, for every tap. With 8 the patch is smaller; with 64 it is of long rows of x.
constexpr int kNarrow = 8, kWide = 64;
HIPCONV_INLINE constexpr int patch_rows(int tile_m, int columns) {  // of LDS
    return (tile_m / columns + kPatchTaps - 1) * (columns + kPatchTaps - 1);
}

constexpr int kMaxStages = 8;

// A block and its LDS: the rings, the waves' epilogue_tiles on the way out, barriers. The same in the host and the device pass.
struct WarpgroupShape {
    int tile_m, tile_n;
    bool by_tma;
    int blocks_per_unit, producers;
    int producer_registers, consumer_registers;  // of a thread: what the ones do not need, the others get; or 0
    static constexpr int kEpilogueFilters = 32, kEpiloguePixels = 16;
    // Of a wave, with the bias.
    static HIPCONV_INLINE constexpr int epilogue_floats(int tile_n) { return kEpiloguePixels * kEpilogueFilters + tile_n; }
    static constexpr int kBarrierBytes = 4 * kMaxStages * 8;

    HIPCONV_INLINE constexpr int consumers() const { return tile_m == 64 ? 128 : 256; }
    HIPCONV_INLINE constexpr int threads() const { return consumers() + producers; }
    HIPCONV_INLINE constexpr int filter_bytes() const { return tile_n * kTileRowBytes; }
    HIPCONV_INLINE constexpr int run_bytes() const { return tile_m * kTileRowBytes; }
    HIPCONV_INLINE constexpr int patch_rows() const { return hipconv::patch_rows(tile_m, by_tma ? kNarrow : kWide); }
    HIPCONV_INLINE constexpr int patch_bytes() const { return (patch_rows() * kTileRowBytes + 1023) / 1024 * 1024; }
    HIPCONV_INLINE constexpr int epilogue_bytes() const { return consumers() / 32 * epilogue_floats(tile_n) * 4; }
    // Of 228 KB of LDS, less 1 KB that the system takes of each block.
    static constexpr int kMaxSharedBytes = 228 * 1024;
    HIPCONV_INLINE constexpr int ring_bytes() const {
        return kMaxSharedBytes / blocks_per_unit - 1024 - epilogue_bytes() - kBarrierBytes;
    }
    HIPCONV_INLINE constexpr int stages(bool patches) const {  // of the filters, and of x but for patches
        const int stages = patches ? (ring_bytes() - 2 * patch_bytes()) / filter_bytes()
                                   : ring_bytes() / (run_bytes() + filter_bytes());
        return stages < kMaxStages ? stages : kMaxStages;
    }
    HIPCONV_INLINE constexpr int x_bytes(bool patches) const { return patches ? 2 * patch_bytes() : stages(false) * run_bytes(); }
    HIPCONV_INLINE constexpr int rings_bytes(bool patches) const { return x_bytes(patches) + stages(patches) * filter_bytes(); }
    HIPCONV_INLINE constexpr int epilogue_offset() const {
        return rings_bytes(true) > rings_bytes(false) ? rings_bytes(true) : rings_bytes(false);
    }
    HIPCONV_INLINE constexpr int barriers_at() const { return epilogue_offset() + epilogue_bytes(); }
    HIPCONV_INLINE constexpr int shared_bytes() const { return barriers_at() + kBarrierBytes; }
};

HIPCONV_INLINE constexpr WarpgroupShape warpgroup_shape(int tile_m, int tile_n, bool by_tma) {
    if (tile_m == 64) return {tile_m, tile_n, by_tma, 2, 128, 0, 0};
    if (by_tma && tile_m * tile_n <= 128 * 64) return {tile_m, tile_n, by_tma, 2, 128, 32, 104};
    if (by_tma) return {tile_m, tile_n, by_tma, 1, 128, 40, 232};
    return {tile_m, tile_n, by_tma, 1, 256, 88, 168};
}

// The other file of instances: x comes by waves.
void launch_warpgroup_gemm_gathered(const WarpgroupGemmParams& params, Conv2dTile tile, int units, void* stream);

}  // namespace hipconv
