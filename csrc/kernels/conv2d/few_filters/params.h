// The algorithm `few_filters`: what its launcher hands to its kernels.
#pragma once

#include "../gemm/run_atom.h"

namespace hipconv {

constexpr int kFewMostColumns = 64;                                            // filters times taps
constexpr int kFewFiltersLds = kCopiesPastRegisters ? 104 * 1024 : 32 * 1024;  // bytes, at most
constexpr int kFewFiltersBlocks = 2;                                           // of a compute unit

// x is read by 16 bytes of channels, or by elements: one by one or, of contiguous images, by two pixels of a channel.
enum class FewReads : int32_t { vectors, pairs, elements };

struct FewFiltersParams {
    Conv2dParams conv;
    FewReads reads;
    int32_t taps, columns;                             // columns: filters times taps
    int32_t passes;                                    // over the channels
    int32_t tile_rows, tile_columns;                   // of outputs
    int32_t patch_columns, patch_pixels, patch_begin;  // begin: columns in front of what outputs see, for an even one
    int32_t pitch;  // floats from a column's sums to the next one's: 1 more than a multiple of 4
    int32_t across, down, tiles;
    Divisor divide_by_patch_columns, divide_by_across, divide_by_down, divide_by_tile_columns, divide_by_taps, divide_by_width;
};

// Bytes of LDS: the filters, and the sums of a patch.
inline int64_t few_filters_lds(int64_t groups, int64_t channels, int64_t columns, int64_t pitch) {
    return groups * kRunFilters * channels * 2 + columns * pitch * 4;
}

// Launches the instance of so many groups of 32 columns, 1 or 2, and so many pieces of 32 channels in a pass, 1, 2 or,
// with one group, 4.
void launch_few_filters(const FewFiltersParams& params, int groups, int pieces, unsigned blocks, int lds_bytes, void* stream);

}  // namespace hipconv
