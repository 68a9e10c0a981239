// The splitting waves: they make two parts of TF32 of the f32 that TMA has brought to a stage, the large one in its place and the
// small one behind it.
#pragma once

#include "ring.h"
#include "tile_scheduler.h"

namespace hipconv {

// A ring between TMA and the splitting waves, and between these and the consumers.
struct SplitRing {
    Ring ring;
    const Barrier* brought;  // TMA has filled the first part of a stage

    // Splits `chunks` of a stage. A wave arrives once, for all of its lanes.
    template <int kThreads>
    HIPCONV_INLINE void split(RingState place, int chunks, int thread) const {
        wait_for_phase(&brought[place.stage], place.phase);
        Words4* const large = ring.at(place);
        Words4* const small = large + ring.chunks / 2;
#pragma unroll 4
        for (int i = thread; i < chunks; i += kThreads) {
            const SplitWords parts = split_to_tf32(large[i]);
            large[i] = parts.large;
            small[i] = parts.small;
        }
        fence_async_proxy();
        sync_wave();
        if (thread % 32 == 0) arrive(&ring.full[place.stage]);
    }
};

// Splits all stages, in the order in which the consumers read them.
template <int kTileM, int kTileN, int kThreads>
HIPCONV_INLINE void split_stages(const WarpgroupGemmParams& p, const SplitRing& x, const SplitRing& filters, int thread) {
    const int x_chunks = (p.patches ? patch_rows(kTileM, kNarrow) : kTileM) * kTileChunks;
    RingState x_state, filter_state;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
#pragma unroll 1
        for (int k_block = t.first_k_block; k_block < t.end_k_block; ++k_block) {
            x.split<kThreads>(x_state, x_chunks, thread);
            x_state.advance(x.ring.stages);
#pragma unroll 1
            for (int tap = 0; tap < p.taps_per_k_block; ++tap) {
                filters.split<kThreads>(filter_state, kTileN * kTileChunks, thread);
                filter_state.advance(filters.ring.stages);
            }
        }
    }
}

}  // namespace hipconv
