// The epilogue of a warpgroup: from its sums to out, with bias, residual and activation. 16-bit results without a residual are
// rounded where they are, and turned in LDS or between lanes; those of TF32 leave registers as they are; others pass LDS.
#pragma once

#include "epilogue.h"
#include "matrix/warpgroup_mma.h"

namespace hipconv {

// A wave's epilogue tile in LDS.
struct WarpgroupEpilogue {
    static constexpr int kPixels = 16, kFilters = 32, kFloats = kPixels * kFilters;
    static HIPCONV_INLINE constexpr int bytes(int waves, int tile_n) { return waves * (kFloats + tile_n) * 4; }
};

// A wave's place in LDS for what it stores: an epilogue tile, and the bias of the whole tile.
struct EpilogueLds {
    float *tile, *bias;

    // Shares the bias, of which each lane has some, between the lanes.
    template <int kEach>
    HIPCONV_INLINE void share_bias(const float (&lane_bias)[kEach], int lane) const {
        sync_wave();  // the tile before is stored
#pragma unroll
        for (int i = 0; i < kEach; ++i) bias[lane + i * 32] = lane_bias[i];
        sync_wave();
    }
};

// The places of the waves are epilogue tiles that follow each other, and so do their biases behind them.
template <int kTileN>
HIPCONV_INLINE EpilogueLds epilogue_lds(float* first, int waves, int wave) {
    return {first + wave * WarpgroupEpilogue::kFloats, first + waves * WarpgroupEpilogue::kFloats + wave * kTileN};
}

// Selects a thread's sums of piece `number` of 2 kEach filters; the search begins at kNumber. Of each 8 filters a thread has
// two for one pixel and two for another.
template <int kNumber, int kTileN, int kBlocks, int kEach>
HIPCONV_INLINE void select_sums(const WarpgroupSums<kTileN> (&sums)[kBlocks], int number, float (&v)[kEach]) {
    constexpr int kPieces = kTileN / 2 / kEach;  // of a block
    if constexpr (kNumber < kBlocks * kPieces) {
        if (number != kNumber) return select_sums<kNumber + 1>(sums, number, v);
#pragma unroll
        for (int i = 0; i < kEach; ++i) v[i] = sums[kNumber / kPieces].values[kNumber % kPieces * kEach + i];
        keep_apart<kNumber>();
    }
}

// Selects a thread's sums of piece `number`, of 2 kEach filters from number `first` of the tile on, and finishes them.
template <int kTileN, int kBlocks, int kEach>
HIPCONV_INLINE void finish_piece(const Conv2dParams& c, const WarpgroupSums<kTileN> (&sums)[kBlocks], int number,
                                 const float* bias, int first, int lane, float (&v)[kEach]) {
    select_sums<0>(sums, number, v);
    if (c.bias) {
#pragma unroll
        for (int i = 0; i < kEach / 4; ++i) {
            const Words2 more = *reinterpret_cast<const Words2*>(&bias[first + i * 8 + lane % 4 * 2]);
#pragma unroll
            for (int e = 0; e < 4; ++e) v[i * 4 + e] += bit_cast<float>(word(more, e % 2));
        }
    }
    with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) v[i] = activate(v[i], kind);
    });
}

// Tells whether a tile goes from registers to memory by vectors: eight elements are aligned, and nothing else is read.
template <typename T>
HIPCONV_INLINE bool stores_vectors(const ConvGemmParams& g) {
    if constexpr (sizeof(T) != 2) return false;
    return g.conv.out_dtype == (kIsBf16<T> ? DType::bf16 : DType::f16) && !g.conv.residual.data && g.vector_stores;
}

// Where a lane's vectors go: of each block of 64 pixels, an address for store_lines or store_columns, or 0 outside the image.
// They are worked out while the last products are under way.
template <int kBlocks>
struct RowsOfOut {
    uint64_t addresses[kBlocks];

