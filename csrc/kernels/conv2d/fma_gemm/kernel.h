// Convolutions of float32 by plain products (`fma_gemm`): an implicit GEMM whose operands are read element by element, from
// anywhere, and whose tiles are as narrow as filters are few. A table in LDS says where each product's factors lie, so that
// the products of few channels are not padded to vectors. While a block multiplies what lies in LDS, its next factors are on
// their way into registers.
//
// A small tile's sums are shared by groups of threads, which take turns with the products and add up their parts at the end.
#pragma once

#include "../gemm/epilogue.h"
#include "launch/check.h"
#include "params.h"

namespace hipconv {

constexpr int32_t kNoProduct = INT32_MIN;

// Offsets, in elements, of a product's factors from those of the first product; a tap is its row in the upper half, its column
// in the lower one.
struct FmaEntries {
    int32_t* x;  // kNoProduct behind the last one
    int32_t* tap;
    int32_t* filter;
};

HIPCONV_INLINE void write_fma_entry(const FmaGemmParams& p, const FmaEntries& to, int at, int number) {
    const Conv2dParams& c = p.conv;
    if (number >= p.products) {
        to.x[at] = to.filter[at] = kNoProduct;
        to.tap[at] = 0;
        return;
    }
    const int outer = static_cast<int>(divide(number, p.divide_by_inner));
    const int inner = number - outer * (p.channels_inside ? c.in_channels : c.kernel_height * c.kernel_width);
    const int channel = p.channels_inside ? inner : outer, tap = p.channels_inside ? outer : inner;
    const int r = static_cast<int>(divide(tap, p.divide_by_taps_across)), s = tap - r * c.kernel_width;
    const int row = r * c.dilation_h, column = s * c.dilation_w;
    to.x[at] = static_cast<int32_t>(channel * c.x.channel_stride + row * c.x.row_stride + column * c.x.column_stride);
    to.tap[at] = row << 16 | column;
    to.filter[at] =
        static_cast<int32_t>(channel * c.weight.channel_stride + r * c.weight.row_stride + s * c.weight.column_stride);
}

// Where a pixel's first tap lies in x: the offset from the group's first element, row and column in a word. When the products
// are made, the same memory has the pixel's offset in out.
struct FmaPixel {
    int32_t offset, place;

    HIPCONV_INLINE void set_out(int64_t in_out) {
        offset = static_cast<int32_t>(static_cast<uint64_t>(in_out) & 0xffffffffu);
        place = static_cast<int32_t>(in_out >> 32);
    }
    HIPCONV_INLINE int64_t out() const { return int64_t{place} << 32 | static_cast<uint32_t>(offset); }
};

// Reads at 32 bits of offset from an address that all lanes share.
template <typename T>
HIPCONV_INLINE const T* at_bytes(const float* from, uint32_t bytes) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(from) + bytes);
}

// The factors that a thread brings in a turn.
template <typename S, bool kVectors>
struct FmaLoads {
    static constexpr int kWidth = kVectors ? 4 : 1;  // channels of x at once
    static constexpr int kVectorsOfTurn = S::kTurn / kWidth;
    static constexpr int kLoads = kVectorsOfTurn * S::kTilePixels / S::kThreads;
    static constexpr int kFilterLoads = S::kTurn * S::kTileFilters / S::kThreads;
    float x[kLoads][kWidth], filters[kFilterLoads];
    uint32_t is_inside;  // a bit for each load of x
    bool has_filters;

    // The pixel and the first product of a thread's load, and the filter and the product of another. Lanes lie along pixels, or
    // first along the vectors of a pixel; and along a filter's products.
    static HIPCONV_INLINE int pixel_of(int thread, int i) {
        return kVectors ? thread / kVectorsOfTurn + i * S::kThreads / kVectorsOfTurn
                        : thread % S::kTilePixels + i * S::kThreads % S::kTilePixels;
    }
    static HIPCONV_INLINE int product_of(int thread, int i) {
        return kVectors ? thread % kVectorsOfTurn * kWidth : thread / S::kTilePixels + i * S::kThreads / S::kTilePixels;
    }
    static HIPCONV_INLINE int filter_of(int thread, int i) { return thread / S::kTurn + i * S::kThreads / S::kTurn; }

