// The host side of `depthwise_rolling`: what it serves, its tiling and its launch.
#include <hip/hip_runtime.h>

#include "../common/axes.h"
#include "../common/depthwise_frame.h"
#include "../common/launchers.h"
#include "../common/residual.h"
#include "../common/units.h"
#include "../gemm/layout.h"
#include "instances.h"
#include "launch/bounds.h"
#include "launch/compute_units.h"

namespace hipconv {

namespace {

// Tells whether pairs of columns are aligned in all rows.
bool has_pairs(const Image& image, const Conv2dParams& p, int64_t channels, int64_t height, int64_t width) {
    return reinterpret_cast<uintptr_t>(image.data) % (2 * element_bytes(p.dtype)) == 0 && width % 2 == 0 &&
           multiple_of(image.batch_stride, p.batch, 2) && multiple_of(image.channel_stride, channels, 2) &&
           multiple_of(image.row_stride, height, 2);
}

// Sets strides of 32 bits, 0 where there is but one; tells whether they have room.
bool set_strides(RollingStrides& to, int64_t images, int64_t image, int64_t channels, int64_t channel, int64_t rows,
                 int64_t row) {
    const auto fits = [](int64_t stride) { return stride < kLimit31 / 2 && stride > -kLimit31 / 2; };
    image = images > 1 ? image : 0, channel = channels > 1 ? channel : 0, row = rows > 1 ? row : 0;
    to = {static_cast<int32_t>(image), static_cast<int32_t>(channel), static_cast<int32_t>(row)};
    return fits(image) && fits(channel) && fits(row);
}

bool set_strides(RollingParams& g, const Conv2dParams& p) {
    const Image& w = p.weight;
    return set_strides(g.x, p.batch, p.x.batch_stride, p.in_channels, p.x.channel_stride, p.in_height, p.x.row_stride) &&
           set_strides(g.out, p.batch, p.out.batch_stride, p.out_channels, p.out.channel_stride, p.out_height,
                       p.out.row_stride) &&
           set_strides(g.weight, p.out_channels, w.batch_stride, p.kernel_height, w.row_stride, p.kernel_width,
                       w.column_stride);
}

// Chooses a call's kernels, the first that have room for it; returns none if there are none.
const RollingKernels* choose_kernels(RollingParams& g, const Conv2dParams& p) {
    const int64_t columns = reach_of(p.kernel_width, p.dilation_w);
    const GridAxis rows(p.stride_h, dilation_of_rows(p));
    g.classes = rows.apart;
    const bool is_single = p.dtype == DType::f32;
    g.has_words = is_single || has_pairs(p.x, p, p.in_channels, p.in_height, p.in_width);
    g.has_out_words = g.has_words && has_pairs(p.out, p, p.out_channels, p.out_height, p.out_width);
    // Where the stride is 1, x and out of 16 bits have words together or not at all.
    if (p.stride_w == 1 && !is_single) g.has_words = g.has_out_words;
    g.lead = g.has_words && !is_single ? p.pad_left % 2 : 0;
    const int64_t window = int64_t{kRollingColumns - 1} * p.stride_w + columns + g.lead;
    for (const RollingKernels& kernels : is_single        ? single_rolling_kernels()
                                         : rows.step == 1 ? unstrided_rolling_kernels(p.dtype)
                                                          : strided_rolling_kernels(p.dtype))
        if (kernels.step == rows.step && p.kernel_height <= kernels.taps && columns + g.lead <= kernels.reach &&
            window <= kernels.window)
            return &kernels;
    return nullptr;
}

int64_t resident_waves(const RollingParams& g, const RollingKernels& kernels) {
    return (g.has_words ? kernels.blocks_of_words : kernels.blocks) * (kRollingThreads / wave_size_here());
}

// Chooses the number of segments. All waves run at once where they are few enough: then a step of theirs takes as long as
// memory takes to answer, or as many of a unit's waves take in turns. Where they are not, segments of few rows are best, so
// that waves that run at a time read and write what lies together. The constants are cycles of an H100.
int64_t segments_of(const RollingParams& g, const RollingKernels& kernels, int64_t of_images) {
    const int64_t units = compute_units_here(), resident = resident_waves(g, kernels), step = kernels.step;
    const int64_t height = ceil_of(g.conv.out_height, g.classes), halo = ceil_of(g.conv.kernel_height, step) - 1;
    const int64_t alone = step == 1 ? 400 : 1000, each = step == 1 ? 48 : 90, in_rounds = step == 1 ? 36 : 60;
    const auto waves_of_unit = [&](int64_t segments) {
        return ceil_of(ceil_of(of_images * segments, kRollingStrips) * g.conv.out_channels, units);
    };
    const int64_t low = ceil_of(height, larger<int64_t>(14 / step, 4 * halo));
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

void tile_strips(RollingParams& g, const RollingKernels& kernels) {
    Conv2dParams& p = g.conv;
    p.x.column_stride = 1;  // also of one column alone, which comes with any
    p.dilation_h = dilation_of_rows(p);
    set_strides(g, p);
    g.to_residual = bytes_to_residual(p);
    g.tiles = static_cast<int32_t>(ceil_of(p.out_width, kRollingColumns));
    const int64_t of_image = int64_t{g.tiles} * g.classes, rows = ceil_of(p.out_height, g.classes);
    const int64_t segments = segments_of(g, kernels, p.batch * of_image);
    g.segment_rows = static_cast<int32_t>(ceil_of(rows, segments));
    g.segments = static_cast<int32_t>(ceil_of(rows, g.segment_rows));
    g.strips = static_cast<int32_t>(p.batch * of_image * g.segments);
    const int64_t groups = ceil_of(g.strips, kRollingStrips), together = ceil_of(of_image * g.segments, kRollingStrips);
    g.bundle = static_cast<int32_t>(together < groups ? together : groups);
    g.waves = static_cast<int32_t>(round_up(groups, g.bundle) * p.out_channels);
    g.divide_by_tiles = divisor_of(static_cast<uint32_t>(g.tiles));
    g.divide_by_classes = divisor_of(static_cast<uint32_t>(g.classes));
    g.divide_by_segments = divisor_of(static_cast<uint32_t>(g.segments));
    g.divide_by_bundle = divisor_of(static_cast<uint32_t>(g.bundle));
    g.divide_by_filters = divisor_of(static_cast<uint32_t>(p.out_channels));
    g.divide_by_multiplier = divisor_of(static_cast<uint32_t>(p.out_channels / p.in_channels));
    g.divide_by_dilation = divisor_of(static_cast<uint32_t>(p.dilation_h));
    g.divide_by_columns = small_divisor_of(p.kernel_width);
}

}  // namespace

std::vector<Conv2dTile> conv2d_depthwise_rolling_tiles(const std::string& arch, DType dtype) {
    if (dtype == DType::f32 && unit_of(arch) == MatrixUnit::mma_sync && has_tf32(arch))
        return {{kRollingStrips, kRollingColumns}};
    if (conv2d_depthwise_banded_tiles(arch, dtype).empty()) return {};
    // A lane of RDNA has too few registers for bands and sums.
    if (unit_of(arch) == MatrixUnit::wmma11 || unit_of(arch) == MatrixUnit::wmma12) return {};
    return {{kRollingStrips, kRollingColumns}};
}

const char* conv2d_depthwise_rolling_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if ((p.dtype == DType::f32) != (p.out_dtype == DType::f32)) return "x and out of 16-bit types, or of float32";
    if (p.dtype == DType::f32 && p.float32_precision != Float32Precision::tf32) return "float32 that may be rounded to TF32";
    if (p.groups != p.in_channels) return "a group for each channel of x (groups == in_channels)";
    if (p.residual.data && !residual_lies_as_out(p))
        return "no residual, or one of out's type and strides a multiple of 16 bytes from it";
    if (depthwise_has_frame(p) && !depthwise_frame_pays(p)) return "zeros around the image, or few outputs that see beyond it";
    if ((p.x.column_stride != 1 && p.in_width > 1) || (p.out.column_stride != 1 && p.out_width > 1))
        return "rows of x and out without gaps between their columns";
    RollingParams g{};
    if (!choose_kernels(g, p))
        return p.dtype == DType::f32
                   ? "filters of float32 of up to 11 rows and 16 columns, dilation of columns included, strides of 1 and 2"
                   : "filters of up to 11 rows and 16 columns, dilation of columns included; a stride_h of up to 4 times what "
                     "it has in common with dilation_h, and a stride_w as large, or of 2";
    if (!set_strides(g, p)) return "strides in memory of fewer than 2^30 elements";
    constexpr int64_t kMost = 1 << 24;
    if (p.in_height > kMost || p.in_width > kMost || p.out_height > kMost || p.out_width > kMost || p.pad_top > kMost ||
        p.pad_left > kMost || reach_of(p.kernel_height, p.dilation_h) > kMost || p.stride_h > kMost)
        return "images, and strides, of up to 2^24 rows and columns";
    if (int64_t{p.batch} * ceil_of(p.out_width, kRollingColumns) * round_up(p.out_height, g.classes) * p.out_channels >=
        kLimit31 / 2)
        return "fewer outputs";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

void conv2d_depthwise_rolling(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    RollingParams g{};
    g.conv = p;
    const RollingKernels& kernels = *choose_kernels(g, p);
    tile_strips(g, kernels);
    kernels.launch(g, stream);
    depthwise_frame(p, stream);
}

}  // namespace hipconv
