// The host side of `direct`: what it serves, its tiles, its parameters and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../common/units.h"
#include "launch/check.h"
#include "tiling.h"

namespace hipconv {

namespace {

constexpr Conv2dTile kTiles[] = {{512, 16}, {512, 32}, {256, 16}, {256, 32}, {256, 64},
                                 {128, 16}, {128, 32}, {128, 64}, {128, 128}};

// All that a launch needs beside the memory of tensors.
struct Direct {
    Bundling bundling;
    DirectStrips strips;
    DirectTiling tiling;
    DirectLds lds;
    bool along_filters;
    int64_t scratch, entries, strip_vectors, packed_bytes, pixel_tiles, filter_blocks;

    Direct(const Conv2dParams& p, const Conv2dPlan& plan) : bundling(bundling_of(p)) {
        const Bundling& b = bundling;
        strips = strips_of(b, plan.tile_m, plan.tile_n);
        scratch = strips.threads / 32 * direct_scratch_bytes(static_cast<int>(strips.filters));
        along_filters = p.out.channel_stride < p.out.column_stride && b.filters >= 4;
        tiling = direct_tiling(p, b, strips, plan.tile_m, along_filters);
        const DirectTiling& t = tiling;
        if (t.rows == 0) return;
        lds = lds_of(p, b, t, strips.block_bundles, plan.tile_m, scratch);
        entries = round_up(b.taps * t.chunks, kMostStepChunks);
        strip_vectors = t.passes * entries * strips.filters;
        const int64_t vectors = b.count * strips.of_bundle * strip_vectors + kMostStepChunks * strips.filters;
        packed_bytes = round_up(vectors * 16, 256);
        pixel_tiles = ceil_of(p.batch, t.images) * ceil_of(p.out_height, t.rows) * ceil_of(p.out_width, t.columns);
        filter_blocks = strips.block_bundles > 1 ? ceil_of(b.count, strips.block_bundles) : b.count * strips.bundle_blocks;
    }
};

const char* refusal_of_tile(const Conv2dParams& p, const Conv2dPlan& plan) {
    const Bundling b = bundling_of(p);
    const DirectStrips s = strips_of(b, plan.tile_m, plan.tile_n);
    if (s.threads > kDirectThreads) return "more than 16 filters at once only by tiles of more than 16 filters";
    const Direct d(p, plan);
    if (d.tiling.rows == 0) return "filters of which the pixels of a row fit LDS";
    if (d.packed_bytes >= kLimit31) return "filters of less than 2 GB, packed";
    if (d.pixel_tiles * d.filter_blocks * kDirectThreads >= kLimit32) return "up to 2^32 threads";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

DirectParams direct_params(const Conv2dParams& p, const Direct& d, int tile_m, void* filters) {
    const Bundling& b = d.bundling;
    const DirectStrips& s = d.strips;
    const DirectTiling& t = d.tiling;
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    const auto by = [](int64_t value) { return divisor_of(static_cast<uint32_t>(value)); };
    DirectParams g{};
    g.conv = p;
    g.filters = static_cast<Words4*>(filters);
    g.bundles = number(b.count), g.bundle_channels = number(b.channels), g.bundle_filters = number(b.filters);
    g.group_channels = p.in_channels / p.groups, g.group_filters = p.out_channels / p.groups;
    g.strip_filters = number(s.filters), g.strips = number(s.of_bundle);
    g.block_bundles = number(s.block_bundles), g.block_strips = number(s.block_strips);
    g.bundle_blocks = number(s.bundle_blocks), g.filter_blocks = number(d.filter_blocks);
    g.divide_by_filter_blocks = by(d.filter_blocks), g.divide_by_bundle_blocks = by(s.bundle_blocks);
    g.divide_by_strips = by(s.of_bundle);
    while (1 << g.log2_tile < tile_m) ++g.log2_tile;

    g.vectors = b.vectors, g.windows = b.windows;
    g.chunks = number(t.chunks), g.passes = number(t.passes);
    g.taps = number(b.taps), g.taps_across = b.windows ? 1 : p.kernel_width;
    g.entries = number(d.entries), g.strip_vectors = number(d.strip_vectors);

    g.tile_images = number(t.images), g.tile_rows = number(t.rows), g.tile_columns = number(t.columns);
    g.image_pixels = g.tile_rows * g.tile_columns;
    g.tiles_down = number(ceil_of(p.out_height, t.rows)), g.tiles_across = number(ceil_of(p.out_width, t.columns));
    g.divide_by_columns = by(t.columns), g.divide_by_image_pixels = by(g.image_pixels);
    g.divide_by_across = by(g.tiles_across), g.divide_by_down = by(g.tiles_down);

    const PatchSteps down = patch_steps(p.kernel_height, p.stride_h, p.dilation_h);
    const PatchSteps across =
        b.windows ? PatchSteps{p.stride_w, 1, 0, 1} : patch_steps(p.kernel_width, p.stride_w, p.dilation_w);
    g.patch_rows = number(d.lds.patch_rows), g.patch_columns = number(d.lds.patch_columns);
    g.patch_pitch = number(d.lds.pitch), g.image_slots = number(d.lds.patch_rows * d.lds.pitch);
    g.slot_bytes = number(d.lds.slot_bytes), g.slot_chunks = number(s.block_bundles * t.chunks);
    g.row_step = number(down.step), g.column_step = number(across.step);
    g.column_taps = b.windows ? p.kernel_width : 1, g.divide_by_column_taps = by(g.column_taps);
    g.phases = number(across.phases), g.phase_columns = number(d.lds.phase_columns);
    g.rows_a_pixel = number(down.of_pixel), g.columns_a_pixel = number(across.of_pixel);
    g.rows_a_tap = number(down.of_tap), g.columns_a_tap = number(across.of_tap);
    g.divide_by_chunks = by(t.chunks), g.divide_by_taps_across = by(g.taps_across);
    g.divide_by_patch_columns = by(g.patch_columns), g.divide_by_patch_rows = by(g.patch_rows);
    g.divide_by_phases = by(g.phases), g.divide_by_slot_chunks = by(g.slot_chunks);
    g.divide_by_strip_vectors = by(d.strip_vectors), g.divide_by_pass_vectors = by(d.entries * s.filters);
    g.divide_by_group_channels = by(g.group_channels), g.divide_by_group_filters = by(g.group_filters);
    g.patch_slots = number(t.images * d.lds.patch_rows * d.lds.patch_columns);
    g.pixels_begin = number(d.lds.pixels_begin), g.scratch_begin = number(d.lds.rows_begin);
    g.rows_begin = number(d.lds.rows_begin), g.columns_begin = number(d.lds.columns_begin);
    g.patch_begin = number(d.lds.patch_begin);

    g.out_image = t.images > 1 ? number(p.out.batch_stride) : 0;
    g.out_row = number(p.out.row_stride), g.out_column = number(p.out.column_stride);
    g.along_filters = d.along_filters;
    const auto aligned = [&](const Image& image, DType dtype, int64_t of) {
        const int64_t each = dtype == DType::f32 ? 4 : of;  // 16 bytes at most
        if (reinterpret_cast<uintptr_t>(image.data) % (each * element_bytes(dtype)) != 0) return false;
        if (!multiple_of(image.batch_stride, p.batch, each)) return false;
        if (g.along_filters)
            return (image.channel_stride == 1 || p.out_channels == 1) && multiple_of(image.row_stride, p.out_height, each) &&
                   multiple_of(image.column_stride, p.out_width, each);
        const bool of_rows = t.columns % of == 0;  // runs lie within a row
        return image.column_stride == 1 && multiple_of(image.channel_stride, p.out_channels, each) &&
               (of_rows ? multiple_of(image.row_stride, p.out_height, each)
                        : image.row_stride == p.out_width || p.out_height == 1);
    };
    g.store_each = 1;
    for (const int of : {4, 8}) {
        const bool runs = g.along_filters ? b.filters % of == 0 && p.out_channels % of == 0 : has_runs(p, t, of);
        if (runs && aligned(p.out, p.out_dtype, of) && (!p.residual.data || aligned(p.residual, p.residual_dtype, of)))
            g.store_each = of;
    }
    g.rounds_early = p.out_dtype != DType::f32 && !p.residual.data &&
                     (p.activation == Conv2dActivation::none || p.activation == Conv2dActivation::relu);
    return g;
}

}  // namespace

std::vector<Conv2dTile> conv2d_direct_tiles(const std::string& arch, DType dtype) {
    const bool old = starts_with(arch, "sm_") && std::atoi(arch.c_str() + 3) < 80;
    if (dtype == DType::f32 || unit_of(arch) == MatrixUnit::fma || old) return {};
    return {std::begin(kTiles), std::end(kTiles)};
}

const char* conv2d_direct_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    const int64_t reach = p.x.column_stride * p.in_width * 2;
    if (reach >= kLimit31 / 2 || reach < 0) return "rows of x of less than 2^30 bytes";
    if (p.in_height >= kLimit31 / 2 || p.in_width >= kLimit31 / 2) return "images of less than 2^30 rows and columns";
    if (plan.tile_m != 0) return refusal_of_tile(p, plan);
    Conv2dPlan small = plan;
    small.tile_m = 128, small.tile_n = 32;
    return refusal_of_tile(p, small);
}

int64_t conv2d_direct_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (plan.tile_m == 0 || p.packed_filters) return 0;
    return Direct(p, plan).packed_bytes;
}

Conv2dPacking conv2d_direct_packing(const Conv2dParams& p, const Conv2dPlan& plan) {
    const Direct d(p, plan);
    const Bundling& b = d.bundling;
    return {d.packed_bytes,
            {kDirectPacking, static_cast<int64_t>(kMatrixUnit), b.windows, b.count, b.channels, b.filters, b.taps,
             d.strips.filters, d.strips.of_bundle, d.tiling.chunks, d.tiling.passes, d.entries}};
}

void conv2d_direct_pack(const Conv2dParams& p, const Conv2dPlan& plan, void* packed, void* stream) {
    pack_direct_filters(direct_params(p, Direct(p, plan), plan.tile_m, packed), stream);
}

void conv2d_direct(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const Direct d(p, plan);
    void* const filters = p.packed_filters ? const_cast<void*>(p.packed_filters) : workspace;
    const DirectParams g = direct_params(p, d, plan.tile_m, filters);
    if (!p.packed_filters) pack_direct_filters(g, stream);
    launch_direct(g,
                  {static_cast<unsigned>(d.pixel_tiles * d.filter_blocks), static_cast<int>(d.strips.threads),
                   static_cast<int>(d.lds.bytes), !p.packed_filters},
                  stream);
}

}  // namespace hipconv
