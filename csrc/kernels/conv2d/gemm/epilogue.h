// The epilogue of the GEMMs: a wave's sums pass through LDS, so that lanes lie along what is dense in the result; then come
// bias, residual, activation and one rounding.
#pragma once

#include "../common/epilogue.h"
#include "gemm.h"

namespace hipconv {

// The image, row and column of an output pixel.
struct OutPixel {
    int n, p, q;
};

// The pixel of a number through all images. `Params` are a kernel's, with these divisors.
template <typename Params>
HIPCONV_INLINE OutPixel out_pixel(const Params& p, int number) {
    const int n = static_cast<int>(divide(number, p.divide_by_image));
    const int of_image = number - n * p.conv.out_height * p.conv.out_width;
    const int row = static_cast<int>(divide(of_image, p.divide_by_row));
    return {n, row, of_image - row * p.conv.out_width};
}

// The pixels of a tile from number `first` on: consecutive ones, or those of a rectangle of an image.
struct PixelRun {
    int image, first;

    HIPCONV_INLINE PixelRun from(int number) const { return {image, first + number}; }
    HIPCONV_INLINE bool has(const ConvGemmParams& p, int i) const { return first + i < p.pixels; }
    HIPCONV_INLINE OutPixel at(const ConvGemmParams& p, int i) const {
        int n = image, pixel = first + i;
        if (!p.by_image) {
            n = static_cast<int>(divide(pixel, p.divide_by_image));
            pixel -= n * p.conv.out_height * p.conv.out_width;
        }
        const int row = static_cast<int>(divide(pixel, p.divide_by_row));
        return {n, row, pixel - row * p.conv.out_width};
    }
};

template <int kColumns>
struct PixelPatch {
    int image, row, column, first;

    HIPCONV_INLINE PixelPatch from(int number) const { return {image, row, column, first + number}; }
    HIPCONV_INLINE OutPixel at(const ConvGemmParams&, int i) const {
        return {image, row + (first + i) / kColumns, column + (first + i) % kColumns};
    }
    HIPCONV_INLINE bool has(const ConvGemmParams& p, int i) const {
        const OutPixel pixel = at(p, i);
        return pixel.p < p.conv.out_height && pixel.q < p.conv.out_width;
    }
};

HIPCONV_INLINE void load_eight(float (&v)[8], const void* base, int64_t index, DType dtype) {
    const uint64_t address = reinterpret_cast<uint64_t>(base);
    if (dtype == DType::f32) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Words4 words = *global_pointer<const Words4>(address + (index + 4 * half) * 4);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[4 * half + i] = bit_cast<float>(word(words, i));
        }
        return;
    }
    const Words4 words = *global_pointer<const Words4>(address + index * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Pair pair = dtype == DType::bf16 ? pair_of<bf16>(words, i) : pair_of<f16>(words, i);
        v[2 * i] = low(pair);
        v[2 * i + 1] = high(pair);
    }
}

HIPCONV_INLINE void store_eight(const float (&v)[8], void* base, int64_t index, DType dtype) {
    const uint64_t address = reinterpret_cast<uint64_t>(base);
    if (dtype == DType::f32) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Words4 words{};
#pragma unroll
            for (int i = 0; i < 4; ++i) set_word(words, i, bit_cast<uint32_t>(v[4 * half + i]));
            *global_pointer<Words4>(address + (index + 4 * half) * 4) = words;
        }
        return;
    }
    Words4 words{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Pair pair = make_pair(canonical_nan(v[2 * i]), canonical_nan(v[2 * i + 1]));
        set_word(words, i, dtype == DType::bf16 ? pack<bf16>(pair) : pack<f16>(pair));
    }
    *global_pointer<Words4>(address + index * 2) = words;
}

