// The epilogue for a 16-bit out without a residual: sums are rounded where they are and transposed between lanes, without LDS.
#pragma once

#include "../gemm/epilogue.h"
#include "matrix/warpgroup_mma.h"
#include "tile_scheduler.h"

namespace hipconv {

// Selects a thread's sums of block `number` of 32 filters; the search begins at kNumber. Of each 8 filters a thread has two for
// one pixel and two for another.
template <int kNumber, int kTileN, int kBlocks>
HIPCONV_INLINE void select_sums(const WarpgroupSums<kTileN> (&sums)[kBlocks], int number, float (&v)[16]) {
    if constexpr (kNumber < kBlocks * kTileN / 32) {
        if (number != kNumber) return select_sums<kNumber + 1>(sums, number, v);
#pragma unroll
        for (int i = 0; i < 16; ++i) v[i] = sums[kNumber / (kTileN / 32)].values[kNumber % (kTileN / 32) * 16 + i];
        keep_apart<kNumber>();
    }
}

// Adds the bias to a thread's sums of 32 filters, activates and rounds them. `words` gets, for the first and the second pixel,
// a word of two filters of each eight.
template <typename T>
HIPCONV_INLINE void finish_sums(const Conv2dParams& c, float (&v)[16], const float* bias, int first, int of_four,
                                uint32_t (&words)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Words2 more = *reinterpret_cast<const Words2*>(&bias[first + i * 8 + of_four * 2]);
#pragma unroll
        for (int e = 0; e < 4; ++e) v[i * 4 + e] += bit_cast<float>(word(more, e % 2));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float eight[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) eight[i] = v[half * 8 + i];
        activate_eight(eight, c.activation);
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i % 2][half * 2 + i / 2] = pack<T>(make_pair(eight[i * 2], eight[i * 2 + 1]));
    }
}

HIPCONV_INLINE Words4 transposed_4x4(uint32_t (&words)[4], int lane) {
    transpose_4x4(words, lane);
    Words4 transposed{};
#pragma unroll
    for (int n = 0; n < 4; ++n) set_word(transposed, n, words[n]);
    return transposed;
}

// Lanes lie along filters: each stores eight filters of two pixels.
template <typename T>
HIPCONV_INLINE void store_eight_filters(uint32_t (&words)[2][4], int lane, T* const (&place)[4], const bool (&is_inside)[4],
                                        int first, int filter, int filters) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Words4 eight = transposed_4x4(words[i], lane);
        if (is_inside[i] && first + filter < filters) *reinterpret_cast<Words4*>(place[i] + first) = eight;
    }
}

// Lanes lie along pixels: each stores two of them, together or one by one, for eight filters.
template <typename T>
HIPCONV_INLINE void store_two_pixels(const ConvGemmParams& g, const uint32_t (&words)[2][4], int lane, T* const (&place)[4],
                                     const bool (&is_inside)[4], int first, int filter, int filters) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int eight = i / 2 * 8;  // filters
        const uint32_t two = transpose_8x8(words[i % 2][i / 2], lane);
        if (first + eight + filter >= filters) continue;
        const int64_t offset = (first + eight) * g.conv.out.channel_stride;
        if (g.pair_stores) {  // both are inside, or neither is
            if (is_inside[i % 2]) *reinterpret_cast<uint32_t*>(place[i % 2] + offset) = two;
            continue;
        }
        if (is_inside[i % 2]) place[i % 2][offset] = bit_cast<T>(static_cast<uint16_t>(two));
        if (is_inside[2 + i % 2]) place[2 + i % 2][offset] = bit_cast<T>(static_cast<uint16_t>(two >> 16));
    }
}

// Rounds a tile's sums, transposes them between lanes and stores them. Where eight elements are aligned, each lane ends up with
// eight consecutive ones; else lanes lie along pixels, with two pixels each. The loop is not unrolled, because the activations
// are long.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_16bit(const WarpgroupGemmParams& p, const WarpgroupTile& t,
                                const WarpgroupSums<kTileN> (&sums)[kBlocks], const float* bias, int wave_pixel, int lane) {
    const ConvGemmParams& g = p.gemm;
    const Conv2dParams& c = g.conv;
    const int of_four = lane % 4, row = lane / 4;
    const int64_t first_filter = static_cast<int64_t>(t.group) * g.group_filters + t.first_filter;
    const int filters = g.group_filters - t.first_filter;
    // This lane stores two pixels with eight filters each; eight consecutive pixels; or two pairs of pixels.
    const int first_pixel = g.along_filters ? row : g.vector_stores ? of_four % 2 * 8 : of_four * 2;
    const int filter = g.along_filters ? of_four * 8 : g.vector_stores ? of_four / 2 * 8 + row : row;  // among the 32
    T* place[4] = {};  // addresses of first_pixel, first_pixel + 8, and the pixel behind each
    bool is_inside[4] = {};
#pragma unroll 1
    for (int number = 0; number < kBlocks * kTileN / 32; ++number) {
        const int first = number % (kTileN / 32) * 32;
        if (first == 0) {
            const WarpgroupPixels pixels{p.patch_columns, t, wave_pixel + number / (kTileN / 32) * kWarpgroupPixels};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int pixel = first_pixel + i % 2 * 8 + i / 2;
                is_inside[i] = pixels.has(g, pixel);
                const OutPixel at = pixels.at(g, pixel);
                place[i] = global_pointer<T>(c.out.data) + offset_in(c.out, at.n, first_filter + filter, at.p, at.q);
                if (i == 1 && (g.along_filters || g.vector_stores)) break;
            }
        }
        float v[16];
        select_sums<0>(sums, number, v);
        uint32_t words[2][4];
        finish_sums<T>(c, v, bias, first, of_four, words);
        if (g.along_filters) {
            store_eight_filters<T>(words, lane, place, is_inside, first, filter, filters);
        } else if (g.vector_stores) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {  // 16 filters each
                uint32_t transposed[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) transposed[i] = transpose_8x8(words[i % 2][half * 2 + i / 2], lane);
                const Words4 eight = transposed_4x4(transposed, lane);
                if (is_inside[0] && first + half * 16 + filter < filters)
                    *reinterpret_cast<Words4*>(place[0] + (first + half * 16) * c.out.channel_stride) = eight;
            }
        } else {
            store_two_pixels<T>(g, words, lane, place, is_inside, first, filter, filters);
        }
    }
}

}  // namespace hipconv