    HIPCONV_INLINE void load(const FmaGemmParams& p, const float* from, const float* weight, const FmaEntries& entries,
                             const FmaPixel* pixels, const int32_t* filter_offsets, int thread) {
        if (p.pads)
            load_pixels<true>(p, from, entries, pixels, thread);
        else
            load_pixels<false>(p, from, entries, pixels, thread);
        const int32_t offset = entries.filter[thread % S::kTurn];
        has_filters = offset != kNoProduct;
#pragma unroll
        for (int i = 0; i < kFilterLoads; ++i) {
            const int32_t at = has_filters ? filter_offsets[filter_of(thread, i)] + offset : 0;
            filters[i] = *at_bytes<float>(weight, static_cast<uint32_t>(at) * 4);
        }
    }

    // An element outside is read as the first one, and becomes zero when it is stored: to choose here would wait for it.
    template <bool kPads>
    HIPCONV_INLINE void load_pixels(const FmaGemmParams& p, const float* from, const FmaEntries& entries,
                                    const FmaPixel* pixels, int thread) {
        is_inside = 0;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int product = product_of(thread, i);
            const FmaPixel pixel = pixels[pixel_of(thread, i)];
            const int32_t offset = entries.x[product];
            bool inside = offset != kNoProduct && pixel.offset != kNoProduct;
            if constexpr (kPads) {
                const int tap = entries.tap[product];
                const int row = (pixel.place >> 16) + (tap >> 16);
                const int column = static_cast<int16_t>(pixel.place & 0xffff) + (tap & 0xffff);
                inside = inside & (static_cast<uint32_t>(row) < static_cast<uint32_t>(p.conv.in_height)) &
                         (static_cast<uint32_t>(column) < static_cast<uint32_t>(p.conv.in_width));
            }
            is_inside |= static_cast<uint32_t>(inside) << i;
            const uint32_t bytes = inside ? static_cast<uint32_t>(pixel.offset + offset) * 4 : 0;
            if constexpr (kVectors) {
                const Words4 words = *at_bytes<Words4>(from, bytes);
#pragma unroll
                for (int w = 0; w < 4; ++w) x[i][w] = bit_cast<float>(word(words, w));
            } else {
                x[i][0] = *at_bytes<float>(from, bytes);
            }
        }
    }

    HIPCONV_INLINE void store(float* to_pixels, float* to_filters, int thread) const {
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
#pragma unroll
            for (int w = 0; w < kWidth; ++w)
                to_pixels[(product_of(thread, i) + w) * S::kPixelPitch + pixel_of(thread, i)] =
                    is_inside >> i & 1 ? x[i][w] : 0.0f;
#pragma unroll
        for (int i = 0; i < kFilterLoads; ++i)
            to_filters[thread % S::kTurn * S::kFilterPitch + filter_of(thread, i)] = has_filters ? filters[i] : 0.0f;
    }
};

// A thread's place in its group, and the pixels and filters of its sums in the tile: fours, as far apart as those of all
// threads reach. Of neighbouring lanes, eight at most read other filters, and the next ones other pixels: so a wave reads few
// lines of LDS, of which it needs as many cycles as the products take.
template <typename S>
struct FmaPlace {
    int across, down;

    HIPCONV_INLINE explicit FmaPlace(int of_group) : across(of_group / S::kDown), down(of_group % S::kDown) {}
    HIPCONV_INLINE int pixel(int i) const { return i / 4 * (4 * S::kAcross) + across * 4 + i % 4; }
    HIPCONV_INLINE int filter(int j) const { return j / 4 * (4 * S::kDown) + down * 4 + j % 4; }
};

template <int kCount>
HIPCONV_INLINE void read_fours(float (&v)[kCount], const float* from, int apart) {
#pragma unroll
    for (int four = 0; four < kCount / 4; ++four) {
        const Words4 words = *reinterpret_cast<const Words4*>(from + four * apart);
#pragma unroll
        for (int w = 0; w < 4; ++w) v[4 * four + w] = bit_cast<float>(word(words, w));
    }
}

template <typename S>
HIPCONV_INLINE void multiply_fma(Pair (&sums)[S::kFilters][S::kPixels / 2], const float* pixels, const float* filters,
                                 const FmaPlace<S>& place) {
#pragma unroll
    for (int product = 0; product < S::kProducts; ++product) {
        float x[S::kPixels], w[S::kFilters];
        read_fours(x, pixels + product * S::kPixelPitch + place.pixel(0), 4 * S::kAcross);
        read_fours(w, filters + product * S::kFilterPitch + place.filter(0), 4 * S::kDown);
#pragma unroll
        for (int j = 0; j < S::kFilters; ++j)
#pragma unroll
            for (int i = 0; i < S::kPixels / 2; ++i)
                sums[j][i] = multiply_add(make_pair(x[2 * i], x[2 * i + 1]), make_pair(w[j], w[j]), sums[j][i]);
    }
}

