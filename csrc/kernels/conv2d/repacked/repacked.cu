// The GEMMs on repacked x: x and filters that they cannot read by 16 bytes are first copied to memory where they can. What the
// GEMM would gather for each tap and each tile of filters is then gathered once.
//
// Repacked pixels are dense, with a multiple of 8 channels. With 8 channels or less, the taps of a row of a filter are one
// vector of that memory: they become the channels of a filter of one column, and the vectors of neighbouring outputs overlap.
// In this case, and where padding is not by zeros, padding is laid out too. Where outputs see patches of such x that do not
// overlap, as those of vision transformers do, all elements of a patch become channels.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "layout.h"

namespace hipconv {

namespace {

// The refusal of calls that neither algorithm serves, whatever its GEMM does.
const char* refusal_of_repacking(const Conv2dParams& p, const Repacking& r, bool splits) {
    if (!splits && GemmLayout(p, true).vectors && !has_windows(p))
        return "x that is not channels_last with C a multiple of 8 (f32: 4) and 16-byte alignment already, or has that many "
               "channels or less";
    const int64_t group_channels = p.in_channels / p.groups;
    if (splits && p.groups > 1 && group_channels % 32 != 0) return "groups of a multiple of 32 channels";
    if (p.groups > 1 && group_channels % channels_of_chunk(p) != 0) return "groups of a multiple of 8 channels (f32: 4)";
    if ((r.pixels + 8 * kRepackThreads) * r.repack.chunks >= kLimit31) return "padded x of less than 2^34 elements";
    return nullptr;
}

// The GEMM that runs on the repacked x.
struct Gemm {
    bool steps_across_taps, early;  // see GemmLayout; see HIPCONV_LAUNCH
    const char* (*refusal)(const Conv2dParams&, const Conv2dPlan&);
    int64_t (*workspace)(const Conv2dParams&, const Conv2dPlan&);
    void (*launch)(const Conv2dParams&, const Conv2dPlan&, void* workspace, void* stream);
    bool splits = false;
};

constexpr Gemm kWarpgroups{false, true, conv2d_warpgroup_gemm_refusal, conv2d_warpgroup_gemm_workspace, conv2d_warpgroup_gemm};
constexpr Gemm kImplicit{true, false, conv2d_implicit_gemm_refusal, conv2d_implicit_gemm_workspace, conv2d_implicit_gemm};

constexpr Gemm kSplit{false, true, conv2d_warpgroup_gemm_refusal, conv2d_warpgroup_gemm_workspace, conv2d_warpgroup_gemm, true};

const char* refusal(const Gemm& gemm, const Conv2dParams& p, const Conv2dPlan& plan) {
    const Repacking r = repacking_of(p, gemm.steps_across_taps, gemm.splits, nullptr);
    const char* const refused = refusal_of_repacking(p, r, gemm.splits);
    return refused ? refused : gemm.refusal(r.inner, plan);
}

int64_t workspace_of(const Gemm& gemm, const Conv2dParams& p, const Conv2dPlan& plan) {
    const Repacking r = repacking_of(p, gemm.steps_across_taps, gemm.splits, nullptr);
    return r.x_bytes + r.filter_bytes + gemm.workspace(r.inner, plan);
}

Conv2dPacking packing_of(const Gemm& gemm, const Conv2dParams& p) {
    return repacking_of(p, gemm.steps_across_taps, gemm.splits, nullptr).packing;
}

void launch_repack(const RepackParams& repack, DType dtype, bool splits, int vector, bool early, void* stream) {
    const int64_t packing = repack.filters.packed ? ceil_of(pack_chunks(repack.filters), kRepackThreads) : 0;
    const int64_t blocks = repack.tiles + packing;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1);
    const auto kernel = splits                ? vector == 4 ? conv2d_repack<split_f32, 4> : conv2d_repack<split_f32, 1>
                                       : dtype == DType::f32 ? vector == 4 ? conv2d_repack<float, 4> : conv2d_repack<float, 1>
                                       : vector == 8 ? conv2d_repack<f16, 8>
                        : vector == 4         ? conv2d_repack<f16, 4>
                                              : conv2d_repack<f16, 1>;
    HIPCONV_LAUNCH(early, kernel, grid, dim3(kRepackThreads, 1, 1), 0, static_cast<hipStream_t>(stream), repack);
    check_launch("conv2d");
}

// Packs the filters alone.
void pack(const Gemm& gemm, const Conv2dParams& p, void* packed, void* stream) {
    RepackParams filters{};
    filters.filters = repacking_of(p, gemm.steps_across_taps, gemm.splits, nullptr).repack.filters;
    filters.filters.packed = packed;
    launch_repack(filters, p.dtype, gemm.splits, 1, false, stream);
}

void launch(const Gemm& gemm, const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const Repacking r = repacking_of(p, gemm.steps_across_taps, gemm.splits, workspace);
    // Beside a GEMM as this one, which fills most compute units, many blocks that begin early crowd on the others. Those that
    // read single pixels take long enough to gain by it.
    const int64_t pixels = int64_t{p.batch} * p.out_height * p.out_width, units = compute_units_here();
    const auto fills_most = [&] {
        const int64_t tiles = ceil_of(pixels, plan.tile_m) * ceil_of(p.out_channels / p.groups, plan.tile_n) * p.groups;
        return 2 * tiles * plan.split_k > units;
    };
    const bool crowds = r.vector > 1 && r.repack.tiles > units;
    const bool early = gemm.early && !(crowds && fills_most());
    launch_repack(r.repack, p.dtype, gemm.splits, r.vector, early, stream);
    gemm.launch(r.inner, plan, static_cast<char*>(workspace) + r.x_bytes + r.filter_bytes, stream);
}

}  // namespace

