// conv2d as a product of matrices by warpgroups (wgmma): the same product as conv2d/gemm/gemm.h, in larger tiles and by
// specialised waves. f32 is rounded to TF32, or comes as two parts of it, which follow each other in a stage. This file has
// what the launcher hands to the kernels, and the shape of a block.
//
// Consumers multiply: two warpgroups, or one where a tile has 64 pixels. A tile of 256 pixels is two of 128 that they make in
// turns, so that the products of one go on while the other stores its sums. Producers fill two rings of stages in LDS, one of x
// and one of filters. TMA loads both. Where channels of x are not dense but pixels are, 1x1 taps multiply planes, stages whose
// rows are pixels of a channel, and for 3x3 taps producer waves gather x, in vectors of eight pixels of a channel, which they
// transpose into vectors of channels on the way.
//
// The inner product (K) is cut into k-blocks. A k-block is what a stage of x's ring holds: 64 channels of a tile's pixels,
// either for one tap, or as a patch: the rectangle of pixels with its halo, which serves all nine taps of a 3x3 filter of
// stride 1.
#pragma once

#include "../gemm/warpgroup_epilogue.h"
#include "matrix/tma.h"
#include "split_k.h"

namespace hipconv {

// A tile's sums leave as boxes in LDS, along filters or pixels, or none: as they lie in registers, or piece by piece.
enum class BoxesOf { none, filters, pixels };

// Tells whether tiles have an instance that stores such boxes. Larger ones of 16 bits are no faster by boxes of pixels.
HIPCONV_INLINE constexpr bool has_boxes(BoxesOf boxes, int tile_m, int tile_n, int element_bytes, bool by_tma, bool planes) {
    if (boxes == BoxesOf::filters) return by_tma && !planes;
    return boxes == BoxesOf::none || element_bytes == 4 || tile_m * tile_n <= 128 * 64;
}

// The products of planes of TF32 that are under way while a warpgroup prepares the next: each keeps registers of its own.
HIPCONV_INLINE constexpr int steps_under_way(int sums, BoxesOf boxes) {
    return boxes != BoxesOf::none ? 2 : sums == 128 * 64 ? 0 : 1;
}

// Two blocks, as a cluster, may make tiles that are beside each other along pixels, and share their filters, or along filters,
// and share x. Each loads half of what is shared, for both.
enum class Shared { nothing, filters, x };

struct WarpgroupGemmParams {
    ConvGemmParams gemm;  // tiles_n: where x is shared, those of two
    Shared shared;
    bool patches;                        // a k-block serves all taps
    bool is_alone;                       // a block has all of an SM's LDS
    int32_t stages;                      // of the filters' ring
    int32_t patch_columns, patch_pitch;  // columns of a tile's pixels, or kOfImages; of x in LDS, with the halo
    int32_t taps_per_k_block;
    Divisor divide_by_taps, divide_by_taps_across;
    int32_t rows_of_64, group_bytes;  // rows of LDS from 64 pixels to the next 64; bytes from eight of them to the next
    int32_t k_blocks;                 // of a tile
    int32_t k_blocks_per_part;        // fewer with split_k > 1
    int32_t tiles, tiles_per_part;    // of all parts; of each part
    int32_t tile_n;
    SplitK split;
    BoxesOf boxes;        // from which out is stored
    bool boxes_by_lanes;  // and not by TMA
    TensorMap x, filters, out;
};

// A tile in patches has 8 or 64 columns of pixels. Then, for every tap, the pixels of a product are groups of eight consecutive
// rows of LDS at one distance. 8 columns have the smaller halo; 64 columns read long rows of x, or write long rows of out.
constexpr int kNarrow = 8, kWide = 64;
// The rows that so many pixels of a patch are: a division would take as long as a dozen other instructions.
HIPCONV_INLINE constexpr int rows_of_patch(uint32_t pixels, int columns) {
    return static_cast<int>(columns == kNarrow ? pixels / kNarrow : pixels / kWide);
}
constexpr int kOfImages = 1;  // no patch: pieces of 64 pixels of an image, of x whose pixels are dense
HIPCONV_INLINE constexpr int patch_rows(int tile_m, int columns) {  // rows of LDS
    return (tile_m / columns + kPatchTaps - 1) * (columns + kPatchTaps - 1);
}

constexpr int kMaxStages = 12;

// Tiles of 256 pixels are made in turns of a warpgroup each.
HIPCONV_INLINE constexpr bool has_turns(int tile_m) { return tile_m == 256; }
HIPCONV_INLINE constexpr int pixels_of_turn(int tile_m) { return has_turns(tile_m) ? tile_m / 2 : tile_m; }

// Boxes of x, and of filters, of a stage.
template <typename T>
inline constexpr int kParts = kIsSplit<T> ? 2 : 1;

// A block and its LDS: an epilogue tile for each consumer wave, the barriers, and the rings. Of the shapes of which an SM has
// two blocks, the rings are longer where the launch has a block for each SM, or less ("alone"): such blocks wait for memory,
// and what is under way hides that. Host and device compute the same.
struct WarpgroupShape {
    int tile_m, tile_n;
    bool by_tma;
    int blocks_per_unit, producers;
    int producer_registers, consumer_registers;  // of a thread, after producers gave theirs to consumers; 0: not changed
    int parts;                                   // kParts
    // Those of the rings, two of clusters, and of each warpgroup's boxes and turns.
    static constexpr int kOfCluster = 4 * kMaxStages, kOfBoxes = kOfCluster + 2, kOfTurns = kOfBoxes + 2;
    static constexpr int kBarriers = kOfTurns + 2, kBarrierBytes = (kBarriers + 1) / 2 * 16;

