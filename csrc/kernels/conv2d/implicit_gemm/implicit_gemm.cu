// The host side of the implicit GEMM: the tiles of an architecture, what it serves, its parameters and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../common/units.h"
#include "../gemm/layout.h"
#include "split_k.h"
#include "x_form.h"

namespace hipconv {

namespace {

// ---- what an architecture has -----------------------------------------------------------------------------------------

// Asynchronous copies to LDS exist from sm_80 on. sm_86, sm_89, sm_120 and later have 100 KB of LDS, the others at
// least 164.
bool has_small_lds(int number) { return number == 86 || number == 89 || number >= 120; }

bool rounds_to_tf32(const Conv2dParams& p) { return p.dtype == DType::f32 && p.float32_precision == Float32Precision::tf32; }

const char* refusal_of_tile(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    const Reading reading = reading_of(p, l, plan);
    const int64_t tiles_m =
        reading.by_image ? ceil_of(l.image_pixels, plan.tile_m) * p.batch : ceil_of(l.image_pixels * p.batch, plan.tile_m);
    if (tiles_m * ceil_of(l.group_filters, plan.tile_n) * 256 >= kLimit32) return "up to 2^32 threads";
    if (reading.form == XForm::anything && (plan.tile_m != 64 || plan.tile_n != 64))
        return "other padding than zeros, filters of more than 15 rows or columns, and x over 4 GB apart by tiles of 64 x 64 "
               "only";
    if (p.dtype == DType::f32 && plan.tile_n == 128 && (!rounds_to_tf32(p) || reading.form != XForm::vectors))
        return "f32 by tiles of 128 filters only where it may be rounded to TF32 and x is channels_last and aligned";
    if (plan.tile_m == 256 && reading.form != XForm::vectors && reading.form != XForm::patches)
        return "by tiles of 256 pixels channels_last x with C / groups a multiple of 8 and 16-byte alignment only, or 3x3 "
               "taps of large images";
    return refusal_of_split(plan, l, l.steps);
}

ConvGemmParams gemm_params(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan, void* workspace) {
    const Reading reading = reading_of(p, l, plan);
    const bool patches = reading.form == XForm::patches;
    ConvGemmParams g = common_params(p, l, plan, {reading.by_image, patches ? kPatchColumns : 0}, workspace);
    g.form = reading.form;
    g.by_vectors = patches && l.vectors;

    const auto bytes = [&](int64_t stride) { return static_cast<uint32_t>(stride * l.element); };
    g.x_image = bytes(p.x.batch_stride);
    g.x_row = bytes(p.x.row_stride);
    g.x_column = bytes(p.x.column_stride);
    g.x_channel = bytes(p.x.channel_stride);
    g.x_chunk = bytes(p.x.channel_stride * l.elements);
    g.tap_row = bytes(p.dilation_h * p.x.row_stride);
    g.tap_column = bytes(p.dilation_w * p.x.column_stride);
    g.lanes_along_pixels = !l.vectors && p.x.channel_stride != 1;

    g.chunks = static_cast<int32_t>(l.chunks);
    g.taps_inside = l.taps_inside;
    g.steps = static_cast<int32_t>(l.steps);
    g.steps_per_part = static_cast<int32_t>(ceil_of(l.steps, plan.split_k));
    const int32_t next_taps = static_cast<int32_t>(kTileChunks / l.chunks);
    g.next_chunk = static_cast<int32_t>(kTileChunks % l.chunks);
    g.next_column = next_taps % p.kernel_width;
    g.next_row = next_taps / p.kernel_width;
    g.next_tap = static_cast<uint32_t>(g.next_row) * g.tap_row + static_cast<uint32_t>(g.next_column) * g.tap_column;

    g.filters = l.filters(p, workspace);
    g.filter_stride = l.filter_stride;
    g.filter_step = static_cast<uint32_t>(l.filter_step);
    g.filter_wrap = static_cast<uint32_t>(l.filter_wrap);
    return g;
}

using Launch = void (*)(const ConvGemmParams&, Conv2dTile, int split_k, void* stream);

Launch launch_of(const Conv2dParams& p, XForm form) {
    if (p.dtype == DType::f32) return rounds_to_tf32(p) ? launch_gemm_tf32 : launch_gemm_f32;
    if (form == XForm::vectors) return launch_gemm_vectors;
    return form == XForm::patches ? launch_gemm_patches : launch_gemm_elements;
}

void run(const Conv2dParams& p, const GemmLayout& l, const ConvGemmParams& g, const Conv2dPlan& plan, Launch launch,
         void* workspace, void* stream) {
    if (l.packed_bytes) pack_filters(p, l, false, workspace, stream);
    launch(g, {plan.tile_m, plan.tile_n}, plan.split_k, stream);
    if (plan.split_k > 1) reduce_split_k(p, g, plan.split_k, stream);
}

}  // namespace

bool conv2d_has_tf32(const std::string& arch) { return has_tf32(arch); }

std::vector<Conv2dTile> conv2d_implicit_gemm_tiles(const std::string& arch, DType dtype) {
    const MatrixUnit unit = unit_of(arch);
    const int nvidia = nvidia_number(arch);
    std::vector<Conv2dTile> tiles;
    if (nvidia > 0 && nvidia < 80) return tiles;
    for (const Conv2dTile tile : {Conv2dTile{256, 128}, Conv2dTile{128, 128}, Conv2dTile{128, 64}, Conv2dTile{64, 64}}) {
        const bool f32 = dtype == DType::f32, legal = f32 ? gemm_tile_is_legal<float>(unit, tile.tile_m, tile.tile_n)
                                                          : gemm_tile_is_legal<f16>(unit, tile.tile_m, tile.tile_n);
        if (f32 && tile.tile_n == 128 && unit != MatrixUnit::mma_sync) continue;  // it is for TF32 alone
        if (legal && !(tile.tile_m == 256 && has_small_lds(nvidia))) tiles.push_back(tile);
    }
    return tiles;
}

const char* conv2d_implicit_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    const GemmLayout l(p, true);
    for (const int64_t stride : {p.x.batch_stride, p.x.channel_stride, p.x.row_stride, p.x.column_stride})
        if (stride < 0) return "x without negative strides";
    if (p.groups >= 1 << 16) return "up to 65535 groups";
    if (l.image_pixels >= kLimit31 || l.taps * l.chunks >= kLimit31 / kTileChunks)
        return "images and filters of less than 2^31 elements";
    if (l.filter_stride * 256 >= kLimit31) return "filters of less than 8 MB";
    if (plan.tile_m != 0) return refusal_of_tile(p, l, plan);
    Conv2dPlan small = plan;
    small.tile_m = small.tile_n = 64;
    return refusal_of_tile(p, l, small);
}

