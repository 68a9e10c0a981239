// The epilogue of `direct`: a wave's sums, which began with the bias, pass through its part of LDS, so that lanes lie along
// what is dense in the result; then come residual, activation and one rounding.
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
        const int64_t y =
            padded_index(static_cast<int64_t>(row) * p.stride_h - p.pad_top + static_cast<int64_t>(r) * p.dilation_h,
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

// Activates values with one switch.
template <int kEach>
HIPCONV_INLINE void activate_all(float (&v)[kEach], Conv2dActivation activation) {
    if (activation == Conv2dActivation::none) return;
    if constexpr (kEach == 8) {
        activate_eight(v, activation);
    } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i) v[i] = activate(v[i], activation);
    }
}

// Makes the sums anew that are NaN, of kPixels pixels from number `first` on.
template <int kPixels, int kFilters>
HIPCONV_INLINE void mend_sums(const DirectParams& p, const DirectTile& tile, int first, DirectStrip strip, float* scratch,
                              int lane) {
#pragma unroll 1
    for (int i = lane; i < kPixels * kFilters; i += kWaveSize) {
        const int pixel = i / kFilters, filter = i % kFilters;
        float* const sum = &scratch[pixel * (kFilters + 4) + filter];
        if (*sum == *sum || filter >= strip.count) continue;
        const DirectParams& again = first_parameter_again(p);
        const DirectPixel at = direct_pixel(again, tile, first + pixel);
        if (at.exists)
            *sum =
                direct_sum(again.conv, tile.image + at.image, strip.first + filter, tile.row + at.row, tile.column + at.column);
    }
}

// Stores kPixels pixels from number `first` on, of which `pixels` tells the places, by vectors: of kEach filters of a
// pixel, or of kEach pixels of a filter. `out` is the address of the strip's first filter at the tile's first pixel.
template <int kPixels, int kFilters, int kEach>
HIPCONV_INLINE void store_direct_vectors(const DirectParams& p, const DirectTile& tile, const TilePixel* pixels, uint64_t out,
                                         int first, DirectStrip strip, const float* scratch, int lane) {
    constexpr int kPitch = kFilters + 4;
    const Conv2dParams& c = p.conv;
    const int bytes = element_bytes(c.out_dtype);
#pragma unroll 1
    for (int unit = lane; unit < kPixels * kFilters / kEach; unit += kWaveSize) {
        const int pixel = p.along_filters ? unit / (kFilters / kEach) : unit % (kPixels / kEach) * kEach;
        const int filter = p.along_filters ? unit % (kFilters / kEach) * kEach : unit / (kPixels / kEach);
        const int place = pixels[first + pixel].out;
        if (filter >= strip.count || place < 0) continue;
        const float* const sums = scratch + pixel * kPitch + filter;
        float v[kEach];
        if (p.along_filters) {
#pragma unroll
            for (int part = 0; part < kEach / 4; ++part) {
                const Words4 words = *reinterpret_cast<const Words4*>(sums + 4 * part);
#pragma unroll
                for (int i = 0; i < 4; ++i) v[4 * part + i] = bit_cast<float>(word(words, i));
            }
        } else {
#pragma unroll
            for (int i = 0; i < kEach; ++i) v[i] = sums[i * kPitch];
        }
        if (c.residual.data) {
            const DirectPixel at = direct_pixel(p, tile, first + pixel);
            const int64_t from =
                offset_in(c.residual, tile.image + at.image, strip.first + filter, tile.row + at.row, tile.column + at.column);
            float more[kEach];
            if constexpr (kEach == 8)
                load_eight(more, c.residual.data, from, c.residual_dtype);
            else
                load_each(more, c.residual.data, from, 1, c.residual_dtype);
#pragma unroll
            for (int i = 0; i < kEach; ++i) v[i] += canonical_nan(more[i]);
        }
        activate_all(v, c.activation);
        store_rounded(v, out + bytes * (place + filter * c.out.channel_stride), c.out_dtype);
    }
}

