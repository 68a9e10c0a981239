// The host side of `fma_gemm`: what it serves, its tiles and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../common/units.h"
#include "../gemm/layout.h"
#include "params.h"

namespace hipconv {

namespace {

constexpr int kMostThreads = 256;

// The elements between the first and the last of an image.
int64_t reach(const Image& image, int64_t batch, int64_t channels, int64_t rows, int64_t columns) {
    return image.batch_stride * (batch - 1) + image.channel_stride * (channels - 1) + image.row_stride * (rows - 1) +
           image.column_stride * (columns - 1);
}

int64_t filter_blocks_of(const Conv2dParams& p, int64_t tile_n) {
    return ceil_of(p.out_channels / p.groups, tile_n) * p.groups;
}

// Tells whether fours of neighbours along filters, or along pixels of all images, are vectors of f32.
bool has_fours(const Conv2dParams& p, const Image& image, DType dtype, bool along_filters) {
    if (dtype != DType::f32) return false;
    if (along_filters) return begins_at_multiples(image, p.batch, p.out_height, p.out_width, 4, dtype);
    const bool is_dense = image.column_stride == 1 && (p.out_height == 1 || image.row_stride == p.out_width);
    return is_dense && reinterpret_cast<uintptr_t>(image.data) % 16 == 0 && multiple_of(image.batch_stride, p.batch, 4) &&
           multiple_of(image.channel_stride, p.out_channels, 4);
}

}  // namespace

std::vector<Conv2dTile> conv2d_fma_gemm_tiles(const std::string&, DType dtype) {
    if (dtype != DType::f32) return {};
    return {std::begin(kFmaTiles), std::end(kFmaTiles)};
}

const char* conv2d_fma_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype != DType::f32) return "x of float32";
    if (p.padding_mode != PaddingMode::zeros && pads(p)) return "padding_mode 'zeros'";
    if (plan.split_k != 1) return "split_k of 1";
    for (const Image& image : {p.x, p.weight})
        for (const int64_t stride : {image.batch_stride, image.channel_stride, image.row_stride, image.column_stride})
            if (stride < 0) return "x and filters without negative strides";
    const int64_t far = 1 << 15, channels = p.in_channels / p.groups;
    const int64_t rows = int64_t{p.kernel_height} * p.dilation_h, columns = int64_t{p.kernel_width} * p.dilation_w;
    if (p.in_height + 2 * int64_t{p.pad_top} + rows >= far || p.in_width + 2 * int64_t{p.pad_left} + columns >= far)
        return "images of less than 2^15 rows and columns";
    // A pixel's first tap may lie outside the image.
    if (reach(p.x, p.batch, channels, p.in_height + 2 * int64_t{p.pad_top} + rows,
              p.in_width + 2 * int64_t{p.pad_left} + columns) >= kLimit31 / 2 ||
        reach(p.weight, p.out_channels, channels, p.kernel_height, p.kernel_width) >= kLimit31 / 2)
        return "x and filters of less than 2^30 elements";
    const int64_t pixels = static_cast<int64_t>(p.batch) * p.out_height * p.out_width, least = plan.tile_m ? plan.tile_m : 256;
    if (pixels >= kLimit31 - 256 ||
        ceil_of(pixels, least) * filter_blocks_of(p, plan.tile_n ? plan.tile_n : 64) * kMostThreads >= kLimit32)
        return "up to 2^32 threads";
    return nullptr;
}

void conv2d_fma_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* /*workspace*/, void* stream) {
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    const auto by = [](int64_t value) { return divisor_of(static_cast<uint32_t>(value)); };
    const int64_t pixels = static_cast<int64_t>(p.batch) * p.out_height * p.out_width;
    const int64_t taps = static_cast<int64_t>(p.kernel_height) * p.kernel_width;
    FmaGemmParams g{};
    g.conv = p;
    g.conv.in_channels = p.in_channels / p.groups;
    g.pixels = number(pixels);
    g.products = number(g.conv.in_channels * taps);
    g.group_filters = p.out_channels / p.groups;
    g.filter_blocks = number(filter_blocks_of(p, plan.tile_n));
    g.group_blocks = g.filter_blocks / p.groups;
    g.group_distance = g.conv.in_channels * p.x.channel_stride;
    g.channels_inside = p.x.channel_stride <= p.x.column_stride;
    g.by_vectors = g.channels_inside && g.conv.in_channels % 4 == 0 &&
                   begins_at_multiples(p.x, p.batch, p.in_height, p.in_width, 4, p.dtype);
    g.pads = pads(p);
    g.along_filters = p.out.channel_stride < p.out.column_stride || p.out_height * p.out_width == 1;
    const auto fours = [&](const Image& image, DType dtype) { return has_fours(p, image, dtype, g.along_filters); };
    const int64_t along = g.along_filters ? g.group_filters : int64_t{p.out_height} * p.out_width;
    g.vector_stores = along % 4 == 0 && fours(p.out, p.out_dtype) && (!p.residual.data || fours(p.residual, p.residual_dtype));
    g.divide_by_image = by(int64_t{p.out_height} * p.out_width), g.divide_by_row = by(p.out_width);
    g.divide_by_filter_blocks = by(g.filter_blocks), g.divide_by_group_blocks = by(g.group_blocks);
    g.divide_by_inner = by(g.channels_inside ? g.conv.in_channels : taps), g.divide_by_taps_across = by(p.kernel_width);
    const int64_t blocks = ceil_of(pixels, plan.tile_m) * g.filter_blocks;
    launch_fma_gemm(g, {plan.tile_m, plan.tile_n}, static_cast<unsigned>(blocks), stream);
}

}  // namespace hipconv
