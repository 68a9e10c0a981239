// The epilogue of a warpgroup: from its sums to out, with bias, residual and activation.
#pragma once

#include "epilogue_16bit.h"

namespace hipconv {

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
        const int at = epilogue_index<WarpgroupShape::kEpilogueFilters>(sums[0].pixel(lane, e), sums[0].filter(lane, e));
        *reinterpret_cast<Words2*>(&epilogue_tile[at]) = both;
    }
}

// The bias of an epilogue tile's filters, in LDS.
struct BiasInLds {
    const float* values;

    HIPCONV_INLINE void add_to(float (&v)[8], int filter, bool of_each) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += values[of_each ? filter + i : filter];
    }
};

// Stores a tile: through registers alone where epilogue_16bit.h can, else through each wave's epilogue tile in LDS, 16 pixels
// by 32 filters, from which lanes store along what is dense in out. The loop over epilogue tiles is not unrolled, because its
// body is long.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_sums(const WarpgroupGemmParams& p, const WarpgroupTile& t,
                               const WarpgroupSums<kTileN> (&sums)[kBlocks], const float (&lane_bias)[kTileN / 32],
                               float* epilogue_tiles, int thread) {
    constexpr int kPixels = WarpgroupShape::kEpiloguePixels, kFilters = WarpgroupShape::kEpilogueFilters,
                  kEpilogueTiles = kTileN / kFilters;
    const ConvGemmParams& g = p.gemm;
    const Conv2dParams& c = g.conv;
    const int of_warpgroup = thread % kWarpgroupThreads, lane = thread % 32;
    const int wave_pixel = thread / kWarpgroupThreads * kBlocks * kWarpgroupPixels + of_warpgroup / 32 * kPixels;
    float* const epilogue_tile = epilogue_tiles + thread / 32 * WarpgroupShape::epilogue_floats(kTileN);
    float* const bias = epilogue_tile + kPixels * kFilters;
    sync_wave();  // the tile before is stored
#pragma unroll
    for (int i = 0; i < kTileN / 32; ++i) bias[lane + i * 32] = lane_bias[i];
    sync_wave();  // the bias is written
    if constexpr (sizeof(T) == 2) {
        const bool is_16bit = c.out_dtype == (kIsBf16<T> ? DType::bf16 : DType::f16) && !c.residual.data;
        if (is_16bit && (g.vector_stores || !g.along_filters)) return store_16bit<T>(p, t, sums, bias, wave_pixel, lane);
    }
#pragma unroll 1
    for (int number = 0; number < kBlocks * kEpilogueTiles; ++number) {
        const WarpgroupPixels pixels{p.patch_columns, t, wave_pixel + number / kEpilogueTiles * kWarpgroupPixels};
        const int first_filter = number % kEpilogueTiles * kFilters;
        sync_wave();  // the epilogue tile before is read
        write_epilogue_tile(sums, number, lane, epilogue_tile);
        sync_wave();
        store_epilogue_tile<kPixels, kFilters>(g, epilogue_tile, lane, pixels, t.first_filter + first_filter, t.group, t.part,
                                               BiasInLds{bias + first_filter});
    }
}

}  // namespace hipconv