    template <typename T, typename PixelsFrom>
    HIPCONV_INLINE void find(const ConvGemmParams& g, int group, int tile_filter, PixelsFrom pixels_from, int wave_pixel,
                             int lane) {
        const Conv2dParams& c = g.conv;
        const int64_t filter =
            static_cast<int64_t>(group) * g.group_filters + tile_filter + (g.along_filters ? 0 : lane % 4 / 2 * 8 + lane / 4);
        const int pixel = g.along_filters ? lane % WarpgroupEpilogue::kPixels : lane % 2 * 8;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            const auto pixels = pixels_from(wave_pixel + block * kWarpgroupPixels);
            const OutPixel at = pixels.at(g, pixel);
            const T* const begin = static_cast<const T*>(c.out.data) + offset_in(c.out, at.n, filter, at.p, at.q);
            addresses[block] = kept(pixels.has(g, pixel) ? reinterpret_cast<uint64_t>(begin) : 0);
        }
    }
    // Selects one without making an array in memory of them.
    HIPCONV_INLINE uint64_t of_block(int number) const {
        uint64_t address = addresses[0];
#pragma unroll
        for (int block = 1; block < kBlocks; ++block) address = number == block ? addresses[block] : address;
        return address;
    }
};

// Stores a tile along filters: a wave's sums of 16 pixels by 64 filters (or 32) are rounded where they are, and turned in LDS,
// so that lanes store whole lines of 128 bytes. A lane has the address of pixel lane % 16. `filters` are those that there are
// from the tile's first one on.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_lines(const Conv2dParams& c, int filters, const RowsOfOut<kBlocks>& rows,
                                const WarpgroupSums<kTileN> (&sums)[kBlocks], const float* bias, Words4* turned, int lane) {
    constexpr int kFilters = kTileN % 64 == 0 ? 64 : 32, kPieces = kTileN / kFilters, kChunks = kFilters / 8;
    constexpr int kRows = 32 / kChunks, kStores = WarpgroupEpilogue::kPixels / kRows;  // rows that lanes store at once
    const auto index = [](int row, int chunk) {  // swizzled: neither writes nor reads have bank conflicts
        return row * kChunks + (chunk ^ (row / (8 / kChunks) % kChunks));
    };
    const int row = lane / 4, of_four = lane % 4, stores_row = lane / kChunks, chunk = lane % kChunks;
#pragma unroll 1
    for (int number = 0; number < kBlocks * kPieces; ++number) {
        const int first = number % kPieces * kFilters;
        const uint64_t own_row = rows.of_block(number / kPieces);
        float v[kFilters / 2];
        finish_piece(c, sums, number, bias, first, lane, v);
        sync_wave();  // the piece before is read
#pragma unroll
        for (int i = 0; i < kFilters / 4; ++i)
            reinterpret_cast<uint32_t*>(&turned[index(row + i % 2 * 8, i / 2)])[of_four] =
                pack<T>(make_pair(v[i * 2], v[i * 2 + 1]));
        sync_wave();
#pragma unroll
        for (int i = 0; i < kStores; ++i) {
            const uint64_t address = value_of_lane(own_row, i * kRows + stores_row);
            const Words4 eight = turned[index(i * kRows + stores_row, chunk)];
            const int filter = first + chunk * 8;
            if (address && filter < filters) *global_pointer<Words4>(address + filter * sizeof(T)) = eight;
        }
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

// Lanes lie along filters: each stores eight filters of two pixels, in pairs or one by one.
template <typename T>
HIPCONV_INLINE void store_eight_filters(const ConvGemmParams& g, uint32_t (&words)[2][4], int lane, T* const (&place)[2],
                                        const bool (&is_inside)[2], int first, int filter, int filters) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Words4 eight = transposed_4x4(words[i], lane);
        if (!is_inside[i]) continue;
        const int left = filters - first - filter;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const uint32_t two = word(eight, n);
            if (g.pair_stores) {
                if (2 * n < left) *reinterpret_cast<uint32_t*>(place[i] + first + 2 * n) = two;
                continue;
            }
            const int64_t step = g.conv.out.channel_stride;
            T* const at = place[i] + (first + 2 * n) * step;
            if (2 * n < left) *at = bit_cast<T>(static_cast<uint16_t>(two));
            if (2 * n + 1 < left) at[step] = bit_cast<T>(static_cast<uint16_t>(two >> 16));
        }
    }
}

// Lanes lie along pixels: each stores two of them together, which are inside or not, for eight filters.
template <typename T>
HIPCONV_INLINE void store_two_pixels(const ConvGemmParams& g, const uint32_t (&words)[2][4], int lane, T* const (&place)[2],
                                     const bool (&is_inside)[2], int first, int filter, int filters) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int eight = i / 2 * 8;  // filters
        const uint32_t two = transpose_8x8(words[i % 2][i / 2], lane);
        if (is_inside[i % 2] && first + eight + filter < filters)
            *reinterpret_cast<uint32_t*>(place[i % 2] + (first + eight) * g.conv.out.channel_stride) = two;
    }
}

