// The epilogue of `direct`: a wave's sums pass through its part of LDS, so that lanes lie along what is dense in the result; then
// come bias, residual, activation and one rounding.
#pragma once

#include "../common/padding.h"
#include "../gemm/epilogue.h"
#include "params.h"
#include "staging.h"

namespace hipconv {

// An output by the formula, without what is not of its own group: a product of a zero that stands between the groups of a bundle
// and an infinity or NaN of another group's channel is NaN, so sums that are NaN are made again.
template <typename T>
HIPCONV_INLINE float direct_sum(const Conv2dParams& p, int n, int k, int row, int column) {
    const int32_t group_channels = p.in_channels / p.groups;
    const int64_t first_channel = static_cast<int64_t>(k / (p.out_channels / p.groups)) * group_channels;
    float sum = 0.0f;
#pragma unroll 1
    for (int32_t r = 0; r < p.kernel_height; ++r) {
        const int64_t y =
            padded_index(static_cast<int64_t>(row) * p.stride_h - p.pad_top + static_cast<int64_t>(r) * p.dilation_h, p.in_height,
                         p.padding_mode);
        if (y < 0) continue;
#pragma unroll 1
        for (int32_t s = 0; s < p.kernel_width; ++s) {
            const int64_t x =
                padded_index(static_cast<int64_t>(column) * p.stride_w - p.pad_left + static_cast<int64_t>(s) * p.dilation_w,
                             p.in_width, p.padding_mode);
            if (x < 0) continue;
            const T* const pixel = global_pointer<const T>(p.x.data) + offset_in(p.x, n, first_channel, y, x);
            const T* const tap = global_pointer<const T>(p.weight.data) + offset_in(p.weight, k, 0, r, s);
#pragma unroll 1
            for (int32_t c = 0; c < group_channels; ++c)
                sum += to_float(pixel[c * p.x.channel_stride]) * to_float(tap[c * p.weight.channel_stride]);
        }
    }
    return sum;
}

// A strip of filters that a wave stores.
struct DirectStrip {
    int first, count;  // filter; those that there are
};

struct DirectPixel {
    OutPixel at;
    bool exists;
};

HIPCONV_INLINE DirectPixel direct_pixel(const DirectParams& p, const DirectTile& tile, int number) {
    const int image = static_cast<int>(divide(number, p.divide_by_image_pixels));
    const int of_image = number - image * p.image_pixels;
    const int row = static_cast<int>(divide(of_image, p.divide_by_columns)), column = of_image - row * p.tile_columns;
    const OutPixel at{tile.image + image, tile.row + row, tile.column + column};
    const Conv2dParams& c = p.conv;
    return {at, image < p.tile_images && at.n < c.batch && at.p < c.out_height && at.q < c.out_width};
}

// Stores kWaveSize / 2 pixels from number `first` on. A unit is eight sums of one pixel, or of one filter.
template <int kFilters>
HIPCONV_INLINE void store_direct(const DirectParams& p, const DirectTile& tile, int first, DirectStrip strip, float* scratch,
                                 int lane) {
    constexpr int kPixels = kWaveSize / 2, kPitch = kFilters + 4, kUnits = kPixels * kFilters / 8;
    const Conv2dParams& c = p.conv;
#pragma unroll 1
    for (int unit = lane; unit < kUnits; unit += kWaveSize) {
        const int pixel = p.along_filters ? unit / (kFilters / 8) : unit % (kPixels / 8) * 8;
        const int filter = p.along_filters ? unit % (kFilters / 8) * 8 : unit / (kPixels / 8);
        const int next = p.along_filters ? 1 : kPitch;
        if (filter >= strip.count) continue;
        float* const sums = scratch + pixel * kPitch + filter;
        float v[8];
        bool nan = false;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            v[i] = sums[i * next];
            nan = nan || v[i] != v[i];
        }
        if (nan) {
#pragma unroll 1
            for (int i = 0; i < 8; ++i) {
                const DirectPixel at = direct_pixel(p, tile, first + pixel + (p.along_filters ? 0 : i));
                const int k = filter + (p.along_filters ? i : 0);
                if (!at.exists || k >= strip.count) continue;
                if (c.dtype == DType::bf16)
                    sums[i * next] = direct_sum<bf16>(c, at.at.n, strip.first + k, at.at.p, at.at.q);
                else
                    sums[i * next] = direct_sum<f16>(c, at.at.n, strip.first + k, at.at.p, at.at.q);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = sums[i * next];
        }
        const int k = strip.first + filter;
        if (p.vector_stores) {
            const DirectPixel at = direct_pixel(p, tile, first + pixel);
            if (!at.exists) continue;
            BiasInMemory{c, k}.add_to(v, 0, p.along_filters);
            if (c.residual.data) {
                float more[8];
                load_eight(more, c.residual.data, offset_in(c.residual, at.at.n, k, at.at.p, at.at.q), c.residual_dtype);
#pragma unroll
                for (int i = 0; i < 8; ++i) v[i] += more[i];
            }
            activate_eight(v, c.activation);
            store_eight(v, c.out.data, offset_in(c.out, at.at.n, k, at.at.p, at.at.q), c.out_dtype);
        }
    }
    if (p.vector_stores) return;
    // Element by element. Lanes lie along filters or pixels.
    sync_wave();
#pragma unroll 1
    for (int i = lane; i < kPixels * kFilters; i += kWaveSize) {
        const int pixel = p.along_filters ? i / kFilters : i % kPixels, filter = p.along_filters ? i % kFilters : i / kPixels;
        const DirectPixel at = direct_pixel(p, tile, first + pixel);
        if (filter >= strip.count || !at.exists) continue;
        conv2d_store(c, at.at.n, strip.first + filter, at.at.p, at.at.q, scratch[pixel * kPitch + filter]);
    }
}

}  // namespace hipconv
