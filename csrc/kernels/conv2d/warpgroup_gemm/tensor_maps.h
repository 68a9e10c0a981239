// This makes the tensor maps of x, of the filters and of out, and says whether TMA or lanes store out's boxes.
#pragma once

#include "epilogue.h"
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
        t.box[0] = t.box[1] = kTileRowBytes / element, t.box[2] = 1;
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
    t.pixels_per_column = g.shared == Shared::x ? tile_m / 2 : tile_m;
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

// Tells whether lanes may store boxes of pixels, where TMA cannot: of images whose pixels are dense.
inline bool lanes_store(const Conv2dParams& p, const GemmLayout& l, const WarpgroupGemmParams& g) {
    return p.out_dtype == p.dtype && !p.residual.data && !g.gemm.along_filters && !g.patches && g.patch_columns != kOfImages &&
           p.out.column_stride == 1 && l.image_pixels > 1;
}

// The distance of neighbouring pixels of out, of which an axis of one element says nothing.
inline int64_t pixel_stride_of_out(const Conv2dParams& p) {
    return p.out_width > 1 ? p.out.column_stride : p.out_height > 1 ? p.out.row_stride : p.out.batch_stride;
}

// Tells whether TMA can store out: what lies along filters, or along pixels, is dense, and everything else begins at multiples
// of 16 bytes. Runs of pixels are at one distance; along filters they go on from image to image.
inline bool tma_stores(const Conv2dParams& p, const GemmLayout& l, const WarpgroupGemmParams& g) {
    const bool along_filters = g.gemm.along_filters;
    const Image& out = p.out;
    if (p.out_dtype != p.dtype || p.residual.data || reinterpret_cast<uintptr_t>(out.data) % 16 != 0) return false;
    const auto fits = [&](int64_t stride, int64_t size) {  // as the stride of an axis of a tensor map
        const int64_t bytes = bytes_of_stride(stride, size, l.element);
        return bytes > 0 && bytes < int64_t{1} << 40 && bytes % 16 == 0;
    };
    if (!fits(out.batch_stride, p.batch) || !fits(l.group_filters * out.channel_stride, p.groups)) return false;
    if (along_filters) {
        if (out.channel_stride != 1 || g.patch_columns == kOfImages) return false;
        if (!fits(out.column_stride, p.out_width) || !fits(out.row_stride, p.out_height)) return false;
    } else {
        if (out.column_stride != 1 || g.patch_columns == kNarrow || !fits(out.channel_stride, l.group_filters)) return false;
        if (g.patches) return fits(out.row_stride, p.out_height);
        // A run's first pixel in an image, which is a multiple of 64 but for the images before.
        if (g.patch_columns != kOfImages && p.batch > 1 && l.image_pixels * l.element % 16 != 0) return false;
    }
    if (g.patches) return true;
    const int64_t pixel = pixel_stride_of_out(p);
    return (along_filters || pixel == 1) && (p.out_width == 1 || p.out_height == 1 || out.row_stride == p.out_width * pixel) &&
           (!along_filters || l.image_pixels == 1 || p.batch == 1 || out.batch_stride == l.image_pixels * pixel);
}

// A box is 128 bytes of a group's filters by 16 pixels, or 128 bytes of pixels by 32 filters.
inline TensorMapSpec spec_of_out(const Conv2dParams& p, const GemmLayout& l, const WarpgroupGemmParams& g) {
    TensorMapSpec t{};
    t.dtype = p.out_dtype;
    t.is_stored = true;
    t.data = p.out.data;
    const auto axis = [&](int64_t size, int64_t stride, int box) {
        t.sizes[t.rank] = size;
        t.strides[t.rank] = t.rank ? bytes_of_stride(stride, size, l.element) : l.element;
        t.box[t.rank++] = box;
    };
    const int row = static_cast<int>(l.row_channels);  // elements of 128 bytes
    if (!g.gemm.along_filters) {
        if (g.patches) {
            axis(p.out_width, 1, row);
            axis(p.out_height, p.out.row_stride, 1);
        } else {
            axis(l.image_pixels, 1, row);
            axis(1, 0, 1);
        }
        axis(l.group_filters, p.out.channel_stride, WarpgroupEpilogue::kFilters);
        axis(p.groups, l.group_filters * p.out.channel_stride, 1);
        axis(p.batch, p.out.batch_stride, 1);
        return t;
    }
    axis(l.group_filters, 1, row);
    axis(p.groups, l.group_filters, 1);
    if (!g.patches) {
        axis(l.image_pixels * p.batch, pixel_stride_of_out(p), WarpgroupEpilogue::kPixels);
        return t;
    }
    const int columns = g.patch_columns < WarpgroupEpilogue::kPixels ? g.patch_columns : WarpgroupEpilogue::kPixels;
    axis(p.out_width, p.out.column_stride, columns);
    axis(p.out_height, p.out.row_stride, WarpgroupEpilogue::kPixels / columns);
    axis(p.batch, p.out.batch_stride, 1);
    return t;
}

}  // namespace hipconv