// Lanes lie along pixels: 16 of them store theirs of a filter, and the others of the next one. What is stored at once is 32
// bytes of a filter, as the second cache takes as long for a part of a sector as for the whole.
template <typename T>
HIPCONV_INLINE void store_each_pixel(const ConvGemmParams& g, const uint32_t (&words)[2][4], int lane, T* place, bool is_inside,
                                     int first, int filter, int filters) {
    const int row = lane % 8 * 4;  // the first lane that has sums of the pixel
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int two = i * 2;  // filters
        const uint32_t upper = word_of_lane(words[0][i / 4], row + i % 4), lower = word_of_lane(words[1][i / 4], row + i % 4);
        const uint32_t both = lane % 16 < 8 ? upper : lower;
        if (is_inside && first + two + filter < filters)
            place[(first + two) * g.conv.out.channel_stride] =
                bit_cast<T>(static_cast<uint16_t>(filter == 0 ? both : both >> 16));
    }
}

// Stores a tile along pixels, of which eight are aligned: sums are rounded and transposed between lanes. A lane has the address
// of its eight pixels, for its first filter.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_columns(const Conv2dParams& c, int filters, const RowsOfOut<kBlocks>& rows,
                                  const WarpgroupSums<kTileN> (&sums)[kBlocks], const float* bias, int lane) {
    const int of_four = lane % 4, filter = of_four / 2 * 8 + lane / 4;  // among 16
#pragma unroll 1
    for (int number = 0; number < kBlocks * kTileN / 32; ++number) {
        const int first = number % (kTileN / 32) * 32;
        const uint64_t address = rows.of_block(number / (kTileN / 32));
        float v[16];
        select_sums<0>(sums, number, v);
        uint32_t words[2][4];
        finish_sums<T>(c, v, bias, first, of_four, words);
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // 16 filters each
            uint32_t transposed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) transposed[i] = transpose_8x8(words[i % 2][half * 2 + i / 2], lane);
            const Words4 eight = transposed_4x4(transposed, lane);
            if (address && first + half * 16 + filter < filters)
                *reinterpret_cast<Words4*>(global_pointer<T>(address) + (first + half * 16) * c.out.channel_stride) = eight;
        }
    }
}

// Rounds a tile's sums and stores them where eight are no vector: two pixels at a time, or one; or along filters. The loop is
// not unrolled, because the activations are long.
template <typename T, int kTileN, int kBlocks, typename PixelsFrom>
HIPCONV_INLINE void store_pairs(const ConvGemmParams& g, int group, int tile_filter, PixelsFrom pixels_from,
                                const WarpgroupSums<kTileN> (&sums)[kBlocks], const float* bias, int wave_pixel, int lane) {
    const Conv2dParams& c = g.conv;
    const int of_four = lane % 4, row = lane / 4;
    const int64_t first_filter = static_cast<int64_t>(group) * g.group_filters + tile_filter;
    const int filters = g.group_filters - tile_filter;
    // This lane stores two pairs of pixels; one pixel; or two pixels with eight filters each.
    const int first_pixel = g.along_filters ? row : g.pair_stores ? of_four * 2 : lane % 16;
    const int filter = g.along_filters ? of_four * 8 : g.pair_stores ? row : lane / 16;  // among the 32
    T* place[2] = {};  // addresses of first_pixel, and first_pixel + 8
    bool is_inside[2] = {};
#pragma unroll 1
    for (int number = 0; number < kBlocks * kTileN / 32; ++number) {
        const int first = number % (kTileN / 32) * 32;
        if (first == 0) {
            const auto pixels = pixels_from(wave_pixel + number / (kTileN / 32) * kWarpgroupPixels);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int pixel = first_pixel + i * 8;
                is_inside[i] = pixels.has(g, pixel);
                const OutPixel at = pixels.at(g, pixel);
                place[i] = global_pointer<T>(c.out.data) + offset_in(c.out, at.n, first_filter + filter, at.p, at.q);
            }
        }
        float v[16];
        select_sums<0>(sums, number, v);
        uint32_t words[2][4];
        finish_sums<T>(c, v, bias, first, of_four, words);
        if (g.along_filters)
            store_eight_filters<T>(g, words, lane, place, is_inside, first, filter, filters);
        else if (g.pair_stores)
            store_two_pixels<T>(g, words, lane, place, is_inside, first, filter, filters);
        else
            store_each_pixel<T>(g, words, lane, place[0], is_inside[0], first, filter, filters);
    }
}

