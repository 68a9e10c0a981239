// The host side of the warpgroup GEMM: what it serves, its tile, its workspace and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../common/volume_maps.h"
#include "params.h"

namespace hipconv {

namespace {

// A tile of so many pixels and filters, its blocks side by side in 1 << log2_block_columns columns.
struct FrameTiling {
    int tile_m, tile_n, log2_block_columns;

    int rows() const { return tile_m / kBlockSide >> log2_block_columns; }
    int columns() const { return kBlockSide << log2_block_columns; }
    int64_t patch_rows(const Conv3dParams& p) const {
        return int64_t{rows() + p.kernel_height - 1} * (columns() + p.kernel_width - 1);
    }
    int x_stages(const Conv3dParams& p) const { return FrameWarpgroupShape::x_stages(p.kernel_height * p.kernel_width); }
    int filter_stages(const Conv3dParams& p) const {
        return FrameWarpgroupShape{tile_m, tile_n}.filter_stages(patch_bytes(p), x_stages(p));
    }
    int patch_bytes(const Conv3dParams& p) const { return static_cast<int>(round_up(patch_rows(p) * kTileRowBytes, 1024)); }
    int64_t of_frame(const Conv3dParams& p) const { return ceil_of(p.out_height, rows()) * ceil_of(p.out_width, columns()); }
    int64_t tiles(const Conv3dParams& p) const {
        return of_frame(p) * ceil_of(p.out_channels / p.groups, tile_n) * p.out_frames * p.groups * p.batch;
    }
    bool fits(const Conv3dParams& p) const {
        const int64_t rows_of_box = rows() + p.kernel_height - 1, columns_of_box = columns() + p.kernel_width - 1;
        return rows_of_box <= 256 && columns_of_box <= 256 && patch_rows(p) <= 1024 && filter_stages(p) >= 2;
    }
};

constexpr FrameTiling kTilings[] = {{256, 128, 1}, {256, 128, 0}, {256, 128, 2}, {384, 96, 1}, {256, 96, 1},  {256, 96, 0},
                                    {256, 96, 2},  {256, 32, 1},  {256, 32, 0},  {256, 32, 2}, {128, 128, 1}, {128, 128, 0}};

// The tiling that takes least time: rounds of tiles over the units, each as long as its products; of 32 filters, as reading its
// pixels from LDS, which makes it two thirds as long as one of 96. None fits: tile_m is 0.
FrameTiling tiling_of(const Conv3dParams& p, const Conv3dCard& card) {
    FrameTiling best{};
    double least = 0;
    for (const FrameTiling& t : kTilings) {
        if (!t.fits(p)) continue;
        const int64_t rounds = ceil_of(t.tiles(p), card.compute_units);
        const double cost =
            static_cast<double>(rounds) * t.tile_m * (t.tile_n == 32 ? 66 : t.tile_n + 4) * (t.tile_m == 128 ? 1.06 : 1.0);
        if (best.tile_m == 0 || cost < least) best = t, least = cost;
    }
    return best;
}

TensorMapSpec spec_of_filters(const Conv3dParams& p, const FilterLayout& l, const void* data, int tile_n) {
    TensorMapSpec t{};
    t.dtype = p.dtype;
    t.data = data;
    t.rank = 3;
    t.sizes[0] = l.packs ? l.chunks * 8 : p.in_channels / p.groups, t.sizes[1] = l.taps, t.sizes[2] = p.out_channels;
    t.strides[0] = 2, t.strides[1] = l.taps == 1 ? 16 : l.tap_bytes, t.strides[2] = p.out_channels == 1 ? 16 : l.filter_stride;
    t.box[0] = kChannels, t.box[1] = 1, t.box[2] = tile_n;
    return t;
}

}  // namespace

const char* conv3d_warpgroup_gemm_refusal(const Conv3dParams& p, const Conv3dCard& card) {
    if (!has_warpgroups(card.arch)) return "sm_90";
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (const char* served = FrameEdges(p).refusal(p)) return served;
    if (p.stride_h != 1 || p.stride_w != 1 || p.dilation_h != 1 || p.dilation_w != 1)
        return "stride 1 and dilation 1 along rows and columns";
    const int64_t channels = p.in_channels / p.groups;
    if (channels % 8 != 0 || (p.groups > 1 && channels % kChannels != 0)) return "C a multiple of 8, or C / groups one of 64";
    if (!fits_tma(p, p.x, p.in_frames) || !fits_tma(p, p.cache, p.cached))
        return "x and cache in channels_last_3d memory, with 16-byte alignment";
    const FrameTiling tiling = tiling_of(p, card);
    if (tiling.tile_m == 0) return "filters whose taps across leave room in LDS, such as 7 x 7";
    if (tiling.tiles(p) >= kLimit31 / 2) return "up to 2^30 tiles";
    if (FilterLayout(p, false).filter_stride >= int64_t{1} << 40) return "filters of less than 1 TB";
    return nullptr;
}

const char* conv3d_warpgroup_gemm_form(const Conv3dParams& p, const Conv3dCard& card) {
    const FrameTiling t = tiling_of(p, card);
    return t.tile_m == 128   ? "warpgroup_gemm_128x128"
           : t.tile_m == 384 ? "warpgroup_gemm_384x96"
           : t.tile_n == 128 ? "warpgroup_gemm_256x128"
           : t.tile_n == 96  ? "warpgroup_gemm_256x96"
                             : "warpgroup_gemm_256x32";
}

int64_t conv3d_warpgroup_gemm_workspace(const Conv3dParams& p, const Conv3dCard&) {
    return FilterLayout(p, false).packed_bytes;
}

void conv3d_warpgroup_gemm(const Conv3dParams& p, const Conv3dCard& card, void* workspace, void* stream) {
    const FilterLayout l(p, false);
    if (l.packs) conv3d_pack_filters(p, workspace, stream);
    conv3d_launch_warpgroups(p, l, l.packs ? workspace : p.weight.data, card, stream);
}

void conv3d_launch_warpgroups(const Conv3dParams& all, const FilterLayout& l, const void* filters, const Conv3dCard& card,
                              void* stream) {
    launch_samples(all, [&](const Conv3dParams& p) {
        const FrameTiling tiling = tiling_of(p, card);
        FrameWarpgroupParams g{};
        g.conv = p;
        g.frames_of_sample = frames_of_sample(p);
        g.save = save_plan(p);
        g.frame = frame_gemm_params(p, tiling.tile_m, tiling.tile_n);
        g.frame.tiles_m = static_cast<int32_t>(tiling.of_frame(p));
        g.frame.divide_by_tiles_m = divisor_of(static_cast<uint32_t>(g.frame.tiles_m));
        if (!g.frame.along_filters) {  // runs of eight pixels are rows of a block
            g.frame.vector_stores = g.frame.vector_stores && p.out_width % 8 == 0;
            g.frame.pair_stores = g.frame.pair_stores && p.out_width % 2 == 0;
        }
        g.tile_n = tiling.tile_n;
        g.log2_block_columns = tiling.log2_block_columns;
        g.pitch = tiling.columns() + p.kernel_width - 1;
        g.patch_rows = static_cast<int32_t>(tiling.patch_rows(p));
        g.patch_chunks = tiling.patch_bytes(p) / 16;
        g.x_stages = tiling.x_stages(p);
        g.filter_stages = tiling.filter_stages(p);
        g.tiles_across = static_cast<int32_t>(ceil_of(p.out_width, tiling.columns()));
        g.tiles = static_cast<int32_t>(tiling.tiles(p));
        g.divide_by_across = divisor_of(static_cast<uint32_t>(g.tiles_across));
        g.divide_by_frames = divisor_of(static_cast<uint32_t>(p.out_frames));
        g.divide_by_groups = divisor_of(static_cast<uint32_t>(p.groups));
        const int64_t channels = p.in_channels / p.groups;
        g.channel_blocks = static_cast<int32_t>(ceil_of(channels, kChannels));
        g.first_landed = FrameEdges(p).any() ? kFirstLanded : 0;
        g.ends_early = channels - (g.channel_blocks - 1) * kChannels <= kChannels / 2;
        const int patch_rows = tiling.rows() + p.kernel_height - 1;
        if (p.in_frames) g.x = make_tensor_map(volume_map(p, p.x, p.in_frames, patch_rows, g.pitch));
        if (p.cached) g.cache = make_tensor_map(volume_map(p, p.cache, p.cached, patch_rows, g.pitch));
        g.filters = make_tensor_map(spec_of_filters(p, l, filters, tiling.tile_n));
        const auto launch = p.dtype == DType::bf16 ? launch_frame_warpgroups<bf16> : launch_frame_warpgroups<f16>;
        launch(g, tiling.tile_m, tiling.tile_n, card.compute_units, stream);
    });
}

}  // namespace hipconv