// Stores four or eight values, none of which is a NaN that rounding would change.
template <int kEach>
HIPCONV_INLINE void store_rounded(const float (&v)[kEach], uint64_t address, DType dtype) {
    if (dtype == DType::f32) {
#pragma unroll
        for (int part = 0; part < kEach / 4; ++part) {
            Words4 words{};
#pragma unroll
            for (int i = 0; i < 4; ++i) set_word(words, i, bit_cast<uint32_t>(v[4 * part + i]));
            *global_pointer<Words4>(address + 16 * part) = words;
        }
        return;
    }
    Words<uint16_t, kEach> words{};
    if (dtype == DType::bf16) {
#pragma unroll
        for (int i = 0; i < kEach / 2; ++i) set_word(words, i, pack<bf16>(make_pair(v[2 * i], v[2 * i + 1])));
    } else {
#pragma unroll
        for (int i = 0; i < kEach / 2; ++i) set_word(words, i, pack<f16>(make_pair(v[2 * i], v[2 * i + 1])));
    }
    *global_pointer<Words<uint16_t, kEach>>(address) = words;
}

// Activates eight values with one switch.
HIPCONV_INLINE void activate_eight(float (&v)[8], Conv2dActivation activation) {
    with_activation(activation, [&](Conv2dActivation kind) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = activate(v[i], kind);
    });
}

// The index of a sum in a wave's epilogue tile, of pixels by kFilters filters, in LDS. The units of four floats are swizzled
// within a row, so that neither writes nor reads along rows or columns have bank conflicts.
template <int kFilters>
HIPCONV_INLINE int epilogue_index(int pixel, int filter) {
    return pixel * kFilters + ((filter / 4 ^ pixel % (kFilters / 4)) * 4 + filter % 4);
}

// Adds bias and residual to a wave's epilogue tile, activates and stores it, element by element. Lanes lie along the denser of
// out's filters and pixels.
template <int kEpiloguePixels, int kFilters, typename Pixels>
HIPCONV_INLINE void store_epilogue_tile_by_elements(const ConvGemmParams& p, const float* epilogue_tile, int lane, Pixels run,
                                                    int first_filter, int group, int part) {
    const Conv2dParams& c = p.conv;
    const int filters = p.group_filters - first_filter;
    const int64_t k_first = static_cast<int64_t>(group) * p.group_filters + first_filter, part_offset = part * p.part_stride;
    if (p.along_filters) {
#pragma unroll 1
        for (int i = lane; i < kEpiloguePixels * kFilters; i += kWaveSize) {
            const int pixel = i / kFilters, filter = i % kFilters;
            if (filter >= filters || !run.has(p, pixel)) continue;
            const OutPixel at = run.at(p, pixel);
            conv2d_store(c, at.n, k_first + filter, at.p, at.q, epilogue_tile[epilogue_index<kFilters>(pixel, filter)],
                         part_offset);
        }
        return;
    }
    static_assert(kWaveSize % kEpiloguePixels == 0, "a lane has one pixel");
    const int pixel = lane % kEpiloguePixels;
    if (!run.has(p, pixel)) return;
    const OutPixel at = run.at(p, pixel);
    const int64_t first = part_offset + offset_in(c.out, at.n, k_first, at.p, at.q);
    const int64_t first_residual = c.residual.data ? offset_in(c.residual, at.n, k_first, at.p, at.q) : 0;
#pragma unroll 1
    for (int filter = lane / kEpiloguePixels; filter < kFilters && filter < filters; filter += kWaveSize / kEpiloguePixels)
        conv2d_store_at(
            c, k_first + filter, [&] { return first + filter * c.out.channel_stride; },
            [&] { return first_residual + filter * c.residual.channel_stride; },
            epilogue_tile[epilogue_index<kFilters>(pixel, filter)]);
}

// The bias of an epilogue tile's filters from `filter` on: one for each of eight sums, or one for all.
struct BiasInMemory {
    static constexpr bool kComesOnce = true;  // and stays in registers
    const Conv2dParams& conv;
    int64_t first;  // the epilogue tile's first filter

    HIPCONV_INLINE void add_to(float (&v)[8], int filter, bool of_each) const {
        if (!conv.bias) return;
        float more[8];
        load_each(more, conv.bias, (first + filter) * conv.bias_stride, of_each ? conv.bias_stride : 0, conv.bias_dtype);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += more[i];
    }
};

