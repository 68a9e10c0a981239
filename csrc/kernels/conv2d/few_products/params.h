// The algorithm `few_products`: what its launcher hands to its kernels.
#pragma once

#include "../gemm/run_atom.h"

namespace hipconv {

constexpr int kMostFewPieces = 6;                                              // of a sum
constexpr int kFewProductsLds = kCopiesPastRegisters ? 72 * 1024 : 32 * 1024;  // bytes, at most

// Blocks of a compute unit, by the registers that so many pieces of products take, and by LDS (AMD).
HIPCONV_INLINE constexpr int few_products_blocks(int pieces, bool along_pixels) {
    return kCopiesPastRegisters && pieces == 1 && !along_pixels ? 3 : 2;
}

struct FewProductsParams {
    Conv2dParams conv;
    int32_t pixels;                          // of all images
    int32_t tiles;                           // of kRunPixels
    int32_t filter_groups;                   // of kRunFilters
    int32_t x_image, x_row, x_column;        // strides, in elements
    int32_t out_image, out_row, out_column;  // if stores are simple
    Divisor divide_by_image, divide_by_row;

    // The order of the products. A run is what a filter sees of a row of x: all channels of its columns where channels lie
    // inside, else the columns of one channel. In pairs, a run begins and ends at an even element of x: the products in front
    // of it and behind it are of a zero.
    bool channels_inside, by_pairs;
    int32_t runs, run_products, run_begin, run_length;  // products: of a run, zeros included; begin: zeros in front
    int32_t column_length, row_length;     // of a column and of a row of x, by what places in a row are counted in: columns, or
                                           // elements where these are read in pairs
    Divisor divide_by_run, divide_inside;  // inside: by channels, or, where these are outside, by rows of taps

    // Along filters: whether eight of out, and of the residual, are aligned; else they are in pairs. Along pixels: whether four
    // from a multiple of four on lie beside each other, aligned.
    bool by_vectors;
    bool simple;  // by vectors, of x's type, without a residual, activated by nothing but a lower bound
};

constexpr int kFewScratchFilters = 16;     // whose sums a wave has in scratch at once
constexpr int kFewPitch = kRunPixels + 1;  // of a filter's sums there, in floats

// Bytes of LDS: all filters, their bias, the words of the kernel's tables, four of each product, and scratch, through which
// waves store what are no vectors along pixels.
inline int64_t few_products_lds(int64_t filter_groups, int64_t pieces, bool scratch) {
    return filter_groups * kRunFilters * (pieces * kRunPiece * 2 + 4) + pieces * kRunPiece * 16 +
           (scratch ? kRunThreads / 32 * kFewScratchFilters * kFewPitch * 4 : 0);
}

// Launches the instance of so many pieces of products, 1, 2, 3 or 6, that stores along filters or along pixels.
void launch_few_products(const FewProductsParams& params, int pieces, bool along_pixels, unsigned blocks, int lds_bytes,
                         void* stream);

}  // namespace hipconv
