// The producers: one thread loads patches of frames, another one boxes of filters, each as far ahead of the consumers as its
// ring is long, across tiles too. The other waves write the cache of the next call, and one of them fills the edges of patches
// where that is needed.
#pragma once

#include "../../conv2d/gemm/ring.h"
#include "tiles.h"

namespace hipconv {

template <int kTileM>
HIPCONV_INLINE void produce_patches(const FrameWarpgroupParams& p, const Ring& ring) {
    const Conv3dParams& c = p.conv;
    RingState place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const FrameTile t = frame_tile<kTileM>(p, number);
        const SeenFrames taps(c, t.frame);
#pragma unroll 1
        for (int tap = taps.first; tap < taps.end; ++tap) {
            const int64_t at = static_cast<int64_t>(t.frame) * c.stride_t - c.front + static_cast<int64_t>(tap) * c.dilation_t;
            const int frame = static_cast<int>(frame_number(c, at, c.time_mode));
            const bool is_cached = frame < 0 ? c.in_frames == 0 : frame < c.cached;
            const int of_map = frame < 0 || is_cached ? frame : frame - c.cached;  // frame -1 is outside, so zeros
            const TensorMap& map = is_cached ? p.cache : p.x;
#pragma unroll 1
            for (int block = 0; block < p.channel_blocks; ++block) {
                Barrier* const landed = &ring.full[p.first_landed + place.stage];
                wait_for_phase(&ring.empty[place.stage], place.phase ^ 1);
                arrive_expect_bytes(landed, p.patch_rows * kTileRowBytes);
                tma_load_box<5>(ring.at(place), map, landed,
                                {t.group * p.frame.group_channels + block * kChannels, t.column - c.pad_left, t.row - c.pad_top,
                                 of_map, t.sample});
                place.advance(ring.stages);
            }
        }
    }
}

template <int kTileM, int kTileN>
HIPCONV_INLINE void produce_frame_filters(const FrameWarpgroupParams& p, const Ring& ring) {
    const Conv3dParams& c = p.conv;
    const int taps_of_frame = c.kernel_height * c.kernel_width;
    RingState place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const FrameTile t = frame_tile<kTileM>(p, number);
        const SeenFrames taps(c, t.frame);
#pragma unroll 1
        for (int frame = taps.first; frame < taps.end; ++frame) {
#pragma unroll 1
            for (int block = 0; block < p.channel_blocks; ++block) {
#pragma unroll 1
                for (int tap = 0; tap < taps_of_frame; ++tap) {
                    Barrier* const full = ring.begin_filling(place, kTileN * kTileRowBytes);
                    tma_load_box<3>(
                        ring.at(place), p.filters, full,
                        {block * kChannels, frame * taps_of_frame + tap, t.group * p.frame.group_filters + t.first_filter});
                    place.advance(ring.stages);
                }
            }
        }
    }
}

}  // namespace hipconv