// The same element by element. Lanes lie along filters, or each has pixels.
template <int kPixels, int kFilters>
HIPCONV_INLINE void store_direct_elements(const DirectParams& p, const DirectTile& tile, const TilePixel* pixels, uint64_t out,
                                          int first, DirectStrip strip, const float* scratch, int lane) {
    const Conv2dParams& c = p.conv;
    constexpr int kPitch = kFilters + 4, kLanes = kPixels < kWaveSize ? kPixels : kWaveSize;
    const int first_pixel = p.along_filters ? lane / kFilters : lane % kLanes,
              pixel_step = p.along_filters ? kWaveSize / kFilters : kLanes;
    const int first_filter = p.along_filters ? lane % kFilters : lane / kLanes;
    const int filter_step = p.along_filters ? kFilters : kWaveSize / kLanes;
    const int64_t next = filter_step * c.out.channel_stride;
#pragma unroll 1
    for (int pixel = first_pixel; pixel < kPixels; pixel += pixel_step) {
        const int place = pixels[first + pixel].out;
        if (place < 0) continue;
        int64_t at = place + first_filter * c.out.channel_stride;
#pragma unroll 1
        for (int filter = first_filter; filter < strip.count; filter += filter_step) {
            float v = scratch[pixel * kPitch + filter];
            if (c.residual.data) v += residual_of(c, tile, direct_pixel(p, tile, first + pixel), strip.first + filter);
            if (c.activation != Conv2dActivation::none) v = activate(v, c.activation);
            store_rounded(global_pointer<void>(out), at, c.out_dtype, v);
            at += next;
        }
    }
}

// Stores kPixels pixels of which `scratch` has the rounded results, kEach at a time.
template <int kPixels, int kFilters, int kEach>
HIPCONV_INLINE void store_direct_rounded(const DirectParams& p, const TilePixel* pixels, uint64_t out, int first, int filters,
                                         const uint16_t* scratch, int lane) {
    constexpr int kPitch = kFilters + 8;
    const int64_t channel_stride = 2 * p.conv.out.channel_stride;
    using Vector = Words<uint16_t, kEach>;
    if (p.along_filters) {
#pragma unroll 1
        for (int unit = lane; unit < kPixels * kFilters / kEach; unit += kWaveSize) {
            const int pixel = unit / (kFilters / kEach), filter = unit % (kFilters / kEach) * kEach;
            const int place = pixels[first + pixel].out;
            if (filter >= filters || place < 0) continue;
            const Vector v = *reinterpret_cast<const Vector*>(scratch + pixel * kPitch + filter);
            *global_pointer<Vector>(out + 2 * static_cast<int64_t>(place) + filter * channel_stride) = v;
        }
        return;
    }
#pragma unroll 1
    for (int unit = lane; unit < kPixels * kFilters / kEach; unit += kWaveSize) {
        // Lanes along filters have no bank conflicts. Elements alone are parts of a sector, for each of which the second cache
        // takes as long as for the whole: there lanes lie along pixels.
        const int pixel = kEach == 1 ? unit % kPixels : unit / kFilters * kEach;
        const int filter = kEach == 1 ? unit / kPixels : unit % kFilters;
        const int place = pixels[first + pixel].out;
        if (filter >= filters || place < 0) continue;
        const uint16_t* const from = scratch + pixel * kPitch + filter;
        Vector v{};
        if constexpr (kEach == 1) {
            v = *from;
        } else {
#pragma unroll
            for (int w = 0; w < kEach / 2; ++w)
                set_word(v, w, from[2 * w * kPitch] | static_cast<uint32_t>(from[(2 * w + 1) * kPitch]) << 16);
        }
        *global_pointer<Vector>(out + 2 * static_cast<int64_t>(place) + filter * channel_stride) = v;
    }
}

template <int kPixels, int kFilters>
HIPCONV_INLINE void store_direct_rounded(const DirectParams& p, const TilePixel* pixels, uint64_t out, int first, int filters,
                                         const uint16_t* scratch, int lane) {
    if (p.store_each == 8)
        store_direct_rounded<kPixels, kFilters, 8>(p, pixels, out, first, filters, scratch, lane);
    else if (p.store_each == 4)
        store_direct_rounded<kPixels, kFilters, 4>(p, pixels, out, first, filters, scratch, lane);
    else
        store_direct_rounded<kPixels, kFilters, 1>(p, pixels, out, first, filters, scratch, lane);
}

template <int kPixels, int kFilters>
HIPCONV_INLINE void store_direct(const DirectParams& p, const DirectTile& tile, const TilePixel* pixels, uint64_t out,
                                 int first, DirectStrip strip, const float* scratch, int lane) {
    if (p.store_each == 8)
        store_direct_vectors<kPixels, kFilters, 8>(p, tile, pixels, out, first, strip, scratch, lane);
    else if (p.store_each == 4)
        store_direct_vectors<kPixels, kFilters, 4>(p, tile, pixels, out, first, strip, scratch, lane);
    else
        store_direct_elements<kPixels, kFilters>(p, tile, pixels, out, first, strip, scratch, lane);
}

}  // namespace hipconv
