// The algorithm `pointwise`: what its launcher hands to its kernels.
#pragma once

#include "../gemm/run_atom.h"

namespace hipconv {

constexpr int kPointwiseMostChannels = 256;
constexpr int kPointwiseLds = kCopiesPastRegisters ? 72 * 1024 : 32 * 1024;  // bytes, at most

// Blocks of a compute unit, by the registers that so many pieces of channels take, and by LDS (AMD).
HIPCONV_INLINE constexpr int pointwise_blocks(int pieces) { return kCopiesPastRegisters && pieces == 1 ? 3 : 2; }

struct PointwiseParams {
    Conv2dParams conv;
    int32_t pixels;                 // of all images
    int32_t tiles;                  // of kRunPixels
    int32_t chunks;                 // of 8 channels
    int32_t filter_groups;          // of kRunFilters
    bool by_vectors;                // whether x and filters are read by 16 bytes, else by 4
    bool vector_stores;             // whether eight filters of out, and of the residual, are aligned; else they are in pairs
    bool x_is_dense, out_is_dense;  // pixels of all images are at one distance
    Divisor divide_by_image, divide_by_row;
};

// Bytes of LDS: all filters, and their bias.
inline int64_t pointwise_lds(int64_t filter_groups, int64_t pieces) {
    return filter_groups * kRunFilters * (pieces * kRunPiece * 2 + 4);
}

constexpr int kPointwiseMostPiecesByWords = 2;

// Launches the instance of so many pieces of channels: 1, 2, 3, 4 or 8.
void launch_pointwise(const PointwiseParams& params, int pieces, unsigned blocks, int lds_bytes, void* stream);

}  // namespace hipconv
