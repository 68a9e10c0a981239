// The host side of the warpgroup GEMM: what it serves, its workspace and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "cluster_split_k.h"
#include "launch/compute_units.h"
#include "params.h"
#include "split_plan.h"
#include "tensor_maps.h"

namespace hipconv {

namespace {

// The plan with the tile of one turn in place of that of two.
Conv2dPlan of_a_turn(Conv2dPlan plan) {
    plan.tile_m = pixels_of_turn(plan.tile_m);
    return plan;
}

const char* refusal_of_tile(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& chosen) {
    const Conv2dPlan plan = of_a_turn(chosen);
    const XSource source = x_source_of(p, l, plan.tile_m);
    if (!source.serves)
        return "channels_last x with C / groups a multiple of 8 (f32: 4) and 16-byte alignment, or contiguous x and 1x1 taps "
               "of stride 1, with aligned images of a multiple of 8 pixels (f32: 4; with groups, C / groups a multiple "
               "of 32), or of 16-bit types and 3x3 taps of stride 1, with aligned rows";
    if (chosen.tile_m != 128 && !source.by_tma)  // with 256 registers would spill; 64 are not enough work to gather for
        return "by tiles of 64 or 256 pixels channels_last x, or contiguous x and 1x1 taps";
    const int64_t tiles = ceil_of(l.image_pixels * p.batch, plan.tile_m) * ceil_of(l.group_filters, plan.tile_n) * p.groups;
    if (tiles * 2 * plan.split_k >= kLimit31) return "up to 2^30 tiles";  // of patches there are up to 5/4
    return refusal_of_split(plan, l, k_blocks_of(l, source));
}

// TMA takes much longer for rows that begin inside a sector of memory. Blocks that are to read the same ones share them.
Shared shared_of(const Conv2dParams& p, const GemmLayout& l, const WarpgroupGemmParams& g, const XSource& source,
                 const Split& split) {
    constexpr int kSector = 32;
    const auto begin_inside = [&](int64_t stride, int64_t size) { return size > 1 && stride % kSector != 0; };
    if (!source.by_tma || split.parts > 1 || p.groups > 1) return Shared::nothing;
    const bool reads_runs = !source.has_patches() && source.columns != kOfImages;
    if (reads_runs && g.gemm.tiles_n % 2 == 0 &&
        (begin_inside(p.x.column_stride * l.element, p.in_width) || begin_inside(p.x.row_stride * l.element, p.in_height)))
        return Shared::x;
    const bool filters_do = begin_inside(l.filter_stride, p.out_channels) || begin_inside(l.filter_tap, l.taps);
    return filters_do && split.tiles > g.gemm.tiles_n ? Shared::filters : Shared::nothing;
}

auto launcher_of_tf32(const XSource& source) {
    return source.columns == kOfImages ? launch_warpgroup_gemm<tf32, true, true> : launch_warpgroup_gemm<tf32, true>;
}

template <typename T>
auto launcher_of_halves(const XSource& source) {
    return source.columns == kOfImages ? launch_warpgroup_gemm<T, true, true>
           : source.by_tma             ? launch_warpgroup_gemm<T, true>
                                       : launch_warpgroup_gemm<T, false>;
}

}  // namespace

std::vector<Conv2dTile> conv2d_warpgroup_gemm_tiles(const std::string& arch, DType) {
    const bool emulated = arch == "wave32" && kHasWarpgroups;
    if (!kHasTensorMaps || !(arch == "sm_90" || emulated)) return {};
    return {{256, 128}, {128, 128}, {128, 64}, {64, 64}};
}

bool conv2d_runs_warpgroups() {
    if (!kHasTensorMaps || !kCopiesPastRegisters) return false;
    int device = 0, major = 0;
    (void)hipGetDevice(&device);
    (void)hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, device);
    return major == 9;
}

const char* conv2d_warpgroup_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32 && p.float32_precision != Float32Precision::tf32)
        return "x of 16-bit types, or of float32 that may be rounded to TF32";
    const GemmLayout l(p, false);
    if (p.padding_mode != PaddingMode::zeros) return "padding with zeros";
    if (l.image_pixels * p.batch >= kLimit31 - 256 || l.taps * l.chunks >= kLimit31 / kTileChunks)
        return "outputs of less than 2^31 pixels";
    if (l.filter_stride >= int64_t{1} << 40) return "filters of less than 1 TB";
    Conv2dPlan small = plan;
    if (small.tile_m == 0) small.tile_m = 128, small.tile_n = 64;
    return refusal_of_tile(p, l, small);
}

int64_t conv2d_warpgroup_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    const GemmLayout l(p, false);
    if (plan.split_k == 1) return l.packed_bytes;
    const Split split = split_of(p, l, of_a_turn(plan));
    return l.packed_bytes + split.sums_bytes + split.flags_bytes;
}

Conv2dPacking conv2d_warpgroup_gemm_packing(const Conv2dParams& p, const Conv2dPlan&) {
    return packing_of(p, GemmLayout(p, false));
}

void conv2d_warpgroup_gemm_pack(const Conv2dParams& p, const Conv2dPlan&, void* packed, void* stream) {
    pack_filters(p, GemmLayout(p, false), false, packed, stream);
}