    HIPCONV_INLINE constexpr int consumers() const { return tile_m == 64 ? 128 : 256; }
    HIPCONV_INLINE constexpr int threads() const { return consumers() + producers; }
    HIPCONV_INLINE constexpr int filter_bytes() const { return parts * tile_n * kTileRowBytes; }
    HIPCONV_INLINE constexpr int run_bytes() const { return parts * tile_m * kTileRowBytes; }
    HIPCONV_INLINE constexpr int patch_bytes(int columns) const {
        return parts * ((patch_rows(tile_m, columns) * kTileRowBytes + 1023) / 1024 * 1024);
    }
    HIPCONV_INLINE constexpr int epilogue_bytes() const { return WarpgroupEpilogue::bytes(consumers() / 32, tile_n); }
    // An SM has 228 KB of LDS, of which the system takes 1 KB for each block.
    static constexpr int kMaxSharedBytes = 228 * 1024;
    HIPCONV_INLINE constexpr int rings_offset() const { return (epilogue_bytes() + kBarrierBytes + 1023) / 1024 * 1024; }
    HIPCONV_INLINE constexpr int shared_bytes(bool is_alone) const {
        return (is_alone ? kMaxSharedBytes : kMaxSharedBytes / blocks_per_unit) - 1024;
    }
    // The stages of the filters' ring; x's has as many, unless it comes in patches of so many columns. Behind the rings are the
    // sums that come from other blocks of a cluster.
    HIPCONV_INLINE constexpr int stages(int columns, bool is_alone, int sums_bytes) const {
        const int bytes = shared_bytes(is_alone) - rings_offset() - sums_bytes;
        const int stages =
            columns ? (bytes - 2 * patch_bytes(columns)) / filter_bytes() : bytes / (run_bytes() + filter_bytes());
        return stages < kMaxStages ? stages : kMaxStages;
    }
};

HIPCONV_INLINE constexpr WarpgroupShape warpgroup_shape(int tile_m, int tile_n, bool by_tma, int parts = 1) {
    if (tile_m == 64) return {tile_m, tile_n, by_tma, 2, 128, 0, 0, parts};
    if (by_tma && parts == 1 && tile_m * tile_n <= 128 * 64) return {tile_m, tile_n, by_tma, 2, 128, 32, 104, parts};
    if (by_tma) return {tile_m, tile_n, by_tma, 1, 128, 40, 232, parts};
    return {tile_m, tile_n, by_tma, 1, 256, 88, 168, parts};
}

// Launches the instance of a tile, for x of a type, which TMA brings or producer waves gather; `kPlanes` multiplies planes of x
// as they lie in memory. Instances are compiled in files of their own.
template <typename T, bool kByTma, bool kPlanes = false>
void launch_warpgroup_gemm(const WarpgroupGemmParams& params, Conv2dTile tile, int units, void* stream);

}  // namespace hipconv