// Stores a tile of f32 from registers, without LDS. A store of a wave fills sectors of 32 bytes: along filters a lane stores
// two of a pixel, aligned or one by one, and four lanes a sector; along pixels it stores one of a filter, and eight lanes a
// sector.
template <int kTileN, int kBlocks, typename PixelsFrom>
HIPCONV_INLINE void store_floats(const ConvGemmParams& g, int group, int tile_filter, PixelsFrom pixels_from,
                                 const WarpgroupSums<kTileN> (&sums)[kBlocks], const float* bias, int wave_pixel, int lane) {
    const Conv2dParams& c = g.conv;
    const int filter = lane % 4 * 2;  // of eight
    const int64_t first_filter = static_cast<int64_t>(group) * g.group_filters + tile_filter + filter;
    const int filters = g.group_filters - tile_filter - filter;
    const bool in_pairs = g.along_filters && g.pair_stores;
    float* place[2] = {};  // of the lane's two pixels
    const float* more[2] = {};
    bool is_inside[2] = {};
#pragma unroll 1
    for (int number = 0; number < kBlocks * kTileN / 32; ++number) {
        const int first = number % (kTileN / 32) * 32;
        if (first == 0) {
            const auto pixels = pixels_from(wave_pixel + number / (kTileN / 32) * kWarpgroupPixels);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int pixel = lane / 4 + i * 8;
                is_inside[i] = pixels.has(g, pixel);
                const OutPixel at = pixels.at(g, pixel);
                place[i] = global_pointer<float>(c.out.data) + offset_in(c.out, at.n, first_filter, at.p, at.q);
                more[i] = global_pointer<const float>(c.residual.data) + offset_in(c.residual, at.n, first_filter, at.p, at.q);
            }
        }
        float v[16];
        select_sums<0>(sums, number, v);
#pragma unroll
        for (int e = 0; e < 16; ++e) {
            const int k = first + e / 4 * 8 + e % 2;
            v[e] += bias[filter + k];
            if (c.residual.data && is_inside[e / 2 % 2] && k < filters) v[e] += more[e / 2 % 2][k * c.residual.channel_stride];
        }
        with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
            for (int e = 0; e < 16; ++e) v[e] = activate(v[e], kind);
        });
#pragma unroll
        for (int e = 0; e < 16; e += 2) {
            const int k = first + e / 4 * 8;
            if (!is_inside[e / 2 % 2] || k >= filters) continue;
            if (in_pairs) {
                Words2 two{};
                set_word(two, 0, bit_cast<uint32_t>(v[e]));
                set_word(two, 1, bit_cast<uint32_t>(v[e + 1]));
                *reinterpret_cast<Words2*>(place[e / 2 % 2] + k) = two;
                continue;
            }
            float* const at = place[e / 2 % 2] + k * c.out.channel_stride;
            *at = v[e];
            if (k + 1 < filters) at[c.out.channel_stride] = v[e + 1];
        }
    }
}

// ---- a tile -------------------------------------------------------------------------------------------------------------

// Writes a thread's sums to epilogue tile `number` of its wave.
template <int kTileN, int kBlocks>
HIPCONV_INLINE void write_epilogue_tile(const WarpgroupSums<kTileN> (&sums)[kBlocks], int number, int lane,
                                        float* epilogue_tile) {
    float v[16];
    select_sums<0>(sums, number, v);
#pragma unroll
    for (int e = 0; e < 16; e += 2) {
        Words2 both{};
        set_word(both, 0, bit_cast<uint32_t>(v[e]));
        set_word(both, 1, bit_cast<uint32_t>(v[e + 1]));
        const int at = epilogue_index<WarpgroupEpilogue::kFilters>(sums[0].pixel(lane, e), sums[0].filter(lane, e));
        *reinterpret_cast<Words2*>(&epilogue_tile[at]) = both;
    }
}

// The bias of an epilogue tile's filters, in LDS.
struct BiasInLds {
    static constexpr bool kComesOnce = false;  // warpgroups have no registers left for it
    const float* values;

