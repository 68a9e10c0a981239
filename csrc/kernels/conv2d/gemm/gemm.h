// conv2d as a product of matrices: rows are output pixels, columns filters, and the inner product runs over channels and taps.
// What the launcher hands to the kernels, and which tiles there are.
//
// The inner product is cut into chunks of 16 bytes of channels, kTileChunks of them a step. Where a tap has whole steps of
// channels, the taps follow each other for each step's channels, so that the same lines of x are read again while they are near;
// else the chunks of all taps stand in one row, tap after tap, and a step may begin within one.
#pragma once

#include "conv2d/conv2d.h"
#include "matrix/mma.h"

namespace hipconv {

// Division of a number below 2^31 by one that is known when the kernel is launched.
struct Divisor {
    uint32_t multiplier, shift;
};

HIPCONV_INLINE uint32_t divide(uint32_t number, Divisor by) {
    return static_cast<uint32_t>(static_cast<uint64_t>(number) * by.multiplier >> by.shift);
}

inline Divisor divisor_of(uint32_t by) {
    uint32_t log2 = 0;
    while ((uint64_t{1} << log2) < by) ++log2;
    return {static_cast<uint32_t>(((uint64_t{1} << (31 + log2)) + by - 1) / by), 31 + log2};
}

// How x is read: by 16-byte vectors of channels; element by element, within 4 GB of a tile's first; element by element wherever
// they are, with any padding, in small tiles; or in patches that serve all taps (conv2d/implicit_gemm/patch_loader.h), in either way.
enum class XForm { vectors, elements, anything, patches };

constexpr int kMaxTapsAcross = 15;  // rows or columns of taps: each has a bit in a word, but in the last form

struct ConvGemmParams {
    Conv2dParams conv;  // with split_k > 1, `out` is the first part's sums

    // The pixels of all images are numbered through, or those of each image for itself: then a tile is of one image.
    bool by_image;
    int32_t pixels;  // that are numbered together
    int32_t tiles_m, tiles_n;  // tiles_m: of them
    Divisor divide_by_image, divide_by_row;      // output pixels of an image, of a row
    Divisor divide_by_tiles_m, divide_by_tiles_n;

    XForm form;
    // x, in bytes.
    uint32_t x_image, x_row, x_column;  // from an image, row, column to the next; modulo 2^32, as all offsets in a tile
    uint32_t x_channel, x_chunk;        // from a channel, a chunk of channels
    uint32_t tap_row, tap_column;  // from a tap to the one below, to the right
    int32_t group_channels, group_filters;
    bool lanes_along_pixels;  // of the loads of single elements
    bool by_vectors;          // patches are
    int32_t patches_across;   // an image
    Divisor divide_by_patches;

    // The inner product.
    int32_t chunks;          // of a pixel's channels of a group
    bool taps_inside;        // each tap has whole steps
    int32_t taps, steps;     // steps of the whole product
    int32_t steps_per_part;    // of a block, with split_k > 1
    int32_t next_chunk, next_column, next_row;  // taps outside: from a step to the next, as chunks and taps
    uint32_t next_tap;                          // the same in bytes of x

    // The filters as the steps read them, in bytes.
    const void* filters;
    int64_t filter_stride;
    uint32_t filter_step, filter_wrap;  // from a step to the next; and added after every `taps` steps

    // out
    bool along_filters;   // lanes lie along filters, else along pixels
    bool vector_stores, pair_stores;  // 8 or 2 elements along there are aligned, and so are the residual's
    int64_t part_stride;  // elements, from a part's sums to the next
};

// Patches: a tile has 16 columns of pixels, and its patch a border of one more on each side.
constexpr int kPatchTaps = 3, kPatchColumns = 16, kPatchPitch = kPatchColumns + kPatchTaps - 1;
HIPCONV_INLINE constexpr int patch_rows(int tile_m) { return (tile_m / kPatchColumns + kPatchTaps - 1) * kPatchPitch; }  // of LDS

// A block of threads and its tile. The same in the host and the device pass.
struct GemmShape {
    int tile_m, tile_n, threads, blocks_per_unit, stages;
    bool patches;
};

// 64 pixels by 64 filters a wave of 32 lanes is as much as registers hold, and what
// spares LDS the most; a wave of 64 lanes does the same with half the registers.
template <typename T, int kTileM, int kTileN, XForm kForm>
HIPCONV_INLINE constexpr GemmShape gemm_shape() {
    const bool past_registers = (kForm == XForm::vectors || kForm == XForm::patches) && kCopiesPastRegisters;
    const bool half_block = past_registers && sizeof(T) == 2 && kTileM <= 128;
    const int blocks = kTileM > 128 ? 1 : kTileM * kTileN > 128 * 64 ? 2 : kTileM > 64 ? 2 : 4;
    return {kTileM, kTileN, half_block ? 128 : 256, kCopiesPastRegisters && !half_block ? 1 : blocks, past_registers ? 3 : 1,
            kForm == XForm::patches};
}

// Waves that share the pixels of a tile; the others share its filters.
HIPCONV_INLINE constexpr int waves_along_pixels(int tile_m, int tile_n, int waves) {
    int along = waves;
    while (along > 1 && (tile_m / along < 32 || tile_m / along < tile_n / (waves / along))) along /= 2;
    return along;
}

constexpr int kEpiloguePixels = 32;  // of a wave, that pass through LDS together on their way out

// Bytes of LDS: the operands' tiles, later the finished sums.
HIPCONV_INLINE constexpr int gemm_shared_bytes(GemmShape shape, int wave_size) {
    const int waves = shape.threads / wave_size, along = waves_along_pixels(shape.tile_m, shape.tile_n, waves);
    const int pixel_rows = shape.patches ? 2 * patch_rows(shape.tile_m) : shape.stages * shape.tile_m;
    const int operands = (pixel_rows + shape.stages * shape.tile_n) * kTileRowBytes;
    const int epilogue_tiles = along * kEpiloguePixels * shape.tile_n * 4;
    return operands > epilogue_tiles ? operands : epilogue_tiles;
}

// Whether a unit has a tile. A tile that it does not have compiles to a kernel that does nothing and is never launched.
template <typename T>
HIPCONV_INLINE constexpr bool gemm_tile_is_legal(MatrixUnit unit, int tile_m, int tile_n, XForm form = XForm::vectors) {
    if (form == XForm::patches && unit != MatrixUnit::mma_sync) return false;
    const bool small = tile_m <= 64 && tile_n <= 64;
    if (tile_m > 128) return unit == MatrixUnit::mma_sync && sizeof(T) == 2;
    return sizeof(T) == 4 || unit != MatrixUnit::fma || small;
}

// The files of instances, side by side because they take long to compile. Each has the forms, tiles and types that it is asked
// for.
void launch_gemm_vectors(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);   // 16 bits
void launch_gemm_elements(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);  // 16 bits, and anything
void launch_gemm_patches(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);   // 16 bits
void launch_gemm_f32(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);       // but patches

}  // namespace hipconv
