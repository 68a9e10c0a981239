// The epilogue of `direct`: a wave's sums, which began with the bias, pass through its part of LDS, so that lanes lie along what is
// dense in the result; then come residual, activation and one rounding.
#pragma once

#include "../common/padding.h"
#include "../gemm/epilogue.h"
#include "staging.h"

namespace hipconv {

// An output's sum by the formula, without what is not of its own group: a product of a zero that stands between the groups of a
// bundle and an infinity or NaN of another group's channel is NaN, so sums that are NaN are made again.
HIPCONV_INLINE float direct_sum(const Conv2dParams& p, int n, int k, int row, int column) {
    const int32_t group_channels = p.in_channels / p.groups;
    const int64_t first_channel = static_cast<int64_t>(k / (p.out_channels / p.groups)) * group_channels;
    float sum = p.bias ? load_parameter(global_pointer<void>(p.bias), k * p.bias_stride, p.bias_dtype) : 0.0f;
    const auto load = [&](const void* data, int64_t at) {
        const uint16_t bits = global_pointer<const uint16_t>(data)[at];
        return p.dtype == DType::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
    };
#pragma unroll 1
    for (int32_t r = 0; r < p.kernel_height; ++r) {
        const int64_t y = padded_index(static_cast<int64_t>(row) * p.stride_h - p.pad_top + static_cast<int64_t>(r) * p.dilation_h,
                                       p.in_height, p.padding_mode);
        if (y < 0) continue;
#pragma unroll 1
        for (int32_t s = 0; s < p.kernel_width; ++s) {
            const int64_t x =
                padded_index(static_cast<int64_t>(column) * p.stride_w - p.pad_left + static_cast<int64_t>(s) * p.dilation_w,
                             p.in_width, p.padding_mode);
            if (x < 0) continue;
            const int64_t pixel = offset_in(p.x, n, first_channel, y, x), tap = offset_in(p.weight, k, 0, r, s);
#pragma unroll 1
            for (int32_t c = 0; c < group_channels; ++c)
                sum += load(p.x.data, pixel + c * p.x.channel_stride) * load(p.weight.data, tap + c * p.weight.channel_stride);
        }
    }
    return canonical_nan(sum);
}

// A strip of filters that a wave stores: its first one, and how many of them there are.
struct DirectStrip {
    int first, count;
};

HIPCONV_INLINE float residual_of(const Conv2dParams& c, const DirectTile& tile, const DirectPixel& at, int64_t k) {
    return load_parameter(global_pointer<void>(c.residual.data),
                          offset_in(c.residual, tile.image + at.image, k, tile.row + at.row, tile.column + at.column),
                          c.residual_dtype);
}

// Stores eight values, none of which is a NaN that rounding would change.
HIPCONV_INLINE void store_eight_rounded(const float (&v)[8], uint64_t address, DType dtype) {
    Words4 words{};
    if (dtype == DType::f32) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < 4; ++i) set_word(words, i, bit_cast<uint32_t>(v[4 * half + i]));
            *global_pointer<Words4>(address + 16 * half) = words;
        }
        return;
    }
    if (dtype == DType::bf16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) set_word(words, i, pack<bf16>(make_pair(v[2 * i], v[2 * i + 1])));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) set_word(words, i, pack<f16>(make_pair(v[2 * i], v[2 * i + 1])));
    }
    *global_pointer<Words4>(address) = words;
}

// Makes the sums anew that are NaN, of kWaveSize / 2 pixels from number `first` on.
template <int kFilters>
HIPCONV_INLINE void mend_sums(const DirectParams& p, const DirectTile& tile, int first, DirectStrip strip, float* scratch,
                              int lane) {
#pragma unroll 1
    for (int i = lane; i < kWaveSize / 2 * kFilters; i += kWaveSize) {
        const int pixel = i / kFilters, filter = i % kFilters;
        float* const sum = &scratch[pixel * (kFilters + 4) + filter];
        if (*sum == *sum || filter >= strip.count) continue;
        const DirectParams& again = first_parameter_again(p);
        const DirectPixel at = direct_pixel(again, tile, first + pixel);
        if (at.exists)
            *sum = direct_sum(again.conv, tile.image + at.image, strip.first + filter, tile.row + at.row, tile.column + at.column);
    }
}

// Stores kWaveSize / 2 pixels from number `first` on, of which `pixels` tells the places. `out` is the address of the strip's first
// filter at the tile's first pixel.
template <int kFilters>
HIPCONV_INLINE void store_direct(const DirectParams& p, const DirectTile& tile, const TilePixel* pixels, uint64_t out, int first,
                                 DirectStrip strip, const float* scratch, int lane) {
    constexpr int kPixels = kWaveSize / 2, kPitch = kFilters + 4;
    const Conv2dParams& c = p.conv;
    const int bytes = element_bytes(c.out_dtype);
    if (p.vector_stores) {  // eight filters of a pixel, or eight pixels of a filter
#pragma unroll 1
        for (int unit = lane; unit < kPixels * kFilters / 8; unit += kWaveSize) {
            const int pixel = p.along_filters ? unit / (kFilters / 8) : unit % (kPixels / 8) * 8;
            const int filter = p.along_filters ? unit % (kFilters / 8) * 8 : unit / (kPixels / 8);
            const int place = pixels[first + pixel].out;
            if (filter >= strip.count || place < 0) continue;
            const float* const sums = scratch + pixel * kPitch + filter;
            float v[8];
            if (p.along_filters) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const Words4 words = *reinterpret_cast<const Words4*>(sums + 4 * half);
#pragma unroll
                    for (int i = 0; i < 4; ++i) v[4 * half + i] = bit_cast<float>(word(words, i));
                }
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i) v[i] = sums[i * kPitch];
            }
            if (c.residual.data) {
                float more[8];
                const DirectPixel at = direct_pixel(p, tile, first + pixel);
                load_eight(more, c.residual.data,
                           offset_in(c.residual, tile.image + at.image, strip.first + filter, tile.row + at.row,
                                     tile.column + at.column),
                           c.residual_dtype);
#pragma unroll
                for (int i = 0; i < 8; ++i) v[i] += canonical_nan(more[i]);
            }
            activate_eight(v, c.activation);
            store_eight_rounded(v, out + bytes * (place + filter * c.out.channel_stride), c.out_dtype);
        }
        return;
    }
    // Element by element: each lane has one filter, or one pixel.
    const int step = p.along_filters ? kWaveSize / kFilters : kWaveSize / kPixels;
    const int fixed = p.along_filters ? lane % kFilters : lane % kPixels, end = p.along_filters ? kPixels : strip.count;
    if (p.along_filters && fixed >= strip.count) return;
#pragma unroll 1
    for (int moving = p.along_filters ? lane / kFilters : lane / kPixels; moving < end; moving += step) {
        const int pixel = p.along_filters ? moving : fixed, filter = p.along_filters ? fixed : moving;
        const int place = pixels[first + pixel].out;
        if (place < 0) continue;
        float v = scratch[pixel * kPitch + filter];
        if (c.residual.data) v += residual_of(c, tile, direct_pixel(p, tile, first + pixel), strip.first + filter);
        store_rounded(global_pointer<void>(out), place + filter * c.out.channel_stride, c.out_dtype, activate(v, c.activation));
    }
}

}  // namespace hipconv
