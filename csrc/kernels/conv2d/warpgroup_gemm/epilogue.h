// The epilogue of a tile: its warpgroups store their sums.
#pragma once

#include "../gemm/warpgroup_epilogue.h"
#include "tile_scheduler.h"

namespace hipconv {

template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_sums(const WarpgroupGemmParams& p, const WarpgroupTile& t, const RowsOfOut<kBlocks>& rows,
                               const WarpgroupSums<kTileN> (&sums)[kBlocks], const float (&lane_bias)[kTileN / 32],
                               float* epilogue_tiles, int thread) {
    const auto pixels_from = [&](int first) { return WarpgroupPixels{p.patch_columns, t, first}; };
    store_warpgroup_sums<T>(p.gemm, t.group, t.first_filter, t.part, pixels_from, rows, sums, lane_bias, epilogue_tiles,
                            thread);
}

}  // namespace hipconv
