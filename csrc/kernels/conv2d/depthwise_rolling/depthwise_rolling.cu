// The host side of `depthwise_rolling`: what it serves, its tiling and its launch.
#include <hip/hip_runtime.h>

#include <type_traits>

#include "../common/depthwise_frame.h"
#include "../common/launchers.h"
#include "../common/residual.h"
#include "../common/units.h"
#include "../gemm/layout.h"
#include "kernel.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "launch/division.h"

namespace hipconv {

namespace {

// Tells whether pairs of columns are words of memory in all rows.
bool has_words(const Image& image, const Conv2dParams& p, int64_t channels, int64_t height, int64_t width) {
    return reinterpret_cast<uintptr_t>(image.data) % 4 == 0 && width % 2 == 0 && multiple_of(image.batch_stride, p.batch, 2) &&
           multiple_of(image.channel_stride, channels, 2) && multiple_of(image.row_stride, height, 2);
}

// Chooses a call's kernel; returns whether there is one.
bool choose_kernel(RollingParams& g, const Conv2dParams& p) {
    const int64_t rows = reach_of(p.kernel_height, p.dilation_h), columns = reach_of(p.kernel_width, p.dilation_w);
    // Where the stride is 1, x and out have words together or not at all.
    g.has_words = has_words(p.x, p, p.in_channels, p.in_height, p.in_width);
    g.has_out_words = g.has_words && has_words(p.out, p, p.out_channels, p.out_height, p.out_width);
    if (p.stride_w == 1) g.has_words = g.has_out_words;
    g.lead = g.has_words ? p.pad_left % 2 : 0;
    g.taps = columns + g.lead > rolling_reach(7) || rows > 7 ? 11 : rows <= 3 ? 3 : rows <= 5 ? 5 : 7;
    return rows <= 11 && columns + g.lead <= rolling_reach(11);
}

int64_t resident_waves(const RollingParams& g) {
    return rolling_blocks(g.taps, g.conv.stride_w, g.has_words) * (kRollingThreads / wave_size_here());
}

// Chooses the number of segments. All waves run at once where they are few enough: then a step of theirs takes as long as
// memory takes to answer, or as many of a unit's waves take in turns. Where they are not, segments of few rows are best, so
// that waves that run at a time read and write what lies together. The constants are cycles of an H100.
int64_t segments_of(const RollingParams& g, int64_t of_images) {
    const Conv2dParams& p = g.conv;
    const int64_t units = compute_units_here(), resident = resident_waves(g), height = p.out_height;
    const int64_t halo = ceil_of(reach_of(p.kernel_height, p.dilation_h), p.stride_h) - 1;
    const int64_t alone = p.stride_h == 1 ? 400 : 1000, each = p.stride_h == 1 ? 48 : 90, in_rounds = p.stride_h == 1 ? 36 : 60;
    const auto waves_of_unit = [&](int64_t segments) {
        return ceil_of(ceil_of(of_images * segments, kRollingStrips) * p.out_channels, units);
    };
    const auto larger = [](int64_t a, int64_t b) { return a > b ? a : b; };
    const int64_t low = ceil_of(height, larger(14 / p.stride_h, 4 * halo));
    int64_t best = height <= 7 && height > 1 ? 2 : low;
    const int64_t waves = waves_of_unit(best), rest = waves % resident;
    // To begin takes a wave as long as two rows beside others, and as long as four where all begin at once.
    int64_t least = (waves / resident * resident * in_rounds + (rest > 0 ? larger(alone, rest * in_rounds) : 0)) *
                    (ceil_of(height, best) + halo + 2);
    for (int64_t segments = 1; segments <= 32 && segments <= height; ++segments) {
        const int64_t at_once = waves_of_unit(segments);
        if (at_once > resident) break;
        const int64_t time = larger(alone, at_once * each) * (ceil_of(height, segments) + halo + 4);
        if (time < least) least = time, best = segments;
    }
    return best;
}

void tile_strips(RollingParams& g, const Conv2dParams& p) {
    g.conv = p;
    g.conv.x.column_stride = 1;  // also of one column alone, which comes with any
    choose_kernel(g, p);
    g.to_residual = bytes_to_residual(p);
    g.tiles = static_cast<int32_t>(ceil_of(p.out_width, kRollingColumns));
    const int64_t of_images = int64_t{p.batch} * g.tiles;
    const int64_t segments = segments_of(g, of_images);
    g.segment_rows = static_cast<int32_t>(ceil_of(p.out_height, segments));
    g.segments = static_cast<int32_t>(ceil_of(p.out_height, g.segment_rows));
    g.strips = static_cast<int32_t>(of_images * g.segments);
    const int64_t groups = ceil_of(g.strips, kRollingStrips), of_image = ceil_of(int64_t{g.tiles} * g.segments, kRollingStrips);
    g.bundle = static_cast<int32_t>(of_image < groups ? of_image : groups);
    g.waves = static_cast<int32_t>(round_up(groups, g.bundle) * p.out_channels);
    g.divide_by_tiles = divisor_of(static_cast<uint32_t>(g.tiles));
    g.divide_by_segments = divisor_of(static_cast<uint32_t>(g.segments));
    g.divide_by_bundle = divisor_of(static_cast<uint32_t>(g.bundle));
    g.divide_by_filters = divisor_of(static_cast<uint32_t>(p.out_channels));
    g.divide_by_multiplier = divisor_of(static_cast<uint32_t>(p.out_channels / p.in_channels));
    g.divide_by_columns = small_divisor_of(p.kernel_width);
}

template <typename T, int kTaps, int kStride, bool kWords, bool kOutWords, bool kResidual>
void launch_instance(const RollingParams& p, void* stream) {
    const unsigned blocks = static_cast<unsigned>(ceil_of(p.waves, kRollingThreads / wave_size_here()));
    HIPCONV_LAUNCH(true, (conv2d_depthwise_rolling<T, kTaps, kStride, kWords, kOutWords, kResidual>), dim3(blocks, 1, 1),
                   dim3(kRollingThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

template <typename T, int kTaps, int kStride>
void launch_units(const RollingParams& p, void* stream) {
    // A kernel of words looks for a residual, which costs it nothing; of elements there are two.
    constexpr bool kMayAdd = kStride == 1;
    if (p.has_out_words) return launch_instance<T, kTaps, kStride, true, true, kMayAdd>(p, stream);
    if constexpr (kStride > 1) {
        if (p.has_words) return launch_instance<T, kTaps, kStride, true, false, false>(p, stream);
    } else {
        if (p.conv.residual.data) return launch_instance<T, kTaps, kStride, false, false, true>(p, stream);
    }
    launch_instance<T, kTaps, kStride, false, false, false>(p, stream);
}

template <typename T, int kTaps>
void launch_stride(const RollingParams& p, void* stream) {
    if (p.conv.stride_w == 1) return launch_units<T, kTaps, 1>(p, stream);
    launch_units<T, kTaps, 2>(p, stream);
}

template <typename T>
void launch_rolling(const RollingParams& p, void* stream) {
    if (p.taps == 3) return launch_stride<T, 3>(p, stream);
    if (p.taps == 5) return launch_stride<T, 5>(p, stream);
    if (p.taps == 7) return launch_stride<T, 7>(p, stream);
    launch_stride<T, 11>(p, stream);
}

}  // namespace

std::vector<Conv2dTile> conv2d_depthwise_rolling_tiles(const std::string& arch, DType dtype) {
    if (conv2d_depthwise_banded_tiles(arch, dtype).empty()) return {};
    // A lane of RDNA has too few registers for bands and sums.
    if (unit_of(arch) == MatrixUnit::wmma11 || unit_of(arch) == MatrixUnit::wmma12) return {};
    return {{kRollingStrips, kRollingColumns}};
}

const char* conv2d_depthwise_rolling_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32 || p.out_dtype == DType::f32) return "x and out of 16-bit types";
    if (p.groups != p.in_channels) return "a group for each channel of x (groups == in_channels)";
    if (p.residual.data && (p.stride_h != 1 || !residual_lies_as_out(p)))
        return "no residual, or one of out's type and strides a multiple of 16 bytes from it, and strides of 1";
    if (depthwise_has_frame(p) && !depthwise_frame_pays(p)) return "zeros around the image, or few outputs that see beyond it";
    if ((p.x.column_stride != 1 && p.in_width > 1) || (p.out.column_stride != 1 && p.out_width > 1))
        return "rows of x and out without gaps between their columns";
    RollingParams g{};
    if (!choose_kernel(g, p)) return "filters of up to 11 rows and 16 columns, dilation included";
    if (p.stride_h != p.stride_w || p.stride_w > 2) return "strides of 1 or of 2";
    constexpr int64_t kMost = 1 << 24;
    if (p.in_height > kMost || p.in_width > kMost || p.out_height > kMost || p.out_width > kMost || p.pad_top > kMost ||
        p.pad_left > kMost)
        return "images of up to 2^24 rows and columns";
    if (int64_t{p.batch} * ceil_of(p.out_width, kRollingColumns) * p.out_height * p.out_channels >= kLimit31 / 2)
        return "fewer outputs";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

void conv2d_depthwise_rolling(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    RollingParams g{};
    tile_strips(g, p);
    if (!kHalvesShareKernels && p.dtype == DType::bf16)
        launch_rolling<std::conditional_t<kHalvesShareKernels, f16, bf16>>(g, stream);
    else
        launch_rolling<f16>(g, stream);
    depthwise_frame(p, stream);
}

}  // namespace hipconv
