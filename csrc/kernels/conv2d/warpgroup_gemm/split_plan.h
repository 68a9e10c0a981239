// This says how a call's sums are split (split-K), and the workspace that this takes.
#pragma once

#include <chrono>

#include "x_source.h"

namespace hipconv {

// The k-blocks of a tile.
inline int64_t k_blocks_of(const GemmLayout& l, const XSource& source) {
    return ceil_of(l.group_channels, l.row_channels) * (source.has_patches() ? 1 : l.taps);
}

// The parts of a split sum, none of which is empty (a block would have no sums), and the workspace that they take.
struct Split {
    int64_t k_blocks, k_blocks_per_part, tiles;
    int parts;
    int64_t sums_bytes, flags_bytes;
};

inline Split split_of(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    const XSource source = x_source_of(p, l, plan.tile_m);
    Split s{};
    s.k_blocks = k_blocks_of(l, source);
    s.k_blocks_per_part = ceil_of(s.k_blocks, plan.split_k);
    s.parts = static_cast<int>(ceil_of(s.k_blocks, s.k_blocks_per_part));
    const int64_t tiles_m = source.has_patches() ? ceil_of(p.out_width, source.columns) *
                                                       ceil_of(p.out_height, plan.tile_m / source.columns) * p.batch
                            : source.columns == kOfImages
                                ? ceil_of(ceil_of(l.image_pixels, kWarpgroupPixels) * p.batch, plan.tile_m / kWarpgroupPixels)
                                : ceil_of(l.image_pixels * p.batch, plan.tile_m);
    s.tiles = tiles_m * p.groups * ceil_of(l.group_filters, plan.tile_n);
    s.sums_bytes = split_k_sums_bytes(s.tiles, s.parts, plan.tile_m, plan.tile_n);
    s.flags_bytes = split_k_flags_bytes(s.tiles, s.parts, warpgroup_shape(plan.tile_m, plan.tile_n, true).consumers() / 32);
    return s;
}

// The flag of this process. It is odd and random, so that it equals no value that memory is commonly filled with.
static uint64_t flag_of_process() {
    static const uint64_t flag = [] {
        const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
        const uint64_t mixed = (now ^ reinterpret_cast<uintptr_t>(&now)) * 0x9e3779b97f4a7c15u;
        return (mixed ^ mixed >> 32) | 1;
    }();
    return flag;
}

}  // namespace hipconv
