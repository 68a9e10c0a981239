// The TMA producers: one thread loads boxes of filters, another one boxes of x, each as far ahead of the consumers as its ring
// is long, across tiles too. Both know their first box before the kernel before has ended.
#pragma once

#include "../gemm/ring.h"
#include "matrix/cluster.h"
#include "tile_scheduler.h"

namespace hipconv {

// Two waves take turns at the steps of a ring: issuing a step takes longer than a small tile is multiplied.
struct Turns {
    bool is_mine, alternate;

    HIPCONV_INLINE bool next() {
        const bool mine = is_mine;
        if (alternate) is_mine = !is_mine;
        return mine;
    }
};

// One thread loads a box of filters for each step: the channels of a row of LDS, for a tap. Of split f32 there are two boxes.
template <typename T, int kTileM, int kTileN>
HIPCONV_INLINE void produce_filters(const WarpgroupGemmParams& p, const Ring& ring, Turns turns) {
    RingState place;
    const bool is_shared = p.shared == Shared::filters;
    const int half = is_shared ? rank_of_block(p) * (kTileN / 2) : 0;  // the first filter of a tile that this block loads
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        const KBlock first(p, t.first_k_block);
        int channel_block = first.channel_block, tap = first.tap;
        const int steps = (t.end_k_block - t.first_k_block) * p.taps_per_k_block;
        if (number == static_cast<int>(blockIdx.x)) wait_for_kernel_before();
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            if (turns.next()) {
                Barrier* const full = ring.begin_filling(place, kParts<T> * kTileN * kTileRowBytes);
#pragma unroll
                for (int part = 0; part < kParts<T>; ++part) {
                    Words4* const to = ring.at(place) + (part * kTileN + half) * kTileChunks;
                    const int at[] = {(channel_block * kParts<T> + part) * kRowChannels<T>, tap,
                                      t.group * p.gemm.group_filters + t.first_filter + half};
                    if (is_shared)
                        tma_load_box_to_both(to, p.filters, full, at);
                    else
                        tma_load_box(to, p.filters, full, at);
                }
            }
            place.advance(ring.stages);
            if (++tap == p.gemm.taps) {
                tap = 0;
                ++channel_block;
            }
        }
    }
}

// Loads x of a k-block: a patch, or the same tap of consecutive pixels (im2col); with kPlanes, boxes of 128 bytes of pixels of
// an image, by channels. Of im2col that blocks share, `t` begins at the half that this one loads.
template <typename T, int kTileM, bool kPlanes>
HIPCONV_INLINE void load_x(const WarpgroupGemmParams& p, const WarpgroupTile& t, const KBlock& f, const Ring& ring,
                           RingState place, int bytes) {
    const Conv2dParams& c = p.gemm.conv;
    const int first = kParts<T> * (t.group * p.gemm.group_channels + f.channel_block * kRowChannels<T>);
    Barrier* const full = ring.begin_filling(place, bytes);
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
            const int at[] = {first + part * kRowChannels<T>, t.column * c.stride_w - c.pad_left,
                              t.row * c.stride_h - c.pad_top, t.image};
            const int row = f.row * c.dilation_h, column = f.column * c.dilation_w;
            if (p.patches)
                tma_load_box(to, p.x, full, at);  // of stride 1
            else if (p.shared == Shared::x)
                tma_load_im2col_to_both(to + rank_of_block(p) * (kTileM / 2 * kTileChunks), p.x, full, at, row, column);
            else
                tma_load_im2col(to, p.x, full, at, row, column);
        }
    }
}

// One thread loads x for each k-block.
template <typename T, int kTileM, bool kPlanes>
HIPCONV_INLINE void produce_x(const WarpgroupGemmParams& p, const Ring& ring, Turns turns) {
    const int rows = kPlanes || !p.patches        ? kTileM
                     : p.patch_columns == kNarrow ? patch_rows(kTileM, kNarrow)
                                                  : patch_rows(kTileM, kWide);
    const int bytes = (kPlanes ? 1 : kParts<T>)*rows * kTileRowBytes;
    RingState place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        if (!kPlanes && p.shared == Shared::x) t.begin_at(p.gemm, t.first_pixel + rank_of_block(p) * (kTileM / 2));
        KBlock f(p, t.first_k_block);
        if (number == static_cast<int>(blockIdx.x)) wait_for_kernel_before();
#pragma unroll 1
        for (int k_block = t.first_k_block; k_block < t.end_k_block; ++k_block) {
            if (turns.next()) load_x<T, kTileM, kPlanes>(p, t, f, ring, place, bytes);
            f.advance(p);
            place.advance(ring.stages);
        }
    }
}

}  // namespace hipconv
