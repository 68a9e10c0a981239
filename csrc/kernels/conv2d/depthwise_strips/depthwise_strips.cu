// The host side of `depthwise_strips`: what it serves, its tiling and its launch.
#include <hip/hip_runtime.h>

#include <type_traits>

#include "../common/depthwise_frame.h"
#include "../common/launchers.h"
#include "../gemm/layout.h"
#include "kernel.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "launch/division.h"

namespace hipconv {

namespace {

// Sets how a block of so many strips uses LDS; returns its bytes, or more than there are if its threads have too few loads.
template <typename Shape>
int64_t use_lds(StripsParams& g, int64_t block_strips, int64_t threads, int64_t stride) {
    const Conv2dParams& p = g.conv;
    const int64_t reach = reach_of(p.kernel_width, p.dilation_w);
    g.block_strips = static_cast<int32_t>(block_strips);
    g.run_tail = static_cast<int32_t>(reach > stride ? round_up(reach - stride, 8) : 0);
    const int64_t most_runs = (block_strips - 1 + g.tiles - 1) / g.tiles + 1;
    const int64_t runs = most_runs < block_strips ? most_runs : block_strips;
    const int64_t columns = Shape::kOwn * block_strips + g.run_tail * runs;
    if (columns > Shape::kLoads * (threads / Shape::kChunks)) return kStripsLds + 1;
    g.row_bytes = static_cast<int32_t>(columns * Shape::kPitch);
    g.stage_bytes = Shape::kInRows * g.row_bytes + kStripsBehind * Shape::kPitch;
    g.out_at = Shape::kStages * g.stage_bytes;
    g.out_bytes = Shape::kOutRows * kMostStrips * kStripColumns * Shape::kPitch;
    g.filters_at = g.out_at + 2 * g.out_bytes;
    g.mark_at = g.filters_at + Shape::kFilters * 2;
    return g.mark_at + 16;
}

// Sets a call's tiling; returns a block's bytes of LDS.
template <typename Shape>
int64_t tile_strips(StripsParams& g, const Conv2dParams& p, int64_t stride) {
    g.conv = p;
    g.tiles = static_cast<int32_t>(ceil_of(p.out_width, kStripColumns));
    g.channel_blocks = static_cast<int32_t>(ceil_of(p.out_channels, Shape::kChannels));
    const int64_t threads = Shape::kWaves * wave_size_here(), units = compute_units_here();
    int64_t block_strips = kMostStrips, bytes = 0;
    while ((bytes = use_lds<Shape>(g, block_strips, threads, stride)) > kStripsLds && block_strips > 1) block_strips /= 2;
    if (bytes > kStripsLds) return bytes;
    // So many segments that the rounds of blocks, one on each unit, end soonest. To begin takes a block as long as three rows.
    int64_t least = 0, best = 1;
    for (int64_t segments = 1; segments <= p.out_height && segments <= 64; ++segments) {
        const int64_t rows = ceil_of(p.out_height, segments);
        const int64_t blocks = ceil_of(int64_t{p.batch} * g.tiles * segments, block_strips) * g.channel_blocks;
        const int64_t all = ceil_of(blocks, units) * (rows + Shape::kRows - 1 + 3);
        if (segments == 1 || all < least) least = all, best = segments;
    }
    g.segment_rows = static_cast<int32_t>(ceil_of(p.out_height, best));
    g.segments = static_cast<int32_t>(ceil_of(p.out_height, g.segment_rows));
    g.strips = g.conv.batch * g.tiles * g.segments;
    g.divide_by_tiles = divisor_of(static_cast<uint32_t>(g.tiles));
    g.divide_by_segments = divisor_of(static_cast<uint32_t>(g.segments));
    g.divide_by_channel_blocks = divisor_of(static_cast<uint32_t>(g.channel_blocks));
    g.divide_by_run = small_divisor_of(int64_t{Shape::kOwn} * g.tiles + g.run_tail);
    g.divide_by_taps = small_divisor_of(int64_t{p.kernel_height} * p.kernel_width);
    g.divide_by_columns = small_divisor_of(p.kernel_width);
    return bytes;
}

// Calls run with the shape that a call has: the rows of taps that there is room for, and the stride.
template <typename Run>
auto with_shape(const Conv2dParams& p, Run run) {
    const int64_t rows = reach_of(p.kernel_height, p.dilation_h);
    const auto with_taps = [&](auto taps) {
        constexpr int kTaps = decltype(taps)::value;
        if (p.stride_w == 1) return run(taps, std::integral_constant<int, 1>{}, StripsShape<kTaps, 1>{});
        return run(taps, std::integral_constant<int, 2>{}, StripsShape<kTaps, 2>{});
    };
    if (rows <= 5) return with_taps(std::integral_constant<int, 5>{});
    return with_taps(std::integral_constant<int, 7>{});
}

template <typename T, int kTaps, int kStride>
void launch_instance(const StripsParams& p, unsigned blocks, int threads, int shared, void* stream) {
    auto strips = conv2d_depthwise_strips<T, kTaps, kStride, false>;
    if constexpr (kStride == 1)
        if (depthwise_has_more(p.conv)) strips = conv2d_depthwise_strips<T, kTaps, kStride, true>;
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(strips), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    HIPCONV_LAUNCH(true, strips, dim3(blocks, 1, 1), dim3(threads, 1, 1), shared, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

// Tells whether columns of an image tensor are whole vectors of channels.
bool has_channel_vectors(const Image& image, const Conv2dParams& p, int64_t height, int64_t width) {
    return begins_at_multiples(image, p.batch, height, width, 8, p.dtype);
}

}  // namespace

std::vector<Conv2dTile> conv2d_depthwise_strips_tiles(const std::string& arch, DType dtype) {
    if (conv2d_depthwise_banded_tiles(arch, dtype).empty()) return {};
    // A lane of RDNA has too few registers for bands and sums. Of NVIDIA's cards only these have as much LDS.
    if (arch.compare(0, 5, "gfx11") == 0 || arch.compare(0, 5, "gfx12") == 0) return {};
    if (!kCopiesPastRegisters && wave_size_here() == 32) return {};
    const bool is_nvidia = arch.compare(0, 3, "sm_") == 0;
    if (is_nvidia && arch.compare(0, 5, "sm_90") != 0 && arch.compare(0, 5, "sm_10") != 0) return {};
    return {{kMostStrips, kStripColumns}};
}

const char* conv2d_depthwise_strips_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32 || p.out_dtype == DType::f32) return "x and out of 16-bit types";
    if (p.groups != p.in_channels || p.out_channels != p.in_channels)
        return "a group for each channel of x and of out (groups == in_channels == out_channels)";
    if (p.in_channels % 8 != 0 || !has_channel_vectors(p.x, p, p.in_height, p.in_width) ||
        !has_channel_vectors(p.out, p, p.out_height, p.out_width))
        return "channels_last x and out, channels and addresses being multiples of 8 elements";
    if (p.residual.data && (p.residual_dtype == DType::f32 || !has_channel_vectors(p.residual, p, p.out_height, p.out_width)))
        return "no residual, or one of 16 bits that lies as x has to";
    const int64_t rows = reach_of(p.kernel_height, p.dilation_h), columns = reach_of(p.kernel_width, p.dilation_w);
    if (rows > 7 || columns > kStripsMostTaps) return "filters of up to 7 rows and 9 columns, dilation included";
    if (p.stride_h != p.stride_w || p.stride_w > 2) return "strides of 1 or of 2";
    if (depthwise_has_more(p) && p.stride_w != 1) return "zeros around the image and no residual, or strides of 1";
    constexpr int64_t kMost = 1 << 24;
    if (p.in_height > kMost || p.in_width > kMost || p.out_height > kMost || p.out_width > kMost || p.pad_top > kMost ||
        p.pad_left > kMost)
        return "images of up to 2^24 rows and columns";
    if (int64_t{p.batch} * ceil_of(p.out_width, kStripColumns) * p.out_height * ceil_of(p.out_channels, 16) >= kLimit31 / 2)
        return "fewer outputs";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

void conv2d_depthwise_strips(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    with_shape(p, [&](auto taps, auto stride, auto shape) {
        using Shape = decltype(shape);
        constexpr int kTaps = decltype(taps)::value, kStride = decltype(stride)::value;
        StripsParams g{};
        const int64_t bytes = tile_strips<Shape>(g, p, kStride);
        const unsigned blocks = static_cast<unsigned>(ceil_of(g.strips, g.block_strips) * g.channel_blocks);
        const int threads = Shape::kWaves * wave_size_here(), shared = launch_shared_bytes(static_cast<int>(bytes));
        if (!kHalvesShareKernels && p.dtype == DType::bf16)
            launch_instance<std::conditional_t<kHalvesShareKernels, f16, bf16>, kTaps, kStride>(g, blocks, threads, shared,
                                                                                                stream);
        else
            launch_instance<f16, kTaps, kStride>(g, blocks, threads, shared, stream);
    });
}

}  // namespace hipconv
