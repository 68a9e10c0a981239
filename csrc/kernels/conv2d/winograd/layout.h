// The sizes of a call's planes and chunks, its workspace, and the convolution that the GEMM gets of each chunk.
#pragma once

#include "../gemm/layout.h"
#include "params.h"

namespace hipconv {

constexpr int64_t kWorkspaceByDefault = int64_t{256} << 20;  // for plans that have no limit

struct WinogradLayout {
    int64_t planes, channels, filters;                      // with those that fill up the GEMM's vectors and steps
    int64_t across, of_image, tiles;                        // tiles in a row, in an image, in all
    int64_t filter_bytes;                                   // of U, with its exponents
    int64_t chunk, chunks;                                  // tiles of a chunk, and how many of those there are
    int64_t inputs_bytes, products_bytes, exponents_bytes;  // of a chunk
    int64_t workspace;

    WinogradLayout(const Conv2dParams& p, int outputs, int64_t limit) {
        planes = int64_t{outputs + 2} * (outputs + 2);
        channels = round_up(p.in_channels, 64), filters = round_up(p.out_channels, 8);
        across = ceil_of(p.out_width, outputs), of_image = across * ceil_of(p.out_height, outputs), tiles = of_image * p.batch;
        filter_bytes = planes_of_filters_bytes() + round_up(filters * 4, 256);
        const int64_t of_tile = planes * (channels + filters) * 2 + 4, own = p.packed_filters ? 0 : filter_bytes;
        const int64_t left = (limit > 0 ? limit : kWorkspaceByDefault) - own - 3 * 256;
        int64_t most = left / of_tile < 1 ? 1 : left / of_tile;
        const int64_t reach = (kLimit32 - 1) / (planes * 2 * (channels > filters ? channels : filters));  // of the GEMM
        if (most > reach) most = reach;
        if (most > tiles) most = tiles;
        chunks = ceil_of(tiles, most);
        chunk = ceil_of(tiles, chunks);
        if (round_up(chunk, 256) <= most) chunk = round_up(chunk, 256);  // whole tiles of the GEMM
        chunks = ceil_of(tiles, chunk);
        inputs_bytes = round_up(chunk * planes * channels * 2, 256);
        products_bytes = round_up(chunk * planes * filters * 2, 256);
        exponents_bytes = round_up(chunk * 4, 256);
        workspace = own + inputs_bytes + products_bytes + exponents_bytes;
    }

    int64_t planes_of_filters_bytes() const { return round_up(planes * filters * channels * 2, 256); }
};

// The 1x1 convolution of a chunk's planes.
inline Conv2dParams convolution_of_planes(const WinogradLayout& l, int64_t tiles, const void* inputs, const void* filters,
                                          void* products) {
    Conv2dParams c{};
    c.batch = 1, c.groups = static_cast<int32_t>(l.planes);
    c.in_channels = static_cast<int32_t>(l.planes * l.channels), c.out_channels = static_cast<int32_t>(l.planes * l.filters);
    c.in_height = c.out_height = 1;
    c.in_width = c.out_width = static_cast<int32_t>(tiles);
    c.kernel_height = c.kernel_width = c.stride_h = c.stride_w = c.dilation_h = c.dilation_w = 1;
    c.dtype = c.out_dtype = DType::f16;
    c.x = {const_cast<void*>(inputs), tiles * c.in_channels, 1, tiles * c.in_channels, c.in_channels};
    c.weight = {const_cast<void*>(filters), l.channels, 1, l.channels, l.channels};
    c.out = {products, tiles * c.out_channels, 1, tiles * c.out_channels, c.out_channels};
    return c;
}

}  // namespace hipconv
