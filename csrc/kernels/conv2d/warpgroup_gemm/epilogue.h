// The way out of a warpgroup's sums.
#pragma once

#include "epilogue_16bit.h"

namespace hipconv {

// A thread's share of slab `number` of a wave.
template <int kTileN, int kBlocks>
HIPCONV_INLINE void write_slab(const WarpgroupSums<kTileN> (&sums)[kBlocks], int number, int lane, float* slab) {
    float v[16];
    take_sums<0>(sums, number, v);
#pragma unroll
    for (int e = 0; e < 16; e += 2) {
        Words2 both{};
        set_word(both, 0, bit_cast<uint32_t>(v[e]));
        set_word(both, 1, bit_cast<uint32_t>(v[e + 1]));
        const int at = slab_at<WarpgroupShape::kSlabFilters>(sums[0].pixel(lane, e), sums[0].filter(lane, e));
        *reinterpret_cast<Words2*>(&slab[at]) = both;
    }
}

// The bias of a slab's filters, in LDS.
struct BiasInLds {
    const float* values;

    HIPCONV_INLINE void add_to(float (&v)[8], int filter, bool of_each) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += values[of_each ? filter + i : filter];
    }
};

// Everything else goes through each wave's slab, 16 pixels by 32 filters, and from there by lanes along what is dense in out. One
// slab after the other, in a loop that is not unrolled: the way out is long.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_sums(const WarpgroupGemmParams& p, const WarpgroupTile& t, const WarpgroupSums<kTileN> (&sums)[kBlocks],
                               const float (&lane_bias)[kTileN / 32], float* slabs, int thread) {
    constexpr int kPixels = WarpgroupShape::kSlabPixels, kFilters = WarpgroupShape::kSlabFilters, kSlabs = kTileN / kFilters;
    const ConvGemmParams& g = p.gemm;
    const Conv2dParams& c = g.conv;
    const int of_warpgroup = thread % kWarpgroupThreads, lane = thread % 32;
    const int wave_pixel = thread / kWarpgroupThreads * kBlocks * kWarpgroupPixels + of_warpgroup / 32 * kPixels;
    float* const slab = slabs + thread / 32 * WarpgroupShape::slab_floats(kTileN);
    float* const bias = slab + kPixels * kFilters;
    sync_wave();  // the tile before has left
#pragma unroll
    for (int i = 0; i < kTileN / 32; ++i) bias[lane + i * 32] = lane_bias[i];
    sync_wave();  // the bias is there
    const bool is_of_halves = c.out_dtype == (kIsBf16<T> ? DType::bf16 : DType::f16) && !c.residual.data;
    if (is_of_halves && (g.vector_stores || !g.along_filters))
        return store_halves<T>(p, t, sums, bias, wave_pixel, lane);
#pragma unroll 1
    for (int number = 0; number < kBlocks * kSlabs; ++number) {
        const WarpgroupPixels pixels{p.patch_columns, t, wave_pixel + number / kSlabs * kWarpgroupPixels};
        const int first_filter = number % kSlabs * kFilters;
        sync_wave();  // the slab before is read
        write_slab(sums, number, lane, slab);
        sync_wave();
        store_slab<kPixels, kFilters>(g, slab, lane, pixels, t.first_filter + first_filter, t.group, t.part,
                                      BiasInLds{bias + first_filter});
    }
}

}  // namespace hipconv