const char* conv2d_relaid_warpgroup_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    return refusal(kWarpgroups, p, plan);
}
int64_t conv2d_relaid_warpgroup_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    return workspace_of(kWarpgroups, p, plan);
}
Conv2dPacking conv2d_relaid_warpgroup_gemm_packing(const Conv2dParams& p, const Conv2dPlan&) {
    return packing_of(kWarpgroups, p);
}
void conv2d_relaid_warpgroup_gemm_pack(const Conv2dParams& p, const Conv2dPlan&, void* packed, void* stream) {
    pack(kWarpgroups, p, packed, stream);
}
void conv2d_relaid_warpgroup_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    launch(kWarpgroups, p, plan, workspace, stream);
}

std::vector<Conv2dTile> conv2d_split_warpgroup_gemm_tiles(const std::string& arch, DType dtype) {
    if (dtype != DType::f32) return {};
    std::vector<Conv2dTile> tiles = conv2d_warpgroup_gemm_tiles(arch, dtype);
    if (!tiles.empty()) tiles.erase(tiles.begin());  // two sets of 256 x 128 sums would not fit into the registers
    return tiles;
}
const char* conv2d_split_warpgroup_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype != DType::f32 || p.float32_precision != Float32Precision::ieee)
        return "x of float32 that may not be rounded to TF32";
    if (plan.tile_m == 256) return "tiles of 128 and 64 pixels";
    return refusal(kSplit, p, plan);
}
int64_t conv2d_split_warpgroup_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    return workspace_of(kSplit, p, plan);
}
Conv2dPacking conv2d_split_warpgroup_gemm_packing(const Conv2dParams& p, const Conv2dPlan&) { return packing_of(kSplit, p); }
void conv2d_split_warpgroup_gemm_pack(const Conv2dParams& p, const Conv2dPlan&, void* packed, void* stream) {
    pack(kSplit, p, packed, stream);
}
void conv2d_split_warpgroup_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    launch(kSplit, p, plan, workspace, stream);
}

const char* conv2d_relaid_implicit_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    return refusal(kImplicit, p, plan);
}
int64_t conv2d_relaid_implicit_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    return workspace_of(kImplicit, p, plan);
}
Conv2dPacking conv2d_relaid_implicit_gemm_packing(const Conv2dParams& p, const Conv2dPlan&) { return packing_of(kImplicit, p); }
void conv2d_relaid_implicit_gemm_pack(const Conv2dParams& p, const Conv2dPlan&, void* packed, void* stream) {
    pack(kImplicit, p, packed, stream);
}
void conv2d_relaid_implicit_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    launch(kImplicit, p, plan, workspace, stream);
}

}  // namespace hipconv
