// The producers: a thread each that asks the copy engine for boxes of filters and of x.
#pragma once

#include "ring.h"
#include "tile_scheduler.h"

namespace hipconv {

// One thread: a box of filters a step.
template <int kTileM, int kTileN>
HIPCONV_INLINE void bring_filters(const WarpgroupGemmParams& p, const Ring& ring) {
    RingPlace place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        const Filling first(p, t.first_filling);
        int turn = first.turn, tap = first.tap;
        const int steps = (t.end_filling - t.first_filling) * p.taps_a_filling;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            wait_for(&ring.free[place.stage], place.parity ^ 1);
            arrive_expecting(&ring.full[place.stage], kTileN * kTileRowBytes);
            copy_box(ring.at(place), p.filters, &ring.full[place.stage],
                     {turn * 64, tap, t.group * p.gemm.group_filters + t.first_filter});
            place.advance(ring.stages);
            if (++tap == p.gemm.taps) {
                tap = 0;
                ++turn;
            }
        }
    }
}

// One thread: a box of x a filling.
template <int kTileM>
HIPCONV_INLINE void bring_x(const WarpgroupGemmParams& p, const Ring& ring) {
    const Conv2dParams& c = p.gemm.conv;
    RingPlace place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        Filling f(p, t.first_filling);
#pragma unroll 1
        for (int filling = t.first_filling; filling < t.end_filling; ++filling) {
            Barrier* const full = &ring.full[place.stage];
            const int channel = t.group * p.gemm.group_channels + f.turn * 64;
            wait_for(&ring.free[place.stage], place.parity ^ 1);
            arrive_expecting(full, (p.patches ? patch_rows(kTileM, kNarrow) : kTileM) * kTileRowBytes);
            if (p.patches)
                copy_box(ring.at(place), p.x, full, {channel, t.column - c.pad_left, t.row - c.pad_top, t.image});
            else
                copy_pixels(ring.at(place), p.x, full,
                            {channel, t.column * c.stride_w - c.pad_left, t.row * c.stride_h - c.pad_top, t.image},
                            f.row * c.dilation_h, f.column * c.dilation_w);
            f.advance(p);
            place.advance(ring.stages);
        }
    }
}

}  // namespace hipconv
