// The host side of `wave_gemm`: what it serves, its tiles and its launches.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../common/units.h"
#include "../gemm/layout.h"
#include "kernel.h"

namespace hipconv {

namespace {

// More pixels mean that fewer waves share a sum.
constexpr Conv2dTile kTiles[] = {{128, kWaveGemmFilters},
                                 {64, kWaveGemmFilters},
                                 {32, kWaveGemmFilters},
                                 {16, kWaveGemmFilters}};

// Tells whether x, or the filters, can be read by so many neighbouring channels.
bool x_by(const Conv2dParams& p, int64_t elements) {
    return p.in_channels % elements == 0 && begins_at_multiples(p.x, p.batch, p.in_height, p.in_width, elements, p.dtype);
}
bool filters_by(const Conv2dParams& p, int64_t elements) {
    return p.in_channels % elements == 0 &&
           begins_at_multiples(p.weight, p.out_channels, p.kernel_height, p.kernel_width, elements, p.dtype);
}

WaveGemmRead read_of(const Conv2dParams& p) {
    if (x_by(p, 8) && filters_by(p, 8)) return WaveGemmRead::vectors;
    if (x_by(p, 2) && filters_by(p, 2)) return WaveGemmRead::words;
    return filters_by(p, 8) ? WaveGemmRead::planes : WaveGemmRead::elements;
}

// The call with the channels of a group.
Conv2dParams call_of_group(const Conv2dParams& p) {
    Conv2dParams of = p;
    of.in_channels = p.in_channels / p.groups;
    return of;
}

int64_t filter_blocks_of(const Conv2dParams& p) { return ceil_of(p.out_channels / p.groups, kWaveGemmFilters) * p.groups; }

constexpr int64_t kFewProducts = 512;  // of an output

// The elements between the first and the last of so many channels, rows and columns.
int64_t reach(const Image& image, int64_t channels, int64_t rows, int64_t columns) {
    const auto size = [](int64_t stride) { return stride < 0 ? -stride : stride; };
    return size(image.channel_stride) * channels + size(image.row_stride) * rows + size(image.column_stride) * columns;
}

}  // namespace

std::vector<Conv2dTile> conv2d_wave_gemm_tiles(const std::string& arch, DType dtype) {
    const bool old = starts_with(arch, "sm_") && std::atoi(arch.c_str() + 3) < 80;
    const MatrixUnit unit = unit_of(arch);
    if (dtype == DType::f32 || unit == MatrixUnit::fma || old) return {};
    return {std::begin(kTiles) + (unit == MatrixUnit::mfma ? 1 : 0), std::end(kTiles)};  // CDNA's waves have 64 lanes
}

const char* conv2d_wave_gemm_refusal(const Conv2dParams& call, const Conv2dPlan& plan) {
    const Conv2dParams p = call_of_group(call);
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (p.padding_mode != PaddingMode::zeros) return "padding_mode 'zeros'";
    if (plan.split_k > 2) return "split_k of 1 or 2";  // a block has so many times 256 threads
    const int64_t rows = static_cast<int64_t>(p.kernel_height) * p.dilation_h,
                  columns = static_cast<int64_t>(p.kernel_width) * p.dilation_w;
    if (rows >= 1 << 15 || columns >= 1 << 15) return "filters of less than 2^15 rows and columns, dilated";
    const int64_t products = static_cast<int64_t>(p.in_channels) * p.kernel_height * p.kernel_width;
    if (products >= 1 << 24) return "less than 2^24 products an output";
    if (read_of(p) == WaveGemmRead::elements) {
        if (products > kFewProducts && x_by(p, 8))  // the other GEMMs pack such filters, and read x by vectors
            return "filters of up to 512 products whose channels are not neighbours, where those of x are";
        if (products > kWaveGemmMostProducts)
            return "up to 2048 products an output where channels of x or weight are not neighbours, or odd, or not aligned";
        if (reach(p.x, p.in_channels, rows, columns) >= kLimit31 ||
            reach(p.weight, p.in_channels, p.kernel_height, p.kernel_width) >= kLimit31)
            return "filters and their patches of x of less than 2^31 elements";
    }
    const int64_t pixels = static_cast<int64_t>(p.batch) * p.out_height * p.out_width;
    const int64_t far = int64_t{1} << 30;
    if (p.in_height + 2 * p.pad_top >= far || p.in_width + 2 * p.pad_left >= far)
        return "images of less than 2^30 rows and columns";
    if (pixels >= kLimit31 - kWaveGemmMostThreads ||
        ceil_of(pixels, 16) * filter_blocks_of(p) * kWaveGemmMostThreads >= kLimit32)
        return "up to 2^32 threads";
    return nullptr;
}

void conv2d_wave_gemm(const Conv2dParams& call, const Conv2dPlan& plan, void* /*workspace*/, void* stream) {
    const Conv2dParams p = call_of_group(call);
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    const auto by = [](int64_t value) { return divisor_of(static_cast<uint32_t>(value)); };
    WaveGemmParams g{};
    g.conv = p;
    g.read = read_of(p);
    const int64_t pixels = static_cast<int64_t>(p.batch) * p.out_height * p.out_width,
                  taps = static_cast<int64_t>(p.kernel_height) * p.kernel_width;
    g.pixels = number(pixels);
    g.filter_blocks = number(filter_blocks_of(p));
    g.group_blocks = number(g.filter_blocks / p.groups);
    g.group_filters = p.out_channels / p.groups;
    g.group_distance = p.in_channels * p.x.channel_stride;
    g.channels_first = p.weight.channel_stride != 1;
    if (g.read == WaveGemmRead::elements) {
        g.chunks = number(ceil_of(p.in_channels * taps, kWaveGemmChunk));
    } else {
        g.tap_chunks = number(ceil_of(p.in_channels, kWaveGemmChunk));
        g.chunks = number(g.tap_chunks * taps);
    }
    g.pads = pads(p);
    g.divide_by_image = by(static_cast<int64_t>(p.out_height) * p.out_width), g.divide_by_row = by(p.out_width);
    g.divide_by_filter_blocks = by(g.filter_blocks), g.divide_by_group_blocks = by(g.group_blocks),
    g.divide_by_tap_chunks = by(g.tap_chunks > 0 ? g.tap_chunks : 1);
    g.divide_by_taps_across = by(p.kernel_width), g.divide_by_inner = by(g.channels_first ? taps : p.in_channels);
    g.along_filters = p.out.channel_stride < p.out.column_stride || p.out_height * p.out_width == 1;
    const auto aligned = [&](const Image& image, DType dtype) {
        return begins_at_multiples(image, p.batch, p.out_height, p.out_width, dtype == DType::f32 ? 4 : 8, dtype);
    };
    g.vector_stores = g.along_filters && g.group_filters % 8 == 0 && aligned(p.out, p.out_dtype) &&
                      (!p.residual.data || aligned(p.residual, p.residual_dtype));
    while (kWaveGemmPixels << g.log2_groups < plan.tile_m) ++g.log2_groups;
    const int64_t blocks = ceil_of(pixels, plan.tile_m) * g.filter_blocks;
    launch_wave_gemm(g, static_cast<unsigned>(blocks), static_cast<unsigned>(plan.split_k) * kWaveGemmThreads, stream);
}

}  // namespace hipconv
