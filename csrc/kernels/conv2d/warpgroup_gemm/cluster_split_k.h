// Split-K by clusters: the blocks that share an output tile run at the same time, and each adds up a share of it from the LDS
// of all of them, in order.
#pragma once

#include "../gemm/warpgroup_epilogue.h"
#include "matrix/cluster.h"
#include "tile_scheduler.h"

namespace hipconv {

// The bytes of LDS that a tile's sums take. They lie where the rings were.
constexpr int cluster_sums_bytes(int tile_m, int tile_n) { return tile_m * tile_n * 4; }

// All waves write their sums, as epilogue tiles. Then each block stores every parts-th of them.
template <typename T, bool kPlanes, int kTileN, int kBlocks>
HIPCONV_INLINE void store_cluster_sums(const WarpgroupGemmParams& p, const WarpgroupTile& t, int waves,
                                       const WarpgroupSums<kTileN> (&sums)[kBlocks], const float (&lane_bias)[kTileN / 32],
                                       EpilogueLds lds, float* written, Barrier* all_multiplied, int thread) {
    constexpr int kPixels = WarpgroupEpilogue::kPixels, kFilters = WarpgroupEpilogue::kFilters, kAcross = kTileN / kFilters;
    constexpr int kFloats = kPixels * kFilters, kOfWave = kBlocks * kAcross;  // epilogue tiles
    const int lane = thread % 32, wave = thread / 32, parts = p.split.parts;
    float *const epilogue_tile = lds.tile, *const bias = lds.bias;
    lds.share_bias(lane_bias, lane);
    if (lane == 0) arrive(all_multiplied);
    wait_for_phase(all_multiplied, 0);  // no wave reads the rings any more
#pragma unroll 1
    for (int number = 0; number < kOfWave; ++number)
        write_epilogue_tile(sums, number, lane, written + (wave * kOfWave + number) * kFloats);
    sync_cluster();
#pragma unroll 1
    for (int number = t.part + wave * parts; number < waves * kOfWave; number += waves * parts) {
        const Words4* const from = reinterpret_cast<const Words4*>(written + number * kFloats) + lane;
        Words4 total[kFloats / 128];
#pragma unroll
        for (int i = 0; i < kFloats / 128; ++i) total[i] = load_from_block(from + i * 32, 0);
#pragma unroll 2
        for (int part = 1; part < parts; ++part) {
            Words4 more[kFloats / 128];
#pragma unroll
            for (int i = 0; i < kFloats / 128; ++i) more[i] = load_from_block(from + i * 32, part);
#pragma unroll
            for (int i = 0; i < kFloats / 128; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    set_word(total[i], e,
                             bit_cast<uint32_t>(bit_cast<float>(word(total[i], e)) + bit_cast<float>(word(more[i], e))));
        }
        sync_wave();  // the epilogue tile before is read
#pragma unroll
        for (int i = 0; i < kFloats / 128; ++i) reinterpret_cast<Words4*>(epilogue_tile)[lane + i * 32] = total[i];
        sync_wave();
        const int of = number / kOfWave, inside = number % kOfWave;  // the wave that has multiplied it; which of its tiles
        const int first_pixel = of / 4 * kBlocks * kWarpgroupPixels + inside / kAcross * kWarpgroupPixels + of % 4 * kPixels;
        const int first_filter = inside % kAcross * kFilters;
        store_epilogue_tile<kPixels, kFilters>(p.gemm, epilogue_tile, lane,
                                               WarpgroupPixels{columns_of<kPlanes>(p), t, first_pixel},
                                               t.first_filter + first_filter, t.group, 0, BiasInLds{bias + first_filter});
    }
    sync_cluster();  // no block ends while another reads its LDS
}

}  // namespace hipconv