int64_t conv2d_implicit_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    const GemmLayout l(p, true);
    return l.workspace_bytes(plan.split_k);
}

Conv2dPacking conv2d_implicit_gemm_packing(const Conv2dParams& p, const Conv2dPlan&) {
    return packing_of(p, GemmLayout(p, true));
}

void conv2d_implicit_gemm_pack(const Conv2dParams& p, const Conv2dPlan&, void* packed, void* stream) {
    pack_filters(p, GemmLayout(p, true), false, packed, stream);
}

void conv2d_implicit_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const GemmLayout l(p, true);
    const ConvGemmParams g = gemm_params(p, l, plan, workspace);
    run(p, l, g, plan, launch_of(p, g.form), workspace, stream);
}

std::vector<Conv2dTile> conv2d_split_implicit_gemm_tiles(const std::string& arch, DType dtype) {
    if (dtype != DType::f32 || unit_of(arch) != MatrixUnit::mma_sync) return {};
    std::vector<Conv2dTile> tiles;
    for (const Conv2dTile& tile : conv2d_implicit_gemm_tiles(arch, dtype))
        if (tile.tile_n == 64) tiles.push_back(tile);
    return tiles;
}

const char* conv2d_split_implicit_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype != DType::f32 || rounds_to_tf32(p)) return "x of float32 that may not be rounded to TF32";
    return conv2d_implicit_gemm_refusal(p, plan);
}

void conv2d_split_implicit_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const GemmLayout l(p, true);
    run(p, l, gemm_params(p, l, plan, workspace), plan, launch_gemm_split_f32, workspace, stream);
}

}  // namespace hipconv
