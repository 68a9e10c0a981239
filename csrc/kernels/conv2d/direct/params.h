// The algorithm `direct`: what its launcher hands to its kernels.
//
// Words: neighbouring groups whose filters fit one wave together are a bundle; with larger groups, each is one. The filters
// of a bundle are cut into strips, of which a wave makes one. The channels of a bundle are read in chunks of 16 bytes;
// where they are few, a chunk has the taps of a row of a filter side by side ("windows"). What LDS cannot hold at once of a
// bundle's channels is read in passes.
#pragma once

#include "../gemm/gemm.h"
#include "matrix/small_mma.h"

namespace hipconv {

constexpr int kDirectThreads = 256;                                     // of a block, at most
constexpr int kAtomPixels = 16, kAtomFilters = 16;                      // of SmallAtom
constexpr int kDirectLds = kCopiesPastRegisters ? 48 << 10 : 32 << 10;  // bytes, at most
constexpr int kChunkElements = 8;
constexpr int kMostStepChunks = 4;

struct DirectParams {
    Conv2dParams conv;
    Words4* filters;  // packed, in the order of packed_place()

    // Bundles and strips.
    int32_t bundles, bundle_channels, bundle_filters, group_channels, group_filters;
    int32_t strip_filters, strips;        // strips: of a bundle
    int32_t block_bundles, block_strips;  // strips: of a block; of one bundle if it has one
    int32_t bundle_blocks;                // blocks for the strips of a bundle
    Divisor divide_by_filter_blocks, divide_by_bundle_blocks, divide_by_strips;
    int32_t filter_blocks;

    // The sum.
    bool vectors, windows;      // how x is read
    int32_t chunks, passes;     // chunks: of a bundle, in a pass
    int32_t taps, taps_across;  // that the chunks do not have side by side
    int32_t entries;            // chunks of a pass over all taps, with padding
    int32_t strip_vectors;      // of a strip's packed filters

    // A block's pixels: rows and columns of so many images.
    int32_t log2_tile;  // of the pixels that its waves have room for
    int32_t tile_images, tile_rows, tile_columns, image_pixels;
    int32_t tiles_down, tiles_across;
    Divisor divide_by_columns, divide_by_image_pixels, divide_by_across, divide_by_down;

    // The patch of x that they need. A pixel has a slot of LDS; columns that are a stride apart are neighbours.
    int32_t patch_rows, patch_columns, patch_pitch, image_slots;  // pitch: slots of a row
    int32_t slot_bytes, slot_chunks;                              // chunks: those that are read, of all the block's bundles
    int32_t row_step, column_step;                                // rows and columns of x from one of the patch to the next
    int32_t column_taps;                                          // of a window; else 1
    int32_t phases, phase_columns;                                // columns of the patch: phases x phase_columns
    int32_t rows_a_pixel, columns_a_pixel, rows_a_tap, columns_a_tap;  // of the patch
    Divisor divide_by_chunks, divide_by_taps_across, divide_by_patch_columns, divide_by_patch_rows, divide_by_phases;
    Divisor divide_by_slot_chunks, divide_by_column_taps, divide_by_strip_vectors, divide_by_pass_vectors,
        divide_by_group_channels, divide_by_group_filters;
    int32_t patch_slots;                                                          // that are read: images x rows x columns
    int32_t pixels_begin, rows_begin, columns_begin, patch_begin, scratch_begin;  // bytes of LDS

    // This says how out is stored.
    int32_t out_image, out_row, out_column;  // strides, within a tile
    bool along_filters;
    int32_t store_each;  // 8, 4 or 1 elements
    bool rounds_early;   // before the sums pass through LDS
};

constexpr int kPartPixels = 64;  // that 32 threads make

// Blocks of a compute unit: as many as have room in LDS (AMD), or registers (NVIDIA).
HIPCONV_INLINE constexpr int direct_blocks_a_unit(int strip_atoms) { return kCopiesPastRegisters && strip_atoms == 1 ? 3 : 2; }

// Atoms of pixels that 32 threads store at once: all that have room where the patch was.
HIPCONV_INLINE constexpr int direct_atoms_stored(int strip_filters) {
    return !kCopiesPastRegisters ? 1 : strip_filters == 16 ? 4 : 2;
}
HIPCONV_INLINE constexpr int direct_scratch_bytes(int strip_filters) {  // of 32 threads
    return direct_atoms_stored(strip_filters) * kAtomPixels * (strip_filters + 4) * 4;
}

struct DirectLaunch {
    unsigned blocks;
    int threads, shared_bytes;
    // For HIPCONV_LAUNCH. Blocks read x and bias before they wait for the kernel before them. So that may then only be the one
    // that packs filters, which does not begin early itself, and writes neither.
    bool early;
};

void launch_direct(const DirectParams& params, DirectLaunch of, void* stream);
void pack_direct_filters(const DirectParams& params, void* stream);

}  // namespace hipconv
