// This says how x reaches LDS in a call, by TMA or gathered by waves, and whether its tiles are patches.
#pragma once

#include "../gemm/layout.h"
#include "params.h"

namespace hipconv {

// Tells whether the fields of an im2col tensor map are wide enough for the call.
inline bool fits_im2col(const Conv2dParams& p) {
    const auto fits = [](int64_t first, int64_t last, int64_t taps, int64_t dilation, int64_t step) {
        return first >= -128 && last >= -128 && last <= 127 && (taps - 1) * dilation <= 255 && step <= 8;
    };
    const int64_t bottom = int64_t{p.out_height - 1} * p.stride_h - p.pad_top - (p.in_height - 1);
    const int64_t right = int64_t{p.out_width - 1} * p.stride_w - p.pad_left - (p.in_width - 1);
    return fits(-int64_t{p.pad_top}, bottom, p.kernel_height, p.dilation_h, p.stride_h) &&
           fits(-int64_t{p.pad_left}, right, p.kernel_width, p.dilation_w, p.stride_w);
}

// The stride of an axis in bytes. An axis of one element may have any aligned stride.
inline int64_t bytes_of_stride(int64_t stride, int64_t size, int64_t element) { return size == 1 ? 16 : stride * element; }

inline bool fits_tma(const Conv2dParams& p, const GemmLayout& l, int tile_m) {
    if (!l.vectors || (p.groups > 1 && l.group_channels % l.row_channels != 0)) return false;
    for (const auto& [stride, size] :
         {std::pair{p.x.column_stride, p.in_width}, {p.x.row_stride, p.in_height}, {p.x.batch_stride, p.batch}})
        if (const int64_t bytes = bytes_of_stride(stride, size, l.element); bytes <= 0 || bytes >= int64_t{1} << 40)
            return false;
    return patches_serve(p, l, tile_m, kNarrow) || fits_im2col(p);
}

// Tells whether each eight consecutive pixels of a row of x, or each 16 bytes of a whole image, are an aligned vector in every
// channel.
inline bool has_vectors_of_pixels(const Conv2dParams& p) {
    return (p.x.column_stride == 1 || p.in_width == 1) && p.in_width % 8 == 0 && is_aligned(p.x.data) &&
           multiple_of(p.x.channel_stride, p.in_channels, 8) && multiple_of(p.x.row_stride, p.in_height, 8) &&
           multiple_of(p.x.batch_stride, p.batch, 8);
}
inline bool has_whole_images(const Conv2dParams& p, const GemmLayout& l) {
    const bool is_1x1 = l.taps == 1 && p.stride_h == 1 && p.stride_w == 1 && p.pad_top == 0 && p.pad_left == 0 &&
                        p.out_height == p.in_height && p.out_width == p.in_width;
    return is_1x1 && (p.x.column_stride == 1 || p.in_width == 1) && (p.x.row_stride == p.in_width || p.in_height == 1) &&
           l.image_pixels % l.elements == 0 && is_aligned(p.x.data) &&
           multiple_of(p.x.channel_stride, p.in_channels, l.elements) && multiple_of(p.x.batch_stride, p.batch, l.elements);
}

// This says how x reaches LDS, if it can at all, and the columns of a tile's patch, kOfImages or 0.
struct XSource {
    bool serves, by_tma;
    int columns;
    bool has_patches() const { return columns > kOfImages; }
};

inline XSource x_source_of(const Conv2dParams& p, const GemmLayout& l, int tile_m) {
    if (fits_tma(p, l, tile_m)) {
        if (!patches_serve(p, l, tile_m, kNarrow)) return {true, true, 0};
        // Eight columns of a channel would be half a sector of memory.
        const bool along_rows = p.out.column_stride == 1 && p.out_channels > 1 && p.out.channel_stride != 1 && l.element == 2;
        return {true, true, along_rows && patches_serve(p, l, tile_m, kWide) ? kWide : kNarrow};
    }
    const bool gathers = p.dtype != DType::f32;  // waves do so with 16-bit types
    if (gathers && patches_serve(p, l, tile_m, kWide) && has_vectors_of_pixels(p)) return {true, false, kWide};
    if (!has_whole_images(p, l)) return {};
    if (p.groups == 1 || l.group_channels % l.row_channels == 0) return {true, true, kOfImages};
    return {gathers, false, 0};
}

}  // namespace hipconv
