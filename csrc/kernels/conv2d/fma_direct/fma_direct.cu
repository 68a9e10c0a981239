// The host side of `fma_direct`: what it serves, how it cuts a call, and its launch.
#include <hip/hip_runtime.h>

#include "../common/axes.h"
#include "../common/launchers.h"
#include "../common/residual.h"
#include "../gemm/layout.h"
#include "kernel.h"
#include "launch/bounds.h"
#include "launch/check.h"
#include "launch/compute_units.h"

namespace hipconv {

namespace {

// Tells whether an image has its channels beside each other.
bool is_across(const Image& image, int32_t channels) { return image.channel_stride == 1 || channels == 1; }

// The bytes that x is brought to LDS by at once: the most that divide all its addresses, or those of an element.
int32_t unit_bytes_of(const Conv2dParams& c) {
    const int bytes = element_bytes(c.dtype);
    for (int32_t unit : {16, 4})
        if (unit > bytes && c.in_channels % (unit / bytes) == 0 &&
            begins_at_multiples(c.x, c.batch, c.in_height, c.in_width, unit / bytes, c.dtype))
            return unit;
    return bytes;
}

// Sets what lanes of a block share, given how many lie along filters, columns and rows of outputs. Returns false if LDS has no
// room for it.
bool use_lds(FmaDirectParams& p, int quads, int groups, int rows) {
    const Conv2dParams& c = p.conv;
    const int bytes = element_bytes(c.dtype), of_unit = p.unit_bytes / bytes, filters = kQuad * quads;
    const int64_t products = int64_t{c.kernel_height} * c.kernel_width * p.group_channels;
    p.quads = quads, p.groups = groups, p.rows = rows;
    p.quad_blocks = static_cast<int32_t>(ceil_of(c.out_channels, filters));
    p.tiles = static_cast<int32_t>(ceil_of(ceil_of(c.out_width, p.apart_w), groups * kFmaDirectColumns));
    // The channels of the groups that a block's filters are of, from one that begins a unit on.
    const int64_t whole = ceil_of(filters, p.group_filters);
    const bool begins = filters % p.group_filters == 0 || p.group_filters % filters == 0;
    const int64_t seen = (begins ? whole : whole + 1) * p.group_channels;
    const bool begins_units = begins && (filters / p.group_filters * p.group_channels) % of_unit == 0 &&
                              (filters >= p.group_filters || p.group_channels % of_unit == 0);
    const int64_t all = smaller<int64_t>(seen + (begins_units ? 0 : of_unit - 1), round_up(c.in_channels, of_unit));
    const int64_t units = ceil_of(all, of_unit),
                  columns = (groups * kFmaDirectColumns - 1) * int64_t{p.step_w} + c.kernel_width;
    int64_t column_bytes = round_up(units * p.unit_bytes, 16);
    if (!p.across && column_bytes % 32 == 0) column_bytes += 16;  // lanes along columns write to other banks
    // Lanes along rows read other banks.
    int64_t row_bytes = columns * column_bytes;
    const int64_t lanes_bytes = p.sees == QuadSees::four_channels ? int64_t{filters} * bytes % 128 : 16;
    for (int i = 0; i < 8 && lanes_bytes != 0 && row_bytes * p.step_h % 128 != lanes_bytes; ++i) row_bytes += 16;
    const int64_t ring_rows = (int64_t{rows} - 1) * p.step_h + c.kernel_height;
    p.filter_pitch = quads + (quads + 1) % 2;
    const int64_t filters_bytes = products * p.filter_pitch * 16;
    const int64_t lds = filters_bytes + ring_rows * row_bytes + 2 * p.step_w * column_bytes;
    if (lds > kFmaDirectLds || columns * units >= 1 << 15 || products * filters >= 1 << 15) return false;
    p.units = static_cast<int32_t>(units), p.columns = static_cast<int32_t>(columns);
    p.ring_rows = static_cast<int32_t>(ring_rows), p.row_bytes = static_cast<int32_t>(row_bytes);
    p.column_bytes = static_cast<int32_t>(column_bytes), p.filters_bytes = static_cast<int32_t>(filters_bytes);
    p.lds_bytes = static_cast<int32_t>(lds);
    const int64_t of_row = columns * units, threads = int64_t{quads} * groups * rows;
    p.splits = static_cast<int32_t>(smaller(larger<int64_t>(threads / of_row, 1), int64_t{rows} * p.step_h));
    if (p.splits > ring_rows) p.splits = static_cast<int32_t>(ring_rows);
    return true;
}

// Columns of x that a thread reads of a row, in all phases.
double columns_read(const FmaDirectParams& p) { return 7.0 * smaller(p.step_w, p.conv.kernel_width) + p.conv.kernel_width; }

// Instructions of a thread for a row of outputs, of one channel.
double instructions_of_row(const FmaDirectParams& p) {
    const bool is_one = p.sees == QuadSees::one_channel;
    const double loads = p.sees == QuadSees::any_channels ? 4 : 1, conversions = p.conv.dtype == DType::f32 ? 0
                                                                                 : is_one                   ? 1
                                                                                                            : 4;
    const double phases = smaller(p.step_w, p.conv.kernel_width);
    return p.conv.kernel_height * (columns_read(p) * (loads + conversions + 0.5) + p.conv.kernel_width * 39.0 + 35 * phases);
}

// Cuts rows of outputs into segments, so that a call takes fewest cycles. Returns them, if they are less than `least`. The
// cycles were fitted on an H200 to 50 layers, cut in all ways, and to 290 others: the way chosen takes 1.05 of the best one's
// time in the mean. fma_direct_tiling.py has the same rules.
double cut_segments(FmaDirectParams& p, int64_t compute_units, double least) {
    const Conv2dParams& c = p.conv;
    const int bytes = element_bytes(c.dtype), taps = c.kernel_height * c.kernel_width;
    const int threads = static_cast<int>(round_up(int64_t{p.quads} * p.groups * p.rows, 32));
    const double resident = smaller(kFmaDirectUnitLds / (p.lds_bytes + 1024), 512 / threads);
    if (resident < 1) return 0;
    // Instructions of a thread: of a row of outputs; to bring rows of x, and the filters.
    const bool is_whole = p.sees == QuadSees::four_channels, is_one = p.sees == QuadSees::one_channel;
    const double columns = columns_read(p);
    const double out_row = instructions_of_row(p) * p.group_channels + (is_across(c.out, c.out_channels) ? 300 : 2600);
    const int64_t units = int64_t{p.columns} * p.units * p.splits;
    const double bring = 280.0 * double(ceil_of(units, threads)), times = c.padding_mode == PaddingMode::zeros ? 1 : 2;
    const double bring_row = (p.unit_bytes >= 4 ? 8 : 25) * times * double(ceil_of(units, threads)) / p.splits;
    const double filters = 35.0 * double(ceil_of(int64_t{taps} * p.group_channels * p.quads * kQuad, 4 * threads)) + 440;
    // Accesses of LDS of a wave, for a row of outputs.
    const double reads = is_whole ? bytes : is_one ? 2.4 : 9.6;
    const double accesses = double(p.group_channels) * c.kernel_height * (columns * reads + 7.1 * c.kernel_width);
    const int64_t grid_rows = ceil_of(c.out_height, p.apart_h);
    const double of_image = double(p.apart_h) * p.apart_w * p.tiles * p.quad_blocks;
    double best = 0;
    for (int64_t segments = 1; segments <= 32; segments += 1 + segments / 2) {
        const int64_t rows = round_up(ceil_of(grid_rows, segments), p.rows), count = ceil_of(grid_rows, rows);
        if (count != segments && segments > 1) continue;
        const double blocks = of_image * c.batch * double(count), steps = double(rows / p.rows);
        if (blocks >= double(1u << 31)) break;
        const double x_rows = double(rows - 1) * p.step_h + c.kernel_height;
        const double issue = threads / (4 * 32 * 0.72) * (filters + steps * (out_row + bring + 60) + x_rows * bring_row);
        const double second_cache = x_rows * p.columns * p.units * p.unit_bytes / 13.8, lds = threads / 32.0 * steps * accesses;
        const double a_unit = blocks / double(compute_units), together = smaller(larger(a_unit, 1.0), resident);
        const double rounds = a_unit / resident > 5 ? a_unit / resident + 0.5 : double(int64_t(a_unit / resident + 0.97));
        const double busy = together * larger(issue, larger(second_cache, lds));
        const double waits = 2640 + steps * (3450 + 3.6 * out_row) + 2.6 * x_rows * bring_row;
        const double cycles = larger(rounds, 1.0) * (larger(busy, waits) + 0.29 * smaller(busy, waits));
        if (cycles >= least) continue;
        least = best = cycles;
        p.segment_rows = static_cast<int32_t>(rows), p.segments = static_cast<int32_t>(count);
        p.blocks = static_cast<uint32_t>(blocks);
    }
    return best;
}

// Describes a call, or a turned one, before it is cut.
FmaDirectParams describe(const Conv2dParams& conv) {
    FmaDirectParams p{};
    p.conv = conv;
    Conv2dParams& c = p.conv;
    p.group_channels = c.in_channels / c.groups, p.group_filters = c.out_channels / c.groups;
    p.sees = p.group_filters % kQuad == 0                    ? QuadSees::one_channel
             : p.group_filters == 1 && p.group_channels == 1 ? QuadSees::four_channels
                                                             : QuadSees::any_channels;
    p.across = is_across(c.x, c.in_channels);
    p.unit_bytes = unit_bytes_of(c);
    // One row, or column, of taps is dilated by nothing: x is brought without what lies between those that outputs see.
    if (c.kernel_height == 1) c.dilation_h = c.stride_h;
    if (c.kernel_width == 1) c.dilation_w = c.stride_w;
    const GridAxis rows(c.stride_h, c.dilation_h), columns(c.stride_w, c.dilation_w);
    p.apart_h = rows.apart, p.step_h = rows.step, p.apart_w = columns.apart, p.step_w = columns.step;
    return p;
}

// Instructions for each column of outputs that there is, columns that threads make in vain included.
double instructions_of_column(const FmaDirectParams& p) {
    const int64_t of_grid = round_up(ceil_of(p.conv.out_width, p.apart_w), kFmaDirectColumns);
    return double(p.apart_w * of_grid) / p.conv.out_width * instructions_of_row(p);
}

// Plans a call: the way in which blocks are cut that takes fewest cycles. Returns these, or 0 if LDS has no room for any.
double plan_fma_direct(const Conv2dParams& conv, FmaDirectParams& best) {
    const int64_t compute_units = compute_units_here();
    FmaDirectParams p = describe(conv);
    // The window slides down columns where that is less work, but if lanes along columns lie together in memory.
    if (p.across && is_across(conv.out, conv.out_channels)) {
        const FmaDirectParams other = describe(turned(conv));
        if (instructions_of_column(other) < 0.95 * instructions_of_column(p)) p = other;
    }
    const Conv2dParams& c = p.conv;
    const int64_t all_quads = ceil_of(c.out_channels, kQuad), all_rows = ceil_of(c.out_height, p.apart_h);
    const int64_t all_groups = ceil_of(ceil_of(c.out_width, p.apart_w), kFmaDirectColumns);
    double least = 1e300;
    int before = 0;
    for (int most : {32, 16, 8, 4, 2, 1}) {
        if (most < 4 && least < 1e300) break;
        // Lanes along filters, evenly for all blocks, but by whole sectors.
        const int64_t even = ceil_of(all_quads, ceil_of(all_quads, most));
        const int quads = static_cast<int>(smaller<int64_t>(even <= 4 ? even : round_up(even, 4), most));
        if (quads == before) continue;
        before = quads;
        for (int groups = 1; groups <= 2 && groups <= all_groups; ++groups) {
            int rows = 1;
            while (2 * rows * groups * quads <= kFmaDirectThreads && rows < all_rows) rows *= 2;
            for (int fitting = 0; fitting < 3 && rows > 0; rows /= 2) {
                if (!use_lds(p, quads, groups, rows)) continue;
                ++fitting;
                const double cycles = cut_segments(p, compute_units, least);
                if (cycles > 0) least = cycles, best = p;
            }
        }
    }
    return least < 1e300 ? least : 0;
}

template <typename T, QuadSees kSees>
void launch_instance(const FmaDirectParams& p, void* stream) {
    const auto fma_direct = conv2d_fma_direct<T, kSees>;
    const unsigned threads = static_cast<unsigned>(round_up(int64_t{p.quads} * p.groups * p.rows, wave_size_here()));
    const int bytes = launch_shared_bytes(p.lds_bytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(fma_direct), hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
    HIPCONV_LAUNCH(true, fma_direct, dim3(p.blocks, 1, 1), dim3(threads, 1, 1), bytes, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace

const char* conv2d_fma_direct_refusal(const Conv2dParams& c, const Conv2dPlan& plan) {
    constexpr int64_t kMost = 1 << 24;
    const auto fits = [](int64_t in, int64_t out, int64_t padding, int64_t taps, int64_t stride, int64_t dilation) {
        return in < kMost && out < kMost && padding < kMost && reach_of(taps, dilation) < kMost && stride * out < 8 * kMost;
    };
    if (!fits(c.in_height, c.out_height, c.pad_top, c.kernel_height, c.stride_h, c.dilation_h) ||
        !fits(c.in_width, c.out_width, c.pad_left, c.kernel_width, c.stride_w, c.dilation_w))
        return "images of fewer than 2^24 rows and columns";
    if (plan.split_k != 1) return "split_k of 1";
    FmaDirectParams p;
    return plan_fma_direct(c, p) > 0 ? nullptr : "filters of which four, and what they see of x, leave room in LDS";
}

void conv2d_fma_direct(const Conv2dParams& conv, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    FmaDirectParams p{};
    plan_fma_direct(conv, p);
    const Conv2dParams& c = p.conv;
    const auto small = [](int64_t count) { return small_divisor_of(count); };
    const auto by = [](int64_t count) { return divisor_of(static_cast<uint32_t>(count)); };
    p.divide_by_quads = small(p.quads), p.divide_by_rows = small(p.rows);
    p.divide_by_row = small(int64_t{p.columns} * p.units), p.divide_by_inner = small(p.across ? p.units : p.columns);
    p.divide_by_taps = small(int64_t{c.kernel_height} * c.kernel_width), p.divide_by_width = small(c.kernel_width);
    p.divide_by_products = small(int64_t{c.kernel_height} * c.kernel_width * p.group_channels);
    p.divide_by_quad_blocks = by(p.quad_blocks), p.divide_by_tiles = by(p.tiles), p.divide_by_segments = by(p.segments);
    p.divide_by_apart_h = by(p.apart_h), p.divide_by_apart_w = by(p.apart_w);
    p.divide_by_group_filters = by(p.group_filters);
    const bool has_quads = c.out_channels % kQuad == 0;
    p.out_by_quads = has_quads && begins_at_multiples(c.out, c.batch, c.out_height, c.out_width, kQuad, c.out_dtype);
    p.residual_by_quads = p.out_by_quads && c.residual.data && residual_lies_as_out(c);
    p.to_residual = bytes_to_residual(c);
    const int of_vector = 16 / element_bytes(c.out_dtype);
    p.out_by_rows = c.out.column_stride == 1 && p.apart_w == 1 && is_aligned(c.out.data) &&
                    multiple_of(c.out.batch_stride, c.batch, of_vector) &&
                    multiple_of(c.out.channel_stride, c.out_channels, of_vector) &&
                    multiple_of(c.out.row_stride, c.out_height, of_vector);
    with_dtype(c.dtype, [&](auto type) {
        using T = decltype(type);
        if (p.sees == QuadSees::one_channel) return launch_instance<T, QuadSees::one_channel>(p, stream);
        if (p.sees == QuadSees::four_channels) return launch_instance<T, QuadSees::four_channels>(p, stream);
        launch_instance<T, QuadSees::any_channels>(p, stream);
    });
}

}  // namespace hipconv
