// This has what the launcher of Winograd's convolution hands to its kernels, and says how planes lie in memory.
//
// The planes of a tile follow each other in memory: V is (tiles, planes, channels), M is (tiles, planes, filters). So V is an
// image of one row whose pixels are tiles, the planes are its groups, and the GEMMs of this family multiply all planes in one
// launch: M is the 1x1 convolution of V with U, (planes, filters, channels).
#pragma once

#include "../gemm/gemm.h"

namespace hipconv {

constexpr int kWinogradThreads = 256;

struct WinogradTiles {
    int32_t first, count;      // of this chunk
    int32_t across, of_image;  // tiles in a row of an image, in an image
    Divisor divide_by_across, divide_by_image;
};

struct WinogradFiltersParams {
    Image weight;
    DType dtype;
    int32_t filters, channels;
    int32_t padded_filters, padded_channels;
    void* planes;        // U
    int32_t* exponents;  // of the power of two that each filter was multiplied by
};

struct WinogradInputParams {
    Image x;
    DType dtype;
    PaddingMode padding_mode;
    int32_t channels, height, width, pad_top, pad_left;
    int32_t padded_channels;
    int32_t log2_lanes;  // of a tile
    bool by_pairs;       // two channels are one aligned word, rows are short, and padding is by zeros
    WinogradTiles tiles;
    void* planes;        // V
    int32_t* exponents;  // of the power of two that each tile was multiplied by
};

struct WinogradOutputParams {
    Conv2dParams conv;
    int32_t padded_filters, pairs, units;  // pairs of filters; of all tiles of the chunk
    Divisor divide_by_pairs;
    bool by_pairs;  // two filters of out, and of the residual, are one aligned vector
    WinogradTiles tiles;
    const void* planes;  // M
    const int32_t *tile_exponents, *filter_exponents;
};

// These launch the kernels, for tiles of `outputs` by `outputs` pixels.
void launch_winograd_filters(const WinogradFiltersParams& params, int outputs, void* stream);
void launch_winograd_input(const WinogradInputParams& params, int outputs, void* stream);
void launch_winograd_output(const WinogradOutputParams& params, int outputs, void* stream);

// The image, row and column of a tile, by its number among all tiles.
struct WinogradTile {
    int32_t image, row, column;
};

HIPCONV_INLINE WinogradTile winograd_tile(const WinogradTiles& t, int32_t number) {
    const int32_t image = static_cast<int32_t>(divide(static_cast<uint32_t>(number), t.divide_by_image));
    const int32_t rest = number - image * t.of_image;
    const int32_t row = static_cast<int32_t>(divide(static_cast<uint32_t>(rest), t.divide_by_across));
    return {image, row, rest - row * t.across};
}

}  // namespace hipconv
