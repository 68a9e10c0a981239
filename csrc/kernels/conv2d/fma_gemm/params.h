// The algorithm `fma_gemm`: what its launcher hands to its kernels.
#pragma once

#include "../gemm/gemm.h"

namespace hipconv {

// A tile of sums, and how a block makes it: in each turn it brings kParts times kProducts products to LDS, of which each of its
// kParts groups of threads multiplies its own. A thread has kPixels by kFilters sums.
template <int kTilePixels_, int kTileFilters_, int kPixels_, int kFilters_, int kParts_, int kProducts_>
struct FmaShape {
    static constexpr int kTilePixels = kTilePixels_, kTileFilters = kTileFilters_, kPixels = kPixels_, kFilters = kFilters_;
    static constexpr int kParts = kParts_, kProducts = kProducts_;
    static constexpr int kAcross = kTilePixels / kPixels, kDown = kTileFilters / kFilters;  // threads of a group
    static constexpr int kGroup = kAcross * kDown, kThreads = kGroup * kParts;
    static constexpr int kTurn = kParts * kProducts;       // products
    static constexpr int kStages = kParts > 1 ? 1 : 2;     // in LDS
    static constexpr int kPixelPitch = kTilePixels + 4;    // floats of a product's pixels
    static constexpr int kFilterPitch = kTileFilters + 4;  // and of its filters
    static constexpr int kStage = kTurn * (kPixelPitch + kFilterPitch);
    // A compute unit has so many: there is room for them in registers, and in the LDS of AMD cards.
    static constexpr int kBlocks = kParts > 1 ? 2 : kTilePixels > 128 ? 3 : 4;
};

using FmaWide = FmaShape<128, 64, 8, 8, 1, 8>;
using FmaNarrow = FmaShape<256, 32, 8, 8, 1, 8>;
using FmaNarrowest = FmaShape<256, 16, 8, 4, 1, 8>;
using FmaSmall = FmaShape<64, 32, 4, 4, 1, 16>;
using FmaShared = FmaShape<16, 32, 4, 4, 8, 16>;  // its sums are shared

constexpr Conv2dTile kFmaTiles[] = {{128, 64}, {256, 32}, {256, 16}, {64, 32}, {16, 32}};

struct FmaGemmParams {
    Conv2dParams conv;                    // in_channels: those of a group
    int32_t pixels;                       // of all images
    int32_t products;                     // of an output
    int32_t group_filters, group_blocks;  // filters of a group, and blocks of the same pixels for them
    int32_t filter_blocks;                // of all groups
    int64_t group_distance;               // elements of x, from a group to the next
    bool channels_inside;                 // of the products, the channels of a tap follow each other; else a channel's taps
    bool by_vectors;                      // four channels of x are read at once; they follow each other then
    bool pads;                            // a tap may lie outside the image
    bool along_filters;                   // in out, filters are denser than pixels
    bool vector_stores;                   // four along these are neighbours and aligned, in out and in the residual
    Divisor divide_by_image, divide_by_row, divide_by_filter_blocks, divide_by_group_blocks, divide_by_inner,
        divide_by_taps_across;
};

void launch_fma_gemm(const FmaGemmParams& params, Conv2dTile tile, unsigned blocks, void* stream);

}  // namespace hipconv