void conv2d_warpgroup_gemm(const Conv2dParams& p, const Conv2dPlan& chosen, void* workspace, void* stream) {
    const Conv2dPlan plan = of_a_turn(chosen);
    const GemmLayout l(p, false);
    const bool splits = plan.algorithm == "split_warpgroup_gemm";  // then x and filters come in parts
    const int parts = splits ? 2 : 1;
    if (l.packed_bytes) pack_filters(p, l, true, workspace, stream);
    WarpgroupGemmParams g{};
    const XSource source = x_source_of(p, l, plan.tile_m);
    g.patches = source.has_patches();
    g.patch_columns = source.columns;
    g.patch_pitch = source.columns + kPatchTaps - 1;
    g.taps_per_k_block = g.patches ? static_cast<int32_t>(l.taps) : 1;
    g.divide_by_taps = divisor_of(static_cast<uint32_t>(l.taps));
    g.divide_by_taps_across = divisor_of(static_cast<uint32_t>(p.kernel_width));
    g.rows_of_64 = g.patches ? 64 / source.columns * g.patch_pitch : 64;
    g.group_bytes = (source.columns == kNarrow ? g.patch_pitch : 8) * kTileRowBytes;
    g.gemm = common_params(p, l, {plan.algorithm, plan.tile_m, plan.tile_n, 1}, {g.patches, g.patches ? source.columns : 0},
                           workspace);
    if (source.columns == kOfImages) {
        g.gemm.patches_across = static_cast<int32_t>(ceil_of(l.image_pixels, kWarpgroupPixels));
        g.gemm.divide_by_patches = divisor_of(static_cast<uint32_t>(g.gemm.patches_across));
        g.gemm.tiles_m = static_cast<int32_t>(
            ceil_of(static_cast<int64_t>(g.gemm.patches_across) * p.batch, plan.tile_m / kWarpgroupPixels));
        g.gemm.divide_by_tiles_m = divisor_of(static_cast<uint32_t>(g.gemm.tiles_m));
    }
    const Split split = split_of(p, l, plan);
    g.k_blocks = static_cast<int32_t>(split.k_blocks);
    g.k_blocks_per_part = static_cast<int32_t>(split.k_blocks_per_part);
    g.tiles_per_part = static_cast<int32_t>(split.tiles);
    g.tiles = g.tiles_per_part * split.parts;
    const int units = compute_units_here();
    g.shared = shared_of(p, l, g, source, split);
    if (g.shared == Shared::x) {
        g.gemm.tiles_n /= 2;
        g.gemm.divide_by_tiles_n = divisor_of(static_cast<uint32_t>(g.gemm.tiles_n));
    } else if (g.shared == Shared::filters) {  // two tiles of pixels each, of which the last may have none
        g.tiles = g.tiles_per_part = static_cast<int32_t>(ceil_of(split.tiles / g.gemm.tiles_n, 2) * 2 * g.gemm.tiles_n);
    }
    const WarpgroupShape shape = warpgroup_shape(plan.tile_m, plan.tile_n, source.by_tma, parts);
    // A cluster's blocks run on SMs that are near each other, so that not all SMs can be filled by clusters. Turns
    // make more sums than the way between SMs takes quickly.
    const int for_clusters = units - units / 4;
    const int sums_bytes = cluster_sums_bytes(plan.tile_m * plan.tile_n, split.parts);
    bool by_clusters = split.parts > 1 && split.parts <= kMostBlocksOfACluster && !has_turns(chosen.tile_m) &&
                       g.tiles <= for_clusters * shape.blocks_per_unit;
    const auto is_alone = [&] { return g.tiles <= (by_clusters ? for_clusters : units); };
    const auto stages = [&] {
        return shape.stages(source.has_patches() ? source.columns : 0, is_alone(), by_clusters ? sums_bytes : 0);
    };
    if (by_clusters && stages() < 2) by_clusters = false;  // the two waves that fill a ring need two
    g.is_alone = is_alone();
    // A warpgroup in turns may give its last stage back after the other gave the next ones. So their number is even, and
    // each is filled by the same one of the two waves that fill a ring: it has waited for what it filled there before, and
    // a barrier's phase, which only tells even from odd, is then one of two.
    g.stages = has_turns(chosen.tile_m) ? stages() & ~1 : stages();
    char* const memory = static_cast<char*>(workspace) + l.packed_bytes;
    g.split = {split.parts,
               small_divisor_of(split.parts),
               by_clusters,
               (shape.shared_bytes(g.is_alone) - sums_bytes) / 4,
               reinterpret_cast<float*>(memory),
               reinterpret_cast<uint64_t*>(memory + split.sums_bytes),
               flag_of_process()};
    g.tile_n = plan.tile_n;
    const BoxesOf boxes = g.gemm.along_filters ? BoxesOf::filters : BoxesOf::pixels;
    if (plan.split_k == 1 &&
        has_boxes(boxes, plan.tile_m, plan.tile_n, static_cast<int>(l.element), source.by_tma, source.columns == kOfImages)) {
        const bool by_tma = tma_stores(p, l, g);
        // Lanes that store 16-bit pixels one by one are faster from boxes in the smallest tiles only.
        g.boxes_by_lanes = !by_tma && lanes_store(p, l, g) && (l.element == 4 || plan.tile_m == 64);
        if (by_tma || g.boxes_by_lanes) g.boxes = boxes;
        if (by_tma) g.out = make_tensor_map(spec_of_out(p, l, g));
    }
    if (source.by_tma) g.x = make_tensor_map(spec_of_x(p, g, plan.tile_m, parts));
    g.filters = make_tensor_map(
        spec_of_filters(p, l, l.filters(p, workspace), g.shared == Shared::filters ? plan.tile_n / 2 : plan.tile_n, parts));
    const auto launch = splits                   ? launch_warpgroup_gemm<split_f32, true>
                        : p.dtype == DType::f32  ? launcher_of_tf32(source)
                        : p.dtype == DType::bf16 ? launcher_of_halves<bf16>(source)
                                                 : launcher_of_halves<f16>(source);
    launch(g, {chosen.tile_m, plan.tile_n}, units, stream);
}

}  // namespace hipconv