// The same along filters, where eight are aligned: a lane has the same eight of each of its pixels, whose bias comes once.
template <int kEpiloguePixels, int kFilters, typename Pixels, typename Bias>
HIPCONV_INLINE void store_epilogue_tile_along_filters(const ConvGemmParams& p, const float* epilogue_tile, int lane, Pixels run,
                                                      int filters, int64_t k_first, int64_t part_offset, Bias bias) {
    constexpr int kAcross = kFilters / 8;
    const Conv2dParams& c = p.conv;
    const int filter = lane % kAcross * 8;
    if (filter >= filters) return;
    float of_filters[8] = {};
    bias.add_to(of_filters, filter, true);
#pragma unroll 1
    for (int pixel = lane / kAcross; pixel < kEpiloguePixels; pixel += kWaveSize / kAcross) {
        if (!run.has(p, pixel)) continue;
        const OutPixel at = run.at(p, pixel);
        float v[8], more[8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Words4 four =
                *reinterpret_cast<const Words4*>(&epilogue_tile[epilogue_index<kFilters>(pixel, filter + 4 * half)]);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[4 * half + i] = bit_cast<float>(word(four, i)) + of_filters[4 * half + i];
        }
        if (c.residual.data) {
            load_eight(more, c.residual.data, offset_in(c.residual, at.n, k_first + filter, at.p, at.q), c.residual_dtype);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] += more[i];
        }
        activate_eight(v, c.activation);
        store_eight(v, c.out.data, part_offset + offset_in(c.out, at.n, k_first + filter, at.p, at.q), c.out_dtype);
    }
}

// The same; a lane stores eight elements at once where they are aligned.
template <int kEpiloguePixels, int kFilters, typename Pixels, typename Bias>
HIPCONV_INLINE void store_epilogue_tile(const ConvGemmParams& p, const float* epilogue_tile, int lane, Pixels run,
                                        int first_filter, int group, int part, Bias bias) {
    const Conv2dParams& c = p.conv;
    const int filters = p.group_filters - first_filter;
    const int64_t k_first = static_cast<int64_t>(group) * p.group_filters + first_filter;
    const int64_t part_offset = part * p.part_stride;
    if constexpr (Bias::kComesOnce) {
        if (p.vector_stores && p.along_filters) {
            store_epilogue_tile_along_filters<kEpiloguePixels, kFilters>(p, epilogue_tile, lane, run, filters, k_first,
                                                                         part_offset, bias);
            return;
        }
    }
    if (p.vector_stores) {
        constexpr int kAcross = kFilters / 8;
#pragma unroll 1
        for (int unit = lane; unit < kEpiloguePixels * kAcross; unit += kWaveSize) {
            const int pixel = p.along_filters ? unit / kAcross : unit % (kEpiloguePixels / 8) * 8;
            const int filter = p.along_filters ? unit % kAcross * 8 : unit / (kEpiloguePixels / 8);
            if (filter >= filters || !run.has(p, pixel)) continue;
            const OutPixel at = run.at(p, pixel);
            const int64_t k = k_first + filter;
            float v[8], more[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                v[i] = p.along_filters ? epilogue_tile[epilogue_index<kFilters>(pixel, filter + i)]
                                       : epilogue_tile[epilogue_index<kFilters>(pixel + i, filter)];
            bias.add_to(v, filter, p.along_filters);
            if (c.residual.data) {
                load_eight(more, c.residual.data, offset_in(c.residual, at.n, k, at.p, at.q), c.residual_dtype);
#pragma unroll
                for (int i = 0; i < 8; ++i) v[i] += more[i];
            }
            activate_eight(v, c.activation);
            store_eight(v, c.out.data, part_offset + offset_in(c.out, at.n, k, at.p, at.q), c.out_dtype);
        }
        return;
    }
    store_epilogue_tile_by_elements<kEpiloguePixels, kFilters>(p, epilogue_tile, lane, run, first_filter, group, part);
}

}  // namespace hipconv