template <int kPixels>
HIPCONV_INLINE float sum_of(const Pair (&sums)[kPixels / 2], int pixel) {
    return pixel % 2 == 0 ? low(sums[pixel / 2]) : high(sums[pixel / 2]);
}

// Finishes four neighbours, along pixels or filters, and stores them.
HIPCONV_INLINE void store_four(const Conv2dParams& c, float (&v)[4], int64_t out, int64_t residual) {
    if (c.residual.data) {
        const Words4 more = *global_pointer<const Words4>(reinterpret_cast<uint64_t>(c.residual.data) + residual * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] += bit_cast<float>(word(more, i));
    }
    with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = activate(v[i], kind);
    });
    Words4 words{};
#pragma unroll
    for (int i = 0; i < 4; ++i) set_word(words, i, bit_cast<uint32_t>(v[i]));
    *global_pointer<Words4>(reinterpret_cast<uint64_t>(c.out.data) + out * 4) = words;
}

// This says which outputs a block makes.
struct FmaTile {
    int first_pixel, first_filter, end_filter;
};

// This is what the stores of a block share: bias and FmaPixel::out of its filters and pixels, and LDS for sums.
struct FmaStores {
    const FmaGemmParams& p;
    const FmaTile& tile;
    const float* bias;
    const FmaPixel* pixels;
    float* lds;
    int thread;

    HIPCONV_INLINE bool has(int pixel, int filter) const {
        return tile.first_pixel + pixel < p.pixels && tile.first_filter + filter < tile.end_filter;
    }
    HIPCONV_INLINE int64_t out_at(int pixel, int filter) const {
        return pixels[pixel].out() + (tile.first_filter + filter) * p.conv.out.channel_stride;
    }
    HIPCONV_INLINE int64_t residual_at(int pixel, int filter) const {
        if (!p.conv.residual.data) return 0;
        const OutPixel at = out_pixel(p, tile.first_pixel + pixel);
        return offset_in(p.conv.residual, at.n, tile.first_filter + filter, at.p, at.q);
    }
    HIPCONV_INLINE void store(int pixel, int filter, float sum) const {
        const Conv2dParams& c = p.conv;
        sum += bias[filter];
        if (c.residual.data)
            sum += load_parameter(global_pointer<void>(c.residual.data), residual_at(pixel, filter), c.residual_dtype);
        store_rounded(global_pointer<void>(c.out.data), out_at(pixel, filter), c.out_dtype, activate(sum, c.activation));
    }
};

// A slice of the tile: `count` neighbouring values of each thread, from `first` on in the tile, along filters or pixels; and
// `place` is which pixel, or filter, it is of.
template <typename S, bool kAlongFilters>
struct FmaSlice {
    static constexpr int kCount = kAlongFilters ? S::kFilters : S::kPixels;  // values of a thread
    static constexpr int kAlong = kAlongFilters ? S::kTileFilters : S::kTilePixels;
    static constexpr int kPitch = kAlong + 4, kRows = kAlongFilters ? S::kAcross : S::kDown;

    // The number in the tile of value i of a thread, and of slice `number` of row `row`.
    static HIPCONV_INLINE int along(const FmaPlace<S>& place, int i) {
        return kAlongFilters ? place.filter(i) : place.pixel(i);
    }
    static HIPCONV_INLINE int across(int row, int number) { return number / 4 * (4 * kRows) + row * 4 + number % 4; }
};

// Stores a slice: fours where they are vectors, else one by one, for which it passes through LDS, so that lanes lie along what
// is dense in out.
template <typename S, bool kAlongFilters>
__device__ __forceinline__ void store_fma_slice(const FmaStores& to, const float (&v)[FmaSlice<S, kAlongFilters>::kCount],
                                                const FmaPlace<S>& place, int number) {
    using Slice = FmaSlice<S, kAlongFilters>;
    const int row = kAlongFilters ? place.across : place.down;
    if (to.p.vector_stores) {
        const int across = Slice::across(row, number);
#pragma unroll
        for (int four = 0; four < Slice::kCount / 4; ++four) {
            const int along = Slice::along(place, 4 * four);
            const int pixel = kAlongFilters ? across : along, filter = kAlongFilters ? along : across;
            if (!to.has(pixel, filter)) continue;
            float finished[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) finished[i] = v[4 * four + i] + to.bias[filter + (kAlongFilters ? i : 0)];
            store_four(to.p.conv, finished, to.out_at(pixel, filter), to.residual_at(pixel, filter));
        }
        return;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Slice::kCount; ++i) to.lds[row * Slice::kPitch + Slice::along(place, i)] = v[i];
    __syncthreads();
#pragma unroll 2
    for (int at = to.thread; at < Slice::kRows * Slice::kAlong; at += S::kThreads) {
        const int of = at / Slice::kAlong, along = at % Slice::kAlong, across = Slice::across(of, number);
        const int pixel = kAlongFilters ? across : along, filter = kAlongFilters ? along : across;
        if (to.has(pixel, filter)) to.store(pixel, filter, to.lds[of * Slice::kPitch + along]);
    }
}

