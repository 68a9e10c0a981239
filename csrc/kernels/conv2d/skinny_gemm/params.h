// The algorithm `skinny_gemm`: what its launcher hands to its kernels.
#pragma once

#include "../gemm/gemm.h"

namespace hipconv {

constexpr int kSkinnyThreads = 128;      // of a block, at least: a team may have more, and is a block then
constexpr int kSkinnyMostThreads = 256;  // of a team
constexpr int kSkinnyPixels = 64;        // of a call, at most
constexpr int kSkinnyChunk = 4;          // channels: 16 bytes of float32

// The sums of a team: so many pixels by so many filters.
constexpr Conv2dTile kSkinnyTiles[] = {{1, 2}, {4, 4}, {8, 4}};
constexpr int kSkinnyElementPixels = 4;  // of a tile, at most, where operands are read element by element

struct SkinnyGemmParams {
    Conv2dParams conv;      // in_channels: those of a group, and of all taps that are joined to one
    bool by_vectors;        // a chunk of x, and of a filter, is a vector; else they are read element by element
    int32_t pixels;         // of all images
    int32_t chunks;         // of a sum
    int32_t team;           // threads
    int32_t log2_team;      // rounded up
    int32_t log2_teams;     // of a block, which lie along filters
    int32_t group_filters;  // filters of a group
    int32_t group_blocks;   // blocks of the same pixels for them
    int32_t filter_blocks;  // of all groups
    Divisor divide_by_image, divide_by_row, divide_by_filter_blocks, divide_by_group_blocks;
};

void launch_skinny_gemm(const SkinnyGemmParams& params, Conv2dTile tile, unsigned blocks, unsigned threads, void* stream);

}  // namespace hipconv
