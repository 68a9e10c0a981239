// The host side of Winograd's convolution: what it serves, its workspace, and its launches: of the filter transform, and for
// each chunk of tiles of the input transform, of a GEMM, and of the output transform.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "layout.h"

namespace hipconv {

namespace {

int outputs_of(const Conv2dPlan& plan) { return plan.algorithm == "winograd_f2" ? 2 : 4; }

WinogradTiles tiles_of(const WinogradLayout& l, int64_t first) {
    WinogradTiles t{};
    t.first = static_cast<int32_t>(first);
    t.count = static_cast<int32_t>(first + l.chunk < l.tiles ? l.chunk : l.tiles - first);
    t.across = static_cast<int32_t>(l.across), t.of_image = static_cast<int32_t>(l.of_image);
    t.divide_by_across = divisor_of(static_cast<uint32_t>(l.across));
    t.divide_by_image = divisor_of(static_cast<uint32_t>(l.of_image));
    return t;
}

// Tells whether two channels are an aligned vector, wherever they begin.
bool has_pairs(const Image& image, int64_t batch, int64_t channels, int64_t height, int64_t width, DType dtype) {
    return channels % 2 == 0 && begins_at_multiples(image, batch, height, width, 2, dtype);
}

void transform_filters(const Conv2dParams& p, const WinogradLayout& l, int outputs, void* to, void* stream) {
    WinogradFiltersParams f{};
    f.weight = p.weight, f.dtype = p.dtype;
    f.filters = p.out_channels, f.channels = p.in_channels;
    f.padded_filters = static_cast<int32_t>(l.filters), f.padded_channels = static_cast<int32_t>(l.channels);
    f.planes = to;
    f.exponents = reinterpret_cast<int32_t*>(static_cast<char*>(to) + l.planes_of_filters_bytes());
    launch_winograd_filters(f, outputs, stream);
}

WinogradInputParams input_of(const Conv2dParams& p, const WinogradLayout& l) {
    WinogradInputParams in{};
    in.x = p.x, in.dtype = p.dtype, in.padding_mode = p.padding_mode;
    in.channels = p.in_channels, in.height = p.in_height, in.width = p.in_width;
    in.pad_top = p.pad_top, in.pad_left = p.pad_left;
    in.padded_channels = static_cast<int32_t>(l.channels);
    while ((1 << in.log2_lanes) < l.channels / 2 && (1 << in.log2_lanes) < kWinogradThreads) ++in.log2_lanes;
    in.by_pairs = p.padding_mode == PaddingMode::zeros && p.x.column_stride * (int64_t{p.in_width} + 8) < kLimit31 &&
                  p.x.column_stride >= 0 && has_pairs(p.x, p.batch, p.in_channels, p.in_height, p.in_width, p.dtype);
    return in;
}

WinogradOutputParams output_of(const Conv2dParams& p, const WinogradLayout& l) {
    WinogradOutputParams out{};
    out.conv = p;
    out.padded_filters = static_cast<int32_t>(l.filters);
    out.pairs = (p.out_channels + 1) / 2;
    out.divide_by_pairs = divisor_of(static_cast<uint32_t>(out.pairs));
    const auto by_pairs = [&](const Image& image, DType dtype) {
        return has_pairs(image, p.batch, p.out_channels, p.out_height, p.out_width, dtype);
    };
    out.by_pairs = by_pairs(p.out, p.out_dtype) && (!p.residual.data || by_pairs(p.residual, p.residual_dtype));
    return out;
}

}  // namespace

std::vector<Conv2dTile> conv2d_winograd_tiles(const std::string& arch, DType dtype) {
    if (dtype == DType::f32) return {};
    const std::vector<Conv2dTile> of_warpgroups = conv2d_warpgroup_gemm_tiles(arch, DType::f16);
    return of_warpgroups.empty() ? conv2d_implicit_gemm_tiles(arch, DType::f16) : of_warpgroups;
}

const char* conv2d_winograd_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32) return "x of 16-bit types: its planes are float16";
    if (p.kernel_height != 3 || p.kernel_width != 3 || p.stride_h != 1 || p.stride_w != 1 || p.dilation_h != 1 ||
        p.dilation_w != 1 || p.groups != 1)
        return "3x3 filters of stride 1, without dilation or groups";
    const WinogradLayout l(p, outputs_of(plan), plan.workspace_limit);
    if (l.tiles >= kLimit31 - 256) return "outputs of less than 2^31 tiles";
    if (l.planes * (l.channels > l.filters ? l.channels : l.filters) >= kLimit31 / 512)
        return "up to 100000 channels and filters";
    if (plan.split_k != 1) return "sums in one part";
    return nullptr;
}

int64_t conv2d_winograd_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    return WinogradLayout(p, outputs_of(plan), plan.workspace_limit).workspace;
}

Conv2dPacking conv2d_winograd_packing(const Conv2dParams& p, const Conv2dPlan& plan) {
    const int outputs = outputs_of(plan);
    return {WinogradLayout(p, outputs, plan.workspace_limit).filter_bytes, {kWinogradPacking, outputs}};
}

void conv2d_winograd_pack(const Conv2dParams& p, const Conv2dPlan& plan, void* packed, void* stream) {
    transform_filters(p, WinogradLayout(p, outputs_of(plan), plan.workspace_limit), outputs_of(plan), packed, stream);
}

void conv2d_winograd(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const int outputs = outputs_of(plan);
    const WinogradLayout l(p, outputs, plan.workspace_limit);
    char* memory = static_cast<char*>(workspace);
    const auto take = [&](int64_t bytes) { return memory += bytes, memory - bytes; };
    const char* filters = static_cast<const char*>(p.packed_filters);
    if (!filters) {
        filters = take(l.filter_bytes);
        transform_filters(p, l, outputs, const_cast<char*>(filters), stream);
    }
    WinogradInputParams in = input_of(p, l);
    WinogradOutputParams out = output_of(p, l);
    in.planes = take(l.inputs_bytes);
    void* const products = take(l.products_bytes);
    out.planes = products;
    in.exponents = reinterpret_cast<int32_t*>(take(l.exponents_bytes));
    out.tile_exponents = in.exponents;
    out.filter_exponents = reinterpret_cast<const int32_t*>(filters + l.planes_of_filters_bytes());
    const bool by_warpgroups = conv2d_runs_warpgroups();
    const Conv2dPlan gemm{by_warpgroups ? "warpgroup_gemm" : "implicit_gemm", plan.tile_m, plan.tile_n, 1};
    for (int64_t first = 0; first < l.tiles; first += l.chunk) {
        in.tiles = out.tiles = tiles_of(l, first);
        out.units = out.tiles.count * out.pairs;
        launch_winograd_input(in, outputs, stream);
        const Conv2dParams planes = convolution_of_planes(l, in.tiles.count, in.planes, filters, products);
        (by_warpgroups ? conv2d_warpgroup_gemm : conv2d_implicit_gemm)(planes, gemm, nullptr, stream);
        launch_winograd_output(out, outputs, stream);
    }
}

}  // namespace hipconv