// Stores the tile slice by slice. The sums move on by one each time, so that all slices share their code.
template <typename S>
__device__ __forceinline__ void store_fma_tile(const FmaStores& to, Pair (&sums)[S::kFilters][S::kPixels / 2],
                                               const FmaPlace<S>& place) {
    if (to.p.along_filters) {
#pragma unroll 1
        for (int number = 0; number < S::kPixels; number += 2) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float v[S::kFilters];
#pragma unroll
                for (int j = 0; j < S::kFilters; ++j) v[j] = half == 0 ? low(sums[j][0]) : high(sums[j][0]);
                store_fma_slice<S, true>(to, v, place, number + half);
            }
#pragma unroll
            for (int j = 0; j < S::kFilters; ++j)
#pragma unroll
                for (int i = 0; i + 1 < S::kPixels / 2; ++i) sums[j][i] = sums[j][i + 1];
        }
        return;
    }
#pragma unroll 1
    for (int number = 0; number < S::kFilters; ++number) {
        float v[S::kPixels];
#pragma unroll
        for (int i = 0; i < S::kPixels; ++i) v[i] = sum_of<S::kPixels>(sums[0], i);
        store_fma_slice<S, false>(to, v, place, number);
#pragma unroll
        for (int j = 0; j + 1 < S::kFilters; ++j)
#pragma unroll
            for (int i = 0; i < S::kPixels / 2; ++i) sums[j][i] = sums[j + 1][i];
    }
}

// Adds up the parts of shared sums, in their order, and stores them one by one.
template <typename S>
__device__ __forceinline__ void store_fma_parts(const FmaStores& to, const Pair (&sums)[S::kFilters][S::kPixels / 2],
                                                const FmaPlace<S>& place) {
    constexpr int kPart = S::kTileFilters * S::kPixelPitch;
    float* const own = to.lds + to.thread / S::kGroup * kPart;
#pragma unroll
    for (int j = 0; j < S::kFilters; ++j)
#pragma unroll
        for (int i = 0; i < S::kPixels; ++i)
            own[place.filter(j) * S::kPixelPitch + place.pixel(i)] = sum_of<S::kPixels>(sums[j], i);
    __syncthreads();
#pragma unroll 2
    for (int at = to.thread; at < S::kTilePixels * S::kTileFilters; at += S::kThreads) {
        const int pixel = to.p.along_filters ? at / S::kTileFilters : at % S::kTilePixels;
        const int filter = to.p.along_filters ? at % S::kTileFilters : at / S::kTilePixels;
        if (!to.has(pixel, filter)) continue;
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < S::kParts; ++part) sum += to.lds[part * kPart + filter * S::kPixelPitch + pixel];
        to.store(pixel, filter, sum);
    }
}