    HIPCONV_INLINE void add_to(float (&v)[8], int filter, bool of_each) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += values[of_each ? filter + i : filter];
    }
};

// Loads a lane's share of a tile's bias, or zeros if there is none. The load is under way while the products are made.
template <typename B, int kEach>
HIPCONV_INLINE void load_bias(const void* bias, int64_t first, int64_t stride, int filters, int lane, float (&to)[kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int filter = lane + i * 32;
        to[i] = filter < filters ? to_float(static_cast<const B*>(bias)[(first + filter) * stride]) : 0.0f;
    }
}

template <int kEach>
HIPCONV_INLINE void load_bias(const ConvGemmParams& g, int group, int first_filter, int lane, float (&to)[kEach]) {
    const Conv2dParams& c = g.conv;
    const void* bias = global_pointer<const void>(c.bias);
    const int64_t first = static_cast<int64_t>(group) * g.group_filters + first_filter;
    const int filters = c.bias ? g.group_filters - first_filter : 0;
    with_dtype(c.bias_dtype, [&](auto type) { load_bias<decltype(type)>(bias, first, c.bias_stride, filters, lane, to); });
}

template <int kBlocks>
HIPCONV_INLINE int first_pixel_of_wave(int thread) {
    return thread / kWarpgroupThreads * kBlocks * kWarpgroupPixels +
           thread % kWarpgroupThreads / 32 * WarpgroupEpilogue::kPixels;
}

// Stores a tile, whose `rows` are known where stores_vectors() says so: through registers alone where that can be, else through
// each wave's epilogue tile in LDS, 16 pixels by 32 filters, from which lanes store along what is dense in out. pixels_from(n)
// are the tile's pixels from number n on. The loop over epilogue tiles is not unrolled, because its body is long.
template <typename T, int kTileN, int kBlocks, typename PixelsFrom>
HIPCONV_INLINE void store_warpgroup_sums(const ConvGemmParams& g, int group, int tile_filter, int part, PixelsFrom pixels_from,
                                         const RowsOfOut<kBlocks>& rows, const WarpgroupSums<kTileN> (&sums)[kBlocks],
                                         const float (&lane_bias)[kTileN / 32], EpilogueLds lds, int thread) {
    constexpr int kPixels = WarpgroupEpilogue::kPixels, kFilters = WarpgroupEpilogue::kFilters,
                  kEpilogueTiles = kTileN / kFilters;
    const Conv2dParams& c = g.conv;
    const int lane = thread % 32, wave_pixel = first_pixel_of_wave<kBlocks>(thread);
    float *const epilogue_tile = lds.tile, *const bias = lds.bias;
    lds.share_bias(lane_bias, lane);
    if constexpr (sizeof(T) == 2) {
        const bool is_16bit = c.out_dtype == (kIsBf16<T> ? DType::bf16 : DType::f16) && !c.residual.data;
        const int filters = g.group_filters - tile_filter;
        if (stores_vectors<T>(g) && g.along_filters)
            return store_lines<T>(c, filters, rows, sums, bias, reinterpret_cast<Words4*>(epilogue_tile), lane);
        if (stores_vectors<T>(g)) return store_columns<T>(c, filters, rows, sums, bias, lane);
        if (is_16bit) return store_pairs<T>(g, group, tile_filter, pixels_from, sums, bias, wave_pixel, lane);
    }
    if constexpr (kIsTf32<T>) {  // beside the two sets of sums of split float32 it would spill
        if (c.out_dtype == DType::f32 && (!c.residual.data || c.residual_dtype == DType::f32))
            return store_floats(g, group, tile_filter, pixels_from, sums, bias, wave_pixel, lane);
    }
#pragma unroll 1
    for (int number = 0; number < kBlocks * kEpilogueTiles; ++number) {
        const auto pixels = pixels_from(wave_pixel + number / kEpilogueTiles * kWarpgroupPixels);
        const int first_filter = number % kEpilogueTiles * kFilters;
        sync_wave();  // the epilogue tile before is read
        write_epilogue_tile(sums, number, lane, epilogue_tile);
        sync_wave();
        store_epilogue_tile<kPixels, kFilters>(g, epilogue_tile, lane, pixels, tile_filter + first_filter, group, part,
                                               BiasInLds{bias + first_filter});
    }
}

}  // namespace hipconv
