// The TMA producers: one thread loads boxes of filters, another one boxes of x, each as far ahead of the consumers as its ring
// is long, across tiles too.
#pragma once

#include "../gemm/ring.h"
#include "tile_scheduler.h"

namespace hipconv {

// One thread loads a box of filters for each step: the channels of a row of LDS, for a tap. Of split f32 there are two boxes.
template <typename T, int kTileM, int kTileN>
HIPCONV_INLINE void produce_filters(const WarpgroupGemmParams& p, const Ring& ring) {
    RingState place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        const KBlock first(p, t.first_k_block);
        int channel_block = first.channel_block, tap = first.tap;
        const int steps = (t.end_k_block - t.first_k_block) * p.taps_per_k_block;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            Barrier* const full = ring.begin_filling(place, kParts<T> * kTileN * kTileRowBytes);
#pragma unroll
            for (int part = 0; part < kParts<T>; ++part)
                tma_load_box(ring.at(place) + part * kTileN * kTileChunks, p.filters, full,
                             {(channel_block * kParts<T> + part) * kRowChannels<T>, tap,
                              t.group * p.gemm.group_filters + t.first_filter});
            place.advance(ring.stages);
            if (++tap == p.gemm.taps) {
                tap = 0;
                ++channel_block;
            }
        }
    }
}

// One thread loads a box of x for each k-block: a patch, or the same tap of consecutive pixels (im2col); with kPlanes, boxes of
// 128 bytes of pixels of an image, by channels.
template <typename T, int kTileM, bool kPlanes>
HIPCONV_INLINE void produce_x(const WarpgroupGemmParams& p, const Ring& ring) {
    const Conv2dParams& c = p.gemm.conv;
    const int rows = !p.patches ? kTileM : p.patch_columns == kNarrow ? patch_rows(kTileM, kNarrow) : patch_rows(kTileM, kWide);
    RingState place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        KBlock f(p, t.first_k_block);
#pragma unroll 1
        for (int k_block = t.first_k_block; k_block < t.end_k_block; ++k_block) {
            const int first = kParts<T> * (t.group * p.gemm.group_channels + f.channel_block * kRowChannels<T>);
            Barrier* const full =
                ring.begin_filling(place, kPlanes ? kTileM * kTileRowBytes : kParts<T> * rows * kTileRowBytes);
            if constexpr (kPlanes) {
                constexpr int kBoxPixels = kRowChannels<T>;  // a row holds as many as of channels
#pragma unroll 1
                for (int i = 0; i < kTileM / kBoxPixels; ++i) {
                    const int number = t.first_pixel + i * kBoxPixels, unit = number / kWarpgroupPixels;
                    const int image = static_cast<int>(divide(unit, p.gemm.divide_by_patches));
                    const int pixel = number - image * p.gemm.patches_across * kWarpgroupPixels;
                    tma_load_box(ring.at(place) + i * kRowChannels<T> * kTileChunks, p.x, full, {pixel, first, image});
                }
            } else {
#pragma unroll
                for (int part = 0; part < kParts<T>; ++part) {
                    Words4* const to = ring.at(place) + part * (ring.chunks / kParts<T>);
                    const int channel = first + part * kRowChannels<T>;
                    if (p.patches)
                        tma_load_box(to, p.x, full, {channel, t.column - c.pad_left, t.row - c.pad_top, t.image});
                    else
                        tma_load_im2col(to, p.x, full,
                                        {channel, t.column * c.stride_w - c.pad_left, t.row * c.stride_h - c.pad_top, t.image},
                                        f.row * c.dilation_h, f.column * c.dilation_w);
                }
            }
            f.advance(p);
            place.advance(ring.stages);
        }
    }
}

}  // namespace hipconv
