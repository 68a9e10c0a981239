// The host side of `depthwise_tile`: what it serves, how it cuts a call, and its launch.
#include <hip/hip_runtime.h>

#include "../common/axes.h"
#include "../common/launchers.h"
#include "../gemm/layout.h"
#include "kernel.h"
#include "launch/bounds.h"
#include "launch/check.h"
#include "launch/compute_units.h"

namespace hipconv {

namespace {

// Bytes of LDS: of a compute unit of an NVIDIA card, and what each block takes beside its own.
constexpr int64_t kLdsOfUnit = 224 * 1024, kBeside = 1024;

// Sets how a block of so many channels, columns and lines (groups of kTileRows rows of each class) uses LDS. Returns its bytes,
// or 0 if the kernel cannot count them.
int64_t use_lds(DepthwiseTileParams& p, int64_t channels, int64_t columns, int64_t lines) {
    const Conv2dParams& c = p.conv;
    const int64_t rows = smaller<int64_t>(c.out_height, lines * kTileRows * p.apart);
    const int64_t in_rows = (rows - 1) * c.stride_h + reach_of(c.kernel_height, c.dilation_h);
    const int64_t in_columns = (columns - 1) * c.stride_w + reach_of(c.kernel_width, c.dilation_w);
    // The last window of a thread ends at this row of a phase; one that begins behind the last phase, a row later.
    const int64_t taps = ceil_of(c.kernel_height, p.tap_phases);
    const int64_t phase_rows = lines * kTileRows + taps - 1 + (p.apart > 1 || p.tap_phases > 1 ? 1 : 0);
    const int64_t phases = p.across ? 1 : c.stride_w, phase_columns = ceil_of(in_columns, phases);
    const int64_t pitch = phase_rows * p.step | 1;
    const int64_t filters = channels * (c.out_channels / c.in_channels), tap_pitch = round_up(taps, 4);
    int64_t filter_pitch = tap_pitch * p.tap_phases * c.kernel_width;
    if (filter_pitch % 8 == 0) filter_pitch += 4;  // lanes along filters read other banks
    // Lanes read other banks: those along columns, or channels, as a column has an odd number of words, and those of the next
    // channel, as they go on where these end.
    int64_t channel_words = p.across ? pitch : phases * phase_columns * pitch;
    if (!p.across) channel_words += (columns * pitch - channel_words) & 31;
    const int64_t column_words = p.across ? channels * pitch : pitch;
    const int64_t words = p.across ? phase_columns * column_words : channels * channel_words;
    const int64_t tile_words = round_up(words, 4), staged = channels * in_columns;
    const int64_t bytes = 4 * (tile_words + filters * filter_pitch);
    p.row_groups = static_cast<int32_t>(lines * p.apart);
    if (bytes > kTileLds || filters * c.kernel_height * c.kernel_width >= 1 << 15 || in_rows >= 1 << 15 ||
        p.row_groups * columns * filters >= 1 << 15)
        return 0;
    p.block_channels = static_cast<int32_t>(channels), p.block_filters = static_cast<int32_t>(filters);
    p.block_rows = static_cast<int32_t>(lines * kTileRows * p.apart), p.block_columns = static_cast<int32_t>(columns);
    p.in_rows = static_cast<int32_t>(in_rows), p.in_columns = static_cast<int32_t>(in_columns);
    p.staged = static_cast<int32_t>(staged);
    const int64_t steps = ceil_of(in_rows, p.step), most_parts = ceil_of(steps * p.step, 8);
    const int64_t parts = larger<int64_t>(1, smaller<int64_t>(kTileThreads / staged, most_parts));
    p.part_lines = static_cast<int32_t>(ceil_of(steps, parts)), p.part_rows = p.part_lines * p.step;
    p.parts = static_cast<int32_t>(ceil_of(in_rows, p.part_rows));
    p.phase_rows = static_cast<int32_t>(phase_rows), p.phase_columns = static_cast<int32_t>(phase_columns);
    p.column_words = static_cast<int32_t>(column_words), p.channel_words = static_cast<int32_t>(channel_words);
    p.next_column = static_cast<int32_t>(p.across ? c.stride_w * column_words : column_words);
    p.tap_phase_columns = static_cast<int32_t>(phases), p.tap_phase_step = static_cast<int32_t>(c.dilation_w % phases);
    p.next_tap = static_cast<int32_t>((c.dilation_w / phases + c.dilation_w % phases * phase_columns) * column_words);
    p.next_tap_wraps = static_cast<int32_t>((1 - phases * phase_columns) * column_words);
    p.tap_pitch = static_cast<int32_t>(tap_pitch), p.filter_pitch = static_cast<int32_t>(filter_pitch);
    p.filters_at = static_cast<int32_t>(tile_words);
    return bytes;
}

// Cycles of a call that is cut so: what blocks of a compute unit issue and bring in turns, or what each waits for. They were
// fitted on an H200 to 80 layers cut in 2,200 ways; depthwise_tile_tiling.py has the same rules.
double cycles_of(const DepthwiseTileParams& p, int64_t bytes, int64_t compute_units) {
    const Conv2dParams& c = p.conv;
    const auto turns = [](int64_t items) { return double(ceil_of(items, kTileThreads)); };
    const int64_t taps = int64_t{c.kernel_height} * c.kernel_width, phases = smaller(p.tap_phases, c.kernel_height);
    // Instructions of a thread: to bring x and filters, and to make outputs.
    const double stage = 18.0 * p.part_rows * turns(int64_t{p.staged} * p.parts) + 60 * turns(p.block_filters * taps);
    const double outputs = 370 + 8.0 * double(phases * c.kernel_width) + (kTileRows + 1.25) * double(taps);
    const double all = stage + outputs * turns(int64_t{p.row_groups} * p.block_columns * p.block_filters);
    // Sectors of memory, in runs that begin anywhere.
    const double run = double(p.across ? p.block_channels : p.in_columns) * element_bytes(c.dtype);
    const double sectors = p.in_rows * double(p.staged) * element_bytes(c.dtype) / run * (run / 32 + 1);
    const int64_t fitting = kCopiesPastRegisters ? kLdsOfUnit / (bytes + kBeside) : kTileBlocks;
    const double resident = double(smaller<int64_t>(fitting, kTileBlocks));
    const double of_unit = double(p.blocks) / double(compute_units), busy = larger(1.6 * (all + 100), 1.85 * sectors);
    return (of_unit / resident + 1) * larger(smaller(of_unit, resident) * busy, 2050 + 5.1 * all);
}

bool set_strides(DepthwiseTileParams& p) {
    const Conv2dParams& c = p.conv;
    return set_strides(p.x, c.x, c.batch, c.in_channels, c.in_height, c.in_width) &&
           set_strides(p.weight, c.weight, c.out_channels, 1, c.kernel_height, c.kernel_width) &&
           set_strides(p.out, c.out, c.batch, c.out_channels, c.out_height, c.out_width) &&
           (!c.residual.data || set_strides(p.residual, c.residual, c.batch, c.out_channels, c.out_height, c.out_width));
}

// Describes a call before it is cut.
DepthwiseTileParams describe(const Conv2dParams& conv) {
    DepthwiseTileParams p{};
    p.conv = conv;
    Conv2dParams& c = p.conv;
    c.dilation_h = dilation_of_rows(c);
    const GridAxis rows(c.stride_h, c.dilation_h);
    p.apart = rows.apart, p.step = c.stride_h * p.apart, p.tap_phases = p.step / c.dilation_h;
    p.across = c.in_channels > 1 && c.x.channel_stride == 1;
    p.channels = p.across ? c.in_channels : c.batch * c.in_channels;
    return p;
}

// Plans a call: the way in which it is cut that takes fewest cycles. Returns a block's bytes of LDS, or 0 if it has no room.
int64_t plan_depthwise_tile(const Conv2dParams& conv, DepthwiseTileParams& best) {
    const int64_t compute_units = compute_units_here();
    DepthwiseTileParams p = describe(conv);
    const Conv2dParams& c = p.conv;
    const int64_t all_lines = ceil_of(c.out_height, int64_t{kTileRows} * p.apart), images = p.across ? c.batch : 1;
    int64_t best_bytes = 0;
    double least = 0;
    for (int64_t column_blocks = ceil_of(c.out_width, 128), tried = 0; tried < 4 && column_blocks <= c.out_width; ++tried) {
        const int64_t columns = ceil_of(c.out_width, column_blocks);
        for (int64_t row_blocks = 1; row_blocks <= all_lines; row_blocks += 1 + row_blocks / 3) {
            const int64_t lines = ceil_of(all_lines, row_blocks);
            for (int64_t channels = 1; channels <= 64; channels *= 2) {
                const int64_t blocks = ceil_of(p.channels, channels), even = p.across ? ceil_of(p.channels, blocks) : channels;
                const int64_t bytes = use_lds(p, even, columns, lines);
                if (bytes == 0) break;
                p.channel_blocks = static_cast<int32_t>(blocks);
                p.row_blocks = static_cast<int32_t>(ceil_of(all_lines, lines));
                p.column_blocks = static_cast<int32_t>(ceil_of(c.out_width, columns));
                const double all = double(blocks) * p.row_blocks * p.column_blocks * double(images);
                if (all * kTileThreads >= double(kLimit32)) continue;  // AMD counts the threads of a launch in 32 bits
                p.blocks = static_cast<uint32_t>(all);
                const double cycles = cycles_of(p, bytes, compute_units);
                if (best_bytes != 0 && cycles >= least) continue;
                best = p, best_bytes = bytes, least = cycles;
            }
        }
        column_blocks *= 2;
    }
    return best_bytes;
}

}  // namespace

const char* conv2d_depthwise_tile_refusal(const Conv2dParams& c, const Conv2dPlan& plan) {
    if (c.groups != c.in_channels) return "a group for each channel of x (groups == in_channels)";
    constexpr int64_t kMost = 1 << 24;
    const auto fits = [](int64_t in, int64_t out, int64_t padding, int64_t taps, int64_t stride, int64_t dilation) {
        return in < kMost && out < kMost && padding < kMost && reach_of(taps, dilation) < kMost && stride * out < 8 * kMost &&
               stride * dilation < kMost;
    };
    if (!fits(c.in_height, c.out_height, c.pad_top, c.kernel_height, c.stride_h, c.dilation_h) ||
        !fits(c.in_width, c.out_width, c.pad_left, c.kernel_width, c.stride_w, c.dilation_w))
        return "images of fewer than 2^24 rows and columns";
    if (int64_t{c.batch} * c.out_channels >= kLimit31 / 2) return "fewer planes of outputs";
    if (plan.split_k != 1) return "split_k of 1";
    DepthwiseTileParams p = describe(c);
    if (!set_strides(p)) return "strides in memory of fewer than 2^29 elements";
    return plan_depthwise_tile(c, p) > 0
               ? nullptr
               : "filters and strides that leave what a few outputs see of x room in LDS, in blocks of fewer than 2^32 threads";
}

void conv2d_depthwise_tile(const Conv2dParams& conv, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    DepthwiseTileParams p{};
    const int lds_bytes = launch_shared_bytes(static_cast<int>(plan_depthwise_tile(conv, p)));
    set_strides(p);
    const Conv2dParams& c = p.conv;
    const auto small = [](int64_t count) { return small_divisor_of(count); };
    const auto by = [](int64_t count) { return divisor_of(static_cast<uint32_t>(count)); };
    p.divide_by_staged = small(p.staged), p.divide_by_inner = small(p.across ? p.block_channels : p.in_columns);
    p.divide_by_column_phases = small(p.tap_phase_columns), p.divide_by_tap_phases = small(p.tap_phases);
    p.divide_by_taps = small(int64_t{c.kernel_height} * c.kernel_width), p.divide_by_width = small(c.kernel_width);
    p.divide_by_block_columns = small(p.block_columns), p.divide_by_block_filters = small(p.block_filters);
    p.divide_by_apart = small(p.apart), p.divide_by_multiplier = small(c.out_channels / c.in_channels);
    p.divide_by_channels = by(c.in_channels), p.divide_by_filters = by(c.out_channels);
    p.divide_by_channel_blocks = by(p.channel_blocks), p.divide_by_row_blocks = by(p.row_blocks);
    p.divide_by_column_blocks = by(p.column_blocks);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(conv2d_depthwise_by_tiles),
                              hipFuncAttributeMaxDynamicSharedMemorySize, lds_bytes);
    HIPCONV_LAUNCH(true, conv2d_depthwise_by_tiles, dim3(p.blocks, 1, 1), dim3(kTileThreads, 1, 1), lds_bytes,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
