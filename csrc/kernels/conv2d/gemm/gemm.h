// conv2d as a product of matrices: rows are output pixels, columns are filters, and the inner product runs over channels and
// taps. This file has what the launcher hands to the kernels, and the tiles that there are.
//
// The inner product is cut into chunks of 16 bytes of channels; kTileChunks of them are a step. Where each tap has whole steps
// of channels, the taps of the same channels follow each other, so that the same lines of x are read again while they are in
// the cache. Else the chunks of all taps stand in one row, tap after tap, and a step may begin within a tap.
#pragma once

#include "conv2d/params.h"
#include "launch/division.h"
#include "matrix/tf32_atoms.h"

namespace hipconv {

// This says how x is read:
//   vectors    16 bytes of channels at once
//   elements   element by element, all within 4 GB of a tile's first
//   anything   element by element, wherever they are, with any padding, in small tiles
//   patches    by either vectors or elements, in patches that serve all taps (conv2d/implicit_gemm/patch_loader.h)
enum class XForm { vectors, elements, anything, patches };

constexpr int kMaxTapsAcross = 15;  // most rows or columns of taps: each has a bit in a word, except in form `anything`

struct ConvGemmParams {
    Conv2dParams conv;  // with split_k > 1, `out` is the first part's sums

    // Pixels are numbered through all images, or within each image; then a tile lies in one image.
    bool by_image;
    int32_t pixels;                          // of all images, or of one
    int32_t tiles_m, tiles_n;                // tiles_m: along these pixels
    Divisor divide_by_image, divide_by_row;  // output pixels of an image, of a row
    Divisor divide_by_tiles_m, divide_by_tiles_n;

    XForm form;
    // Distances in x, in bytes.
    uint32_t x_image, x_row, x_column;  // to the next image, row, column; modulo 2^32, as all offsets in a tile
    uint32_t x_channel, x_chunk;        // to the next channel, to the next chunk of channels
    uint32_t tap_row, tap_column;       // to the tap below, to the tap on the right
    int32_t group_channels, group_filters;
    bool lanes_along_pixels;  // when single elements are loaded
    bool by_vectors;          // patches are read by vectors
    int32_t patches_across;   // of an image
    Divisor divide_by_patches;

    // The inner product.
    int32_t chunks;                             // of a pixel's channels in a group
    bool taps_inside;                           // each tap has whole steps
    int32_t taps, steps;                        // steps of the whole product
    int32_t steps_per_part;                     // of a block, with split_k > 1
    int32_t next_chunk, next_column, next_row;  // without taps_inside: to the next step, as chunks and taps
    uint32_t next_tap;                          // the same in bytes of x

    // The filters as the steps read them; distances in bytes.
    const void* filters;
    int64_t filter_stride;
    uint32_t filter_step, filter_wrap;  // to the next step; added to that after every `taps` steps

    // This says how out is stored.
    bool along_filters;               // lanes lie along filters, else along pixels
    bool vector_stores, pair_stores;  // 8 or 2 elements along there are aligned, in out and the residual
    int64_t part_stride;              // elements, from a part's sums to the next
};

// A tile in patches has 16 columns of pixels, and its patch a halo of one pixel on each side.
constexpr int kPatchTaps = 3, kPatchColumns = 16, kPatchPitch = kPatchColumns + kPatchTaps - 1;
HIPCONV_INLINE constexpr int patch_rows(int tile_m) {  // rows of LDS
    return (tile_m / kPatchColumns + kPatchTaps - 1) * kPatchPitch;
}
// Words of LDS that say where each of these rows lies in x: a few more, as threads load rows that are a round apart.
HIPCONV_INLINE constexpr int patch_offsets(int tile_m) { return (patch_rows(tile_m) + 255) / 256 * 256; }

// A block of threads and its tile. Host and device compute the same.
struct GemmShape {
    int tile_m, tile_n, threads, blocks_per_unit, stages;
    bool patches;
};

// 64 pixels by 64 filters are as many sums as the registers of a wave of 32 lanes hold, and they need the fewest reads of LDS;
// a wave of 64 lanes does the same with half the registers.
template <typename T, int kTileM, int kTileN, XForm kForm>
HIPCONV_INLINE constexpr GemmShape gemm_shape() {
    const bool past_registers = (kForm == XForm::vectors || kForm == XForm::patches) && kCopiesPastRegisters;
    const bool half_block = past_registers && (sizeof(T) == 2 || kIsTf32<T> || kIsSplit<T>) && kTileM <= 128;
    const int blocks = kTileM > 128 ? 1 : kTileM > 64 || kIsSplit<T> ? 2 : 4;
    return {kTileM,
            kTileN,
            half_block ? 128 : 256,
            kCopiesPastRegisters && !half_block ? 1 : blocks,
            past_registers ? 3 : 1,
            kForm == XForm::patches};
}

// The number of waves among which a tile's pixels are divided; the others divide its filters.
HIPCONV_INLINE constexpr int waves_along_pixels(int tile_m, int tile_n, int waves) {
    int along = waves;
    while (along > 1 && (tile_m / along < 32 || tile_m / along < tile_n / (waves / along))) along /= 2;
    return along;
}

constexpr int kEpiloguePixels = 32;  // of a wave's epilogue tile

// The bytes of LDS: they hold the operands' tiles, and later the finished sums.
HIPCONV_INLINE constexpr int gemm_shared_bytes(GemmShape shape, int wave_size) {
    const int waves = shape.threads / wave_size, along = waves_along_pixels(shape.tile_m, shape.tile_n, waves);
    const int pixel_rows = shape.patches ? 2 * patch_rows(shape.tile_m) : shape.stages * shape.tile_m;
    const int operands =
        (pixel_rows + shape.stages * shape.tile_n) * kTileRowBytes + (shape.patches ? patch_offsets(shape.tile_m) * 4 : 0);
    const int epilogue_tiles = along * kEpiloguePixels * shape.tile_n * 4;
    return operands > epilogue_tiles ? operands : epilogue_tiles;
}

// Tells whether a matrix unit has a tile. One that it does not have compiles to an empty kernel, which is never launched.
template <typename T>
HIPCONV_INLINE constexpr bool gemm_tile_is_legal(MatrixUnit unit, int tile_m, int tile_n, XForm form = XForm::vectors) {
    if (kIsSplit<T> && unit != MatrixUnit::mma_sync) return false;
    if (kIsTf32<T> && (!kHasTf32 || (unit != MatrixUnit::mma_sync && unit != MatrixUnit::mfma))) return false;
    if (form == XForm::patches && unit != MatrixUnit::mma_sync) return false;
    const bool small = tile_m <= 64 && tile_n <= 64;
    if (tile_m > 128) return unit == MatrixUnit::mma_sync && sizeof(T) == 2;
    return sizeof(T) == 4 || unit != MatrixUnit::fma || small;
}

// Each launches the instances of one file; the files are compiled side by side, because they take long.
void launch_gemm_vectors(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);   // 16 bits
void launch_gemm_elements(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);  // 16 bits; `anything` too
void launch_gemm_patches(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);   // 16 bits
// f32, all forms but patches: as it is, rounded to TF32, or split into parts of it.
void launch_gemm_f32(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);
void launch_gemm_tf32(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);
void launch_gemm_split_f32(const ConvGemmParams& params, Conv2dTile tile, int split_k, void* stream);

}  // namespace hipconv
