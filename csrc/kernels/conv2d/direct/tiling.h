// This says how `direct` cuts a call: groups into bundles, filters into strips, pixels into tiles, and what fits LDS into
// passes.
#pragma once

#include "../gemm/layout.h"
#include "launch/bounds.h"
#include "params.h"

namespace hipconv {

// The groups that are one product of matrices.
struct Bundling {
    int64_t merged, channels, filters, count;  // merged: groups of a bundle
    bool vectors, windows;                     // how x is read
    int64_t chunks, taps;                      // of the whole sum
};

inline Bundling bundling_of(const Conv2dParams& p) {
    const int64_t group_channels = p.in_channels / p.groups, group_filters = p.out_channels / p.groups;
    const int64_t taps = static_cast<int64_t>(p.kernel_height) * p.kernel_width;
    const bool aligned = (p.x.channel_stride == 1 || p.in_channels == 1) && p.in_channels % kChunkElements == 0 &&
                         is_aligned(p.x.data) && multiple_of(p.x.column_stride, p.in_width, kChunkElements) &&
                         multiple_of(p.x.row_stride, p.in_height, kChunkElements) &&
                         multiple_of(p.x.batch_stride, p.batch, kChunkElements);
    // The bundle with the fewest products, padding included; of those, the largest.
    Bundling best{};
    int64_t least = -1;
    for (int64_t merged = 1; merged <= p.groups && merged <= 16; ++merged) {
        const int64_t channels = merged * group_channels, filters = merged * group_filters;
        if (merged > 1 && filters > 2 * kAtomFilters) break;
        const bool vectors = aligned && (channels % kChunkElements == 0 || p.groups == 1);
        const int64_t chunks = ceil_of(channels, kChunkElements), strips = ceil_of(filters, kAtomFilters);
        const int64_t products = ceil_of(p.groups, merged) * strips * chunks * (aligned && !vectors ? 2 : 1);
        if (least >= 0 && products > least) continue;
        least = products;
        best = {merged, channels, filters, ceil_of(p.groups, merged), vectors, false, chunks, taps};
    }
    const int64_t window_chunks = ceil_of(static_cast<int64_t>(p.kernel_width) * group_channels, kChunkElements);
    if (p.groups == 1 && !best.vectors && p.kernel_height * window_chunks < taps * best.chunks) {
        best.windows = true;
        best.chunks = window_chunks;
        best.taps = p.kernel_height;
    }
    return best;
}

// Rows and columns of x from a patch's one to the next, and what pixels and taps are apart in the patch.
struct PatchSteps {
    int64_t step, of_pixel, of_tap, phases;
};
inline PatchSteps patch_steps(int64_t taps, int64_t stride, int64_t dilation) {
    if (taps == 1) return {stride, 1, 0, 1};
    return {1, stride, dilation, stride};
}

struct DirectTiling {
    int64_t images = 0, rows = 0, columns = 0;  // of a block's pixels; zero: nothing fits LDS
    int64_t chunks = 0, passes = 0;
};

// A tile takes this of LDS.
struct DirectLds {
    int64_t patch_rows, patch_columns, phase_columns, pitch, slots, slot_bytes, pixels_begin, rows_begin, columns_begin,
        patch_begin, bytes;
};

inline DirectLds lds_of(const Conv2dParams& p, const Bundling& b, const DirectTiling& t, int64_t block_bundles, int64_t tile_m,
                        int64_t scratch_bytes) {
    const PatchSteps down = patch_steps(p.kernel_height, p.stride_h, p.dilation_h);
    const PatchSteps across =
        b.windows ? PatchSteps{p.stride_w, 1, 0, 1} : patch_steps(p.kernel_width, p.stride_w, p.dilation_w);
    DirectLds l{};
    l.patch_rows = (t.rows - 1) * down.of_pixel + (p.kernel_height - 1) * down.of_tap + 1;
    l.patch_columns = (t.columns - 1) * across.of_pixel + (b.windows ? 0 : (p.kernel_width - 1) * across.of_tap) + 1;
    l.phase_columns = ceil_of(l.patch_columns, across.phases);
    l.pitch = l.phase_columns * across.phases;
    l.slots = t.images * l.patch_rows * l.pitch;
    l.slot_bytes = (block_bundles * t.chunks | 1) * 16;  // odd: neighbouring pixels are in different banks
    l.pixels_begin = round_up((round_up(b.taps * t.chunks, kMostStepChunks) + kMostStepChunks) * 4, 16);
    l.rows_begin = l.pixels_begin + 8 * tile_m;  // the scratch of the epilogue begins here, too
    l.columns_begin = l.rows_begin + 8 * t.images * l.patch_rows;
    l.patch_begin = round_up(l.columns_begin + 8 * l.patch_columns * (b.windows ? p.kernel_width : 1), 16);
    l.bytes = l.slots * l.slot_bytes + l.patch_begin;
    if (l.bytes < l.rows_begin + scratch_bytes) l.bytes = l.rows_begin + scratch_bytes;
    return l;
}

// The strips of a plan's tile.
struct DirectStrips {
    int64_t filters, of_bundle, block_strips, block_bundles, bundle_blocks, threads;
};

inline DirectStrips strips_of(const Bundling& b, int64_t tile_m, int64_t tile_n) {
    DirectStrips s{};
    s.filters = b.filters > kAtomFilters && tile_n > kAtomFilters ? 2 * kAtomFilters : kAtomFilters;
    s.of_bundle = ceil_of(b.filters, s.filters);
    s.block_strips = tile_n / s.filters;
    s.block_bundles = s.block_strips / s.of_bundle;
    if (s.block_bundles > b.count) s.block_bundles = b.count;
    if (s.block_bundles < 1) s.block_bundles = 1;
    if (s.block_strips > s.block_bundles * s.of_bundle) s.block_strips = s.block_bundles * s.of_bundle;
    s.bundle_blocks = s.block_bundles > 1 ? 1 : ceil_of(s.of_bundle, s.block_strips);
    s.threads = tile_m / kPartPixels * s.block_strips * 32;
    return s;
}

// Tells whether so many pixels of a tile, from a multiple of them on, are as many elements of one row of memory, or of rows
// without a gap, all in out or none.
inline bool has_runs(const Conv2dParams& p, const DirectTiling& t, int64_t of) {
    if (t.columns % of == 0) return p.out_width % of == 0;
    return t.columns == p.out_width && t.rows * t.columns % of == 0 && p.out_height * t.columns % of == 0;
}

// The tile of tile_m pixels, and the passes, that cost least: instructions of a wave, estimated.
inline DirectTiling direct_tiling(const Conv2dParams& p, const Bundling& b, const DirectStrips& s, int64_t tile_m,
                                  bool along_filters) {
    const int64_t parts = tile_m / kPartPixels * s.block_strips, atoms = s.filters / kAtomFilters;
    const int64_t scratch = s.threads / 32 * direct_scratch_bytes(static_cast<int>(s.filters));
    // A tile's pixels have 32-bit offsets in out.
    const auto within = [](int64_t stride) { return 1 + (kLimit31 / 4) / (stride > 0 ? stride : 1); };
    DirectTiling best{};
    double least = 0;
    for (int64_t pieces = 1; pieces <= p.out_width && pieces <= 4096; pieces = pieces < 8 ? pieces + 1 : 2 * pieces) {
        DirectTiling t{};
        t.columns = ceil_of(p.out_width, pieces);
        if (t.columns > smaller(tile_m, within(p.out.column_stride))) continue;
        if (best.rows > 0 && t.columns < 4) break;
        const int64_t most = smaller(smaller<int64_t>(tile_m / t.columns, p.out_height), within(p.out.row_stride));
        const int64_t balanced = ceil_of(p.out_height, ceil_of(p.out_height, most));
        for (t.passes = 1; t.passes <= (s.block_bundles == 1 ? b.chunks : 1);
             t.passes = t.passes < b.chunks && 2 * t.passes > b.chunks ? b.chunks : 2 * t.passes) {
            t.chunks = ceil_of(b.chunks, t.passes);
            t.images = 1;
            t.rows = 1;
            const auto fits = [&] { return lds_of(p, b, t, s.block_bundles, tile_m, scratch).bytes <= kDirectLds; };
            const DirectLds row = lds_of(p, b, t, s.block_bundles, tile_m, scratch);
            if (row.bytes > kDirectLds) continue;
            const int64_t more_lines = (kDirectLds - row.bytes) / (row.pitch * row.slot_bytes + 8);
            const PatchSteps down = patch_steps(p.kernel_height, p.stride_h, p.dilation_h);
            t.rows = 1 + more_lines / down.of_pixel < balanced ? 1 + more_lines / down.of_pixel : balanced;
            while (t.rows > 1 && !fits()) --t.rows;
            if (t.rows == p.out_height && t.columns == p.out_width) {
                const int64_t room = smaller(tile_m / (t.rows * t.columns), within(p.out.batch_stride));
                t.images = room < p.batch ? room : p.batch;
                while (t.images > 1 && !fits()) --t.images;
            }
            const DirectLds l = lds_of(p, b, t, s.block_bundles, tile_m, scratch);
            const double tiles = static_cast<double>(ceil_of(p.batch, t.images)) *
                                 static_cast<double>(ceil_of(p.out_height, t.rows)) *
                                 static_cast<double>(ceil_of(p.out_width, t.columns));
            const double steps = static_cast<double>(t.passes * ceil_of(b.taps * t.chunks, 2));
            const double staged =
                static_cast<double>(t.images * l.patch_rows * l.patch_columns * s.block_bundles * t.chunks * t.passes);
            const double storing = along_filters || has_runs(p, t, 8) ? 100.0 : has_runs(p, t, 4) ? 160.0 : 300.0;
            const double cost =
                tiles * (static_cast<double>(parts) * (steps * (8.0 + 8.0 * static_cast<double>(atoms)) + storing) +
                         staged * (b.vectors ? 0.8 : 2.5) + 300.0 * static_cast<double>(t.passes));
            if (best.rows == 0 || cost < least) {
                least = cost;
                best = t;
            }
            if (t.rows == balanced) break;  // more passes would gain nothing
        }
    }
    return best;
}

}  // namespace hipconv
