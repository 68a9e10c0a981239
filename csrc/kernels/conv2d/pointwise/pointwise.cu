// The host side of `pointwise`: what it serves, its tile and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../common/units.h"
#include "../gemm/run_layout.h"
#include "params.h"

namespace hipconv {

namespace {

int pieces_of(const Conv2dParams& p) {
    const int pieces = static_cast<int>(ceil_of(p.in_channels, kRunPiece));
    return pieces > 4 ? 8 : pieces;
}

int64_t filter_groups_of(const Conv2dParams& p) { return ceil_of(p.out_channels, kRunFilters); }

// Tells whether all pixels that outputs see, of all images, are at one distance.
bool is_dense(const Image& image, int64_t batch, int64_t height, int64_t width) {
    const int64_t step = image.column_stride;
    return (height == 1 || image.row_stride == width * step) && (batch == 1 || image.batch_stride == height * width * step);
}

// Tells whether x and filters can be read by so many neighbouring channels.
bool reads_by(const Conv2dParams& p, int64_t channels) {
    return p.in_channels % channels == 0 && begins_at_multiples(p.x, p.batch, p.in_height, p.in_width, channels, p.dtype) &&
           begins_at_multiples(p.weight, p.out_channels, 1, 1, channels, p.dtype);
}

}  // namespace

std::vector<Conv2dTile> conv2d_pointwise_tiles(const std::string& arch, DType dtype) {
    const bool old = starts_with(arch, "sm_") && std::atoi(arch.c_str() + 3) < 80;
    const MatrixUnit unit = unit_of(arch);
    if (dtype == DType::f32 || unit == MatrixUnit::fma || unit == MatrixUnit::wmma11 || old) return {};
    return {{kRunThreads / 32 * kRunPixels, kRunFilters}};
}

const char* conv2d_pointwise_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (p.kernel_height != 1 || p.kernel_width != 1 || p.groups != 1) return "1x1 taps and groups of 1";
    if (p.pad_top != 0 || p.pad_left != 0 || int64_t{p.out_height - 1} * p.stride_h >= p.in_height ||
        int64_t{p.out_width - 1} * p.stride_w >= p.in_width)
        return "no padding";
    const bool by_vectors = reads_by(p, 8);
    if ((!by_vectors && (!reads_by(p, 2) || pieces_of(p) > kPointwiseMostPiecesByWords)) || !stores_filters_by(p, 2))
        return "channels_last tensors of even numbers of channels, aligned to 4 bytes, or, of more than 64 channels of x, of "
               "multiples of 8 channels, aligned to 16 bytes";
    if (p.in_channels > kPointwiseMostChannels || pointwise_lds(filter_groups_of(p), pieces_of(p)) > kPointwiseLds)
        return "up to 256 channels, and filters that fit LDS";
    if (static_cast<int64_t>(p.batch) * p.out_height * p.out_width >= kLimit31 / 2) return "outputs of less than 2^30 pixels";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

void conv2d_pointwise(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    PointwiseParams g{};
    g.conv = p;
    g.pixels = p.batch * p.out_height * p.out_width;
    g.tiles = static_cast<int32_t>(ceil_of(g.pixels, kRunPixels));
    g.chunks = static_cast<int32_t>(ceil_of(p.in_channels, 8));
    g.by_vectors = reads_by(p, 8);
    g.vector_stores = stores_filters_by(p, 8);
    g.filter_groups = static_cast<int32_t>(filter_groups_of(p));
    g.x_is_dense = p.stride_h == 1 && p.stride_w == 1 && is_dense(p.x, p.batch, p.in_height, p.in_width);
    g.out_is_dense = is_dense(p.out, p.batch, p.out_height, p.out_width);
    g.divide_by_image = divisor_of(static_cast<uint32_t>(p.out_height) * static_cast<uint32_t>(p.out_width));
    g.divide_by_row = divisor_of(static_cast<uint32_t>(p.out_width));
    const int pieces = pieces_of(p), lds = static_cast<int>(pointwise_lds(g.filter_groups, pieces));
    const int64_t resident = resident_blocks(lds, kPointwiseLds, pointwise_blocks(pieces));
    launch_pointwise(g, pieces, static_cast<unsigned>(g.tiles < resident ? g.tiles : resident), lds, stream);
}

}  // namespace hipconv