template <typename S, bool kVectors>
__global__ void HIPCONV_LAUNCH_BOUNDS(S::kThreads, S::kBlocks) conv2d_fma_gemm(HIPCONV_IN_PLACE const FmaGemmParams parameter) {
    constexpr int kParts = S::kParts * S::kTileFilters * S::kPixelPitch;  // floats that parts of sums take
    constexpr int kLds = S::kParts > 1 && kParts > S::kStages * S::kStage ? kParts : S::kStages * S::kStage;
    HIPCONV_SHARED(Words4, lds_words, kLds / 4);
    HIPCONV_SHARED(int32_t, entry_words, 2 * 3 * S::kTurn);
    HIPCONV_SHARED(FmaPixel, pixels, S::kTilePixels);
    HIPCONV_SHARED(int32_t, filter_offsets, S::kTileFilters);
    HIPCONV_SHARED(float, bias, S::kTileFilters);
    let_next_kernel_begin();
    const FmaGemmParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.conv;
    float* const lds = reinterpret_cast<float*>(lds_words);
    const int thread = threadIdx.x;
    const int pixel_block = static_cast<int>(divide(blockIdx.x, p.divide_by_filter_blocks));
    const int filter_block = static_cast<int>(blockIdx.x) - pixel_block * p.filter_blocks;
    const int group = static_cast<int>(divide(filter_block, p.divide_by_group_blocks));
    FmaTile tile{};
    tile.first_pixel = pixel_block * S::kTilePixels;
    tile.first_filter = group * p.group_filters + (filter_block - group * p.group_blocks) * S::kTileFilters;
    tile.end_filter = (group + 1) * p.group_filters;
    const auto entries = [&](int turn) {
        int32_t* const words = entry_words + turn % 2 * (3 * S::kTurn);
        return FmaEntries{words, words + S::kTurn, words + 2 * S::kTurn};
    };
    const auto write_entries = [&](int turn) {
        if (thread < S::kTurn) write_fma_entry(p, entries(turn), thread, turn * S::kTurn + thread);
    };

    for (int i = thread; i < S::kTilePixels; i += S::kThreads) {
        const int number = tile.first_pixel + i;
        const OutPixel at = out_pixel(p, number < p.pixels ? number : 0);
        const int row = at.p * c.stride_h - c.pad_top, column = at.q * c.stride_w - c.pad_left;
        pixels[i].offset = number < p.pixels ? static_cast<int32_t>(offset_in(c.x, at.n, 0, row, column)) : kNoProduct;
        pixels[i].place = static_cast<int32_t>(static_cast<uint32_t>(row) << 16 | (static_cast<uint32_t>(column) & 0xffff));
    }
    wait_for_kernel_before();
    for (int i = thread; i < S::kTileFilters; i += S::kThreads) {
        const int k = tile.first_filter + i;
        const bool exists = k < tile.end_filter;
        filter_offsets[i] = static_cast<int32_t>((exists ? k : tile.end_filter - 1) * c.weight.batch_stride);
        bias[i] = exists && c.bias ? load_parameter(global_pointer<void>(c.bias), k * c.bias_stride, c.bias_dtype) : 0.0f;
    }
    write_entries(0);
    __syncthreads();

    const float* const x = global_pointer<const float>(reinterpret_cast<uint64_t>(c.x.data)) + group * p.group_distance;
    const float* const weight = global_pointer<const float>(reinterpret_cast<uint64_t>(c.weight.data));
    const FmaPlace<S> place(thread % S::kGroup);
    const int own_product = thread / S::kGroup * S::kProducts;
    Pair sums[S::kFilters][S::kPixels / 2];
#pragma unroll
    for (int j = 0; j < S::kFilters; ++j)
#pragma unroll
        for (int i = 0; i < S::kPixels / 2; ++i) sums[j][i] = make_pair(0.0f, 0.0f);

    FmaLoads<S, kVectors> next;
    next.load(p, x, weight, entries(0), pixels, filter_offsets, thread);
    write_entries(1);
    const int turns = (p.products + S::kTurn - 1) / S::kTurn;
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
        float* const stage_pixels = lds + turn % S::kStages * S::kStage;
        float* const stage_filters = stage_pixels + S::kTurn * S::kPixelPitch;
        if (S::kStages == 1 && turn > 0) __syncthreads();
        next.store(stage_pixels, stage_filters, thread);
        __syncthreads();
        if (turn + 1 < turns) {
            next.load(p, x, weight, entries(turn + 1), pixels, filter_offsets, thread);
            write_entries(turn + 2);
        }
        multiply_fma<S>(sums, stage_pixels + own_product * S::kPixelPitch, stage_filters + own_product * S::kFilterPitch,
                        place);
    }

    __syncthreads();  // all that lies in LDS is read
    for (int i = thread; i < S::kTilePixels; i += S::kThreads) {
        const int number = tile.first_pixel + i;
        const OutPixel at = out_pixel(p, number < p.pixels ? number : 0);
        pixels[i].set_out(offset_in(c.out, at.n, 0, at.p, at.q));
    }
    if constexpr (S::kParts == 1) __syncthreads();
    const FmaStores stores{p, tile, bias, pixels, lds, thread};
    if constexpr (S::kParts > 1)
        store_fma_parts<S>(stores, sums, place);
    else
        store_fma_tile<S>(stores, sums, place);
}

}  // namespace hipconv
