// This makes the tensor maps of x and of the filters.
#pragma once

#include "x_source.h"

namespace hipconv {

inline TensorMapSpec spec_of_x(const Conv2dParams& p, const WarpgroupGemmParams& g, int tile_m, int parts) {
    TensorMapSpec t{};
    t.dtype = p.dtype;
    t.data = p.x.data;
    t.rank = 4;
    const int64_t sizes[] = {int64_t{p.in_channels} * parts, p.in_width, p.in_height, p.batch};
    const int64_t strides[] = {1, p.x.column_stride, p.x.row_stride, p.x.batch_stride};
    const int element = element_bytes(p.dtype);
    if (g.patch_columns == kOfImages) {
        t.rank = 3;
        t.sizes[0] = int64_t{p.in_height} * p.in_width, t.sizes[1] = p.in_channels, t.sizes[2] = p.batch;
        t.strides[0] = element, t.strides[1] = bytes_of_stride(p.x.channel_stride, p.in_channels, element),
        t.strides[2] = bytes_of_stride(p.x.batch_stride, p.batch, element);
        t.box[0] = kWarpgroupPixels, t.box[1] = kTileRowBytes / element, t.box[2] = 1;
        return t;
    }
    const int columns = g.patches ? g.patch_columns : kNarrow;
    const int box[] = {kTileRowBytes / element, columns + kPatchTaps - 1, tile_m / columns + kPatchTaps - 1, 1};
    for (int axis = 0; axis < 4; ++axis) {
        t.sizes[axis] = sizes[axis];
        t.strides[axis] = axis ? bytes_of_stride(strides[axis], sizes[axis], element) : element;
        t.box[axis] = box[axis];
    }
    if (g.patches) return t;
    t.im2col = true;
    t.pixels_per_column = tile_m;
    t.lower_corner[0] = -p.pad_left, t.lower_corner[1] = -p.pad_top;
    t.upper_corner[0] = (p.out_width - 1) * p.stride_w - p.pad_left - (p.in_width - 1);
    t.upper_corner[1] = (p.out_height - 1) * p.stride_h - p.pad_top - (p.in_height - 1);
    t.traversal_stride[0] = p.stride_w, t.traversal_stride[1] = p.stride_h;
    return t;
}

inline TensorMapSpec spec_of_filters(const Conv2dParams& p, const GemmLayout& l, const void* data, int tile_n, int parts) {
    TensorMapSpec t{};
    t.dtype = p.dtype;
    t.data = data;
    t.rank = 3;
    t.sizes[0] = parts * (l.packs ? l.chunks * l.elements : l.group_channels), t.sizes[1] = l.taps, t.sizes[2] = p.out_channels;
    t.strides[0] = l.element, t.strides[1] = l.taps == 1 ? 16 : l.filter_tap,
    t.strides[2] = p.out_channels == 1 ? 16 : l.filter_stride;
    t.box[0] = static_cast<int>(l.row_channels), t.box[1] = 1, t.box[2] = tile_n;
    return t;
}

}  // namespace hipconv
