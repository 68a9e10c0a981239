// Depthwise conv2d of square filters of 3 to 11 taps ("walk").
//
// A thread has a pair of channels and a few columns of outputs, and walks down the rows of x. Its filters stay in registers,
// and so do the sums of all rows of outputs that a row of x is part of: they move up by one row of outputs with each step,
// which costs nothing, as the first product of each is added to the one below. So a row of x is loaded and turned into floats
// once for all its taps; the columns that neighbours share are found in the cache. Loads run ahead by a step.
#pragma once

#include <hip/hip_runtime.h>

#include "filters.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "rolling_sums.h"
#include "row.h"
#include "rows.h"
#include "store.h"

namespace hipconv {

// Blocks of a compute unit, by the registers that taps and sums need.
constexpr int walk_blocks(int taps, bool across, bool words) {
    return taps == 3 ? (across ? (words ? 5 : 4) : 6) : taps == 5 ? (across ? (words ? 3 : 2) : 4) : 2;
}

template <int kTaps, int kStride, bool kAcross, bool kWords>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, walk_blocks(kTaps, kAcross, kWords))
    conv2d_depthwise_walk(DepthwiseParams p) {
    using Shape = RowShape<kTaps, kStride, kAcross, kWords>;
    constexpr int kColumns = Shape::kColumns;
    constexpr int kRows = (kTaps + kStride - 1) / kStride;  // of outputs, that a row of x is part of
    constexpr bool kInRegisters = kTaps <= 7;               // filters; else they stay in LDS
    constexpr int kFar = 4;                                 // steps that the second cache is ahead
    constexpr bool kFetches = kPrefetches && (kAcross || kWords) && (kTaps > 3 || kStride == 1);
    HIPCONV_SHARED(Pair, filters, kTaps * kTaps * kFilterPitch);

    let_next_kernel_begin();
    const auto at = depthwise_place<uint32_t>(p, blockIdx.x, threadIdx.x);
    const int k = at.unit * 2, second = k + 1 < p.conv.out_channels ? k + 1 : k;
    const int row = at.segment * p.segment_rows;

    int column = 0;  // of the first output
    int y = 0;       // the next row to load
    RowSource from{};
    uint32_t ahead[kStride][Shape::kRegisters];
    // Loads the next row, into what was row j of a step; rows outside the image are zeros.
    const auto is_inside = [&](int row_of_x) {
        return static_cast<uint32_t>(row_of_x) < static_cast<uint32_t>(p.conv.in_height);
    };
    const auto load_next = [&](int j) {
        load_row<Shape>(ahead[j], p, {from.first, from.second, is_inside(y + j) ? from.inside : 0});
        if constexpr (kFetches) {
            if (is_inside(y + j + kFar * kStride)) fetch_row<Shape>(p, from, kFar * kStride * p.x_row);
        }
        from.first += p.x_row;
        if constexpr (!(kAcross && kWords)) from.second += p.x_row;
    };
    const auto begin_at = [&](int first_column) {
        column = first_column;
        y = row * kStride - p.conv.pad_top;
        from = row_source<Shape>(p, at, y, column * kStride - p.conv.pad_left - Shape::kOdd);
        in_a_register(from.inside);
        if constexpr (kFetches) {
#pragma unroll 1
            for (int i = 0; i < kFar * kStride; ++i)
                if (is_inside(y + i)) fetch_row<Shape>(p, from, i * p.x_row);
        }
#pragma unroll
        for (int j = 0; j < kStride; ++j) load_next(j);
        y += kStride;
    };
    wait_for_kernel_before();
    begin_at(at.tile * kWalkColumns<kTaps, kAcross>);

    // Filters: to LDS in the order of memory, to registers by taps.
    constexpr int kAllTaps = kTaps * kTaps;
    const PairOfBias bias_bits(first_parameter_again(p).conv, at.unit * 2, at.has_work);
    stage_filters<kTaps>(filters, p, at);
    __syncthreads();
    if (!at.has_work) return;
    const Pair bias = bias_bits.get(p.conv);
    Pair taps[kInRegisters ? kAllTaps : 1];
    if constexpr (kInRegisters) {
#pragma unroll
        for (int tap = 0; tap < kAllTaps; ++tap) taps[tap] = filters[tap * kFilterPitch + at.of_block];
    }
    const auto filter_at = [&](int tap) {
        if constexpr (kInRegisters) return taps[tap];
        return filters[tap * kFilterPitch + at.of_block];
    };

    Pair sums[kRows][kColumns];
    const auto add_row = [&](int j, const auto& x, auto counts) {  // `counts(i)`: row i is one of the segment
        add_row_of_x<kTaps, kStride>(sums, j, x, bias, filter_at, counts);
    };

    const int steps = p.segment_rows + kRows - 1;
    for (int part = 0; part < kWalkColumns<kTaps, kAcross> / kColumns; ++part) {
        if (part > 0) {
            if (column + kColumns >= p.conv.out_width) return;
            begin_at(column + kColumns);
        }
        RowTarget to;
        {
            const Conv2dParams& c = first_parameter_again(p).conv;
            to.first = static_cast<char*>(c.out.data) + offset_in(c.out, at.batch, k, row, column) * element_bytes(c.out_dtype);
            to.columns = c.out_width - column;
            to.channels = second - k + 1;
        }
#pragma unroll
        for (int i = 0; i < kRows * kColumns; ++i) sums[i / kColumns][i % kColumns] = bias;
        for (int t = 0; t < steps; ++t) {
#pragma unroll
            for (int j = 0; j < kStride; ++j) {
                Pair x[Shape::kReach];
                row_of<Shape>(x, ahead[j], p, from.inside);
                if (t + 1 < steps) load_next(j);
                if (t >= kRows - 1 && t < p.segment_rows)
                    add_row(j, x, [](int) { return true; });
                else
                    add_row(j, x, [&](int i) { return i >= kRows - 1 - t && i < steps - t; });
            }
            y += kStride;
            const int p_out = row + t - (kRows - 1);  // is finished
            if (t >= kRows - 1 && p_out < p.conv.out_height) {
                store_pairs<kAcross>(p, sums[0], to, at.batch, k, p_out, column);
                to.first += p.out_row;
            }
        }
    }
}

// ---- the launch -------------------------------------------------------------------------------------------------------------

inline bool even(int64_t number) { return number % 2 == 0; }

// Cuts images into segments: many, so that all compute units have work, but each segment begins with rows of x that another one
// reads, too, and with its filters; and a few blocks more than the card holds at once take as long as twice as many. Times are
// in cycles, estimated; those of steps were measured on an H200.
// Returns the cycles.
template <int kTaps, int kStride, bool kAcross>
double choose_segments(DepthwiseParams& p, bool words, int64_t compute_units) {
    constexpr int kRows = (kTaps + kStride - 1) / kStride;
    // A kernel of 5 taps with a stride of 1 leaves room for a block more than the compiler is asked for: asked for as many, it
    // makes slower code.
    const int fit = walk_blocks(kTaps, kAcross, words || (kTaps == 5 && kStride == 1));
    // These are costs of a step: of a wave that shares its SIMD with none, and for instructions alone. Of a block's begin.
    constexpr double kLatency = 700, kIssue = 1.2 * 2 * kWalkColumns<kTaps, kAcross> * kTaps * kTaps + 70, kStart = 2500;
    double least = 0;
    int32_t best = p.conv.out_height;
    for (int32_t segments = 1; segments <= 64 && segments <= p.conv.out_height; segments += 1 + segments / 5) {
        const int32_t rows = (p.conv.out_height + segments - 1) / segments;
        cut_segments(p, rows);
        const double blocks_a_unit = double(p.blocks) / double(compute_units);
        const double resident = blocks_a_unit < 1 ? 1 : blocks_a_unit < fit ? blocks_a_unit : fit;
        double rounds = blocks_a_unit / fit;
        rounds = rounds > 6 ? rounds + 0.5 : double(int64_t(rounds + 0.97));
        const double step = resident * kIssue > kLatency ? resident * kIssue : kLatency;
        const double begin = 0.6 * resident * kIssue > kLatency ? 0.6 * resident * kIssue : kLatency;
        const double cycles = (rounds < 1 ? 1 : rounds) * (kStart + rows * step + (kRows - 1) * begin);
        if (segments == 1 || cycles < 0.97 * least) least = cycles, best = rows;
    }
    cut_segments(p, best);
    return least;
}

// Cycles of the kernel that loads all rows of x at once, fitted to 70 layers on an H200.
template <typename Shape>
double row_cycles(DepthwiseParams p, bool words, int64_t compute_units) {
    cut_segments(p, 1);
    const double loads = Shape::kTaps * (words ? Shape::kRegisters : 1.5 * Shape::kRegisters);
    const double block = 30 + 31 * loads + 2 * Shape::kColumns * Shape::kTaps * Shape::kTaps;
    return 3200 + double(p.blocks) / double(compute_units) * block;
}

// The walking kernel takes so many times longer than estimated where it is slower than the kernel above, fitted to the same
// layers; and where many outputs of channels_last images are bound by what it waits for, of which the ring kernel makes less,
// fitted to 90 layers on an H100.
template <typename Shape>
double walk_longer(bool words) {
    return 1.8 * (words ? 1 : 1.45) * (Shape::kStride == 1 ? 1 : Shape::kTaps == 5 ? 1.9 : 1.2);
}
template <typename Shape>
constexpr double kWalkLongerThanRing = Shape::kTaps == 5 || Shape::kStride == 1 ? 2.2 : 3.0;

template <int kTaps, int kStride, bool kAcross>
void launch_walk(const Conv2dParams& c, hipStream_t stream) {
    using Shape = RowShape<kTaps, kStride, kAcross, true>;
    DepthwiseParams p = depthwise_blocks(c, kAcross, 2, kWalkColumns<kTaps, kAcross>, 1);
    const int64_t units = compute_units_here();
    const int bytes = element_bytes(c.dtype), out_bytes = element_bytes(c.out_dtype);
    if (kAcross) {
        p.x_by_vectors = p.multiplier == 1 && columns_are_vectors(c.x, c.out_channels, 2, bytes);
        p.out_by_vectors = columns_are_vectors(c.out, c.out_channels, 2, out_bytes);
    } else {
        p.x_by_vectors = bytes == 2 && even(c.in_width) && c.x.column_stride == 1 && rows_begin_at_multiples(c.x, 2, bytes) &&
                         even(c.x.channel_stride) && even(c.pad_left + Shape::kOdd);
        p.out_by_vectors = even(c.out_channels) && even(c.out_width) && c.out.column_stride == 1 &&
                           rows_begin_at_multiples(c.out, 2, out_bytes) && even(c.out.channel_stride);
    }
    p.x_row = static_cast<uint64_t>(c.x.row_stride) * static_cast<unsigned>(bytes);
    p.x_step = static_cast<uint32_t>(c.x.column_stride * bytes);
    p.out_row = static_cast<uint64_t>(c.out.row_stride) * static_cast<unsigned>(out_bytes);
    p.out_channel = static_cast<uint64_t>(c.out.channel_stride) * static_cast<unsigned>(out_bytes);
    p.out_step = static_cast<uint32_t>(c.out.column_stride * out_bytes);
    p.weight_filter = static_cast<int32_t>(c.weight.batch_stride);
    p.weight_row = static_cast<int32_t>(c.weight.row_stride);
    p.weight_column = static_cast<int32_t>(c.weight.column_stride);
    constexpr bool kHasWords = kTaps <= 7;  // else there are only kernels without
    if (!kHasWords && bytes == 2) p.x_by_vectors = false;
    const bool words = p.x_by_vectors && bytes == 2;
    const double walk_cycles = choose_segments<kTaps, kStride, kAcross>(p, words, units);
    if constexpr (kTaps <= 5) {
        const double rows = row_cycles<Shape>(p, words, units);
        const bool takes_rows = rows < walk_longer<Shape>(words) * walk_cycles;
        if constexpr (kAcross) {
            if (depthwise_ring(c, takes_rows ? 0.97 * rows : kWalkLongerThanRing<Shape> * walk_cycles, stream)) return;
        }
        if (takes_rows) {
            cut_segments(p, 1);
            const auto row = words ? conv2d_depthwise_row<kTaps, kStride, kAcross, true>
                                   : conv2d_depthwise_row<kTaps, kStride, kAcross, false>;
            // Two blocks a compute unit take longer if they begin early, but for those that read words of columns: an H200 put
            // more of them on the units that were free first.
            const bool few = p.blocks > static_cast<uint64_t>(units) && 2 * p.blocks <= 5 * static_cast<uint64_t>(units);
            const bool early = !few || (words && !kAcross);
            HIPCONV_LAUNCH(early, row, dim3(static_cast<unsigned>(p.blocks), 1, 1), dim3(kDepthwiseThreads, 1, 1), 0, stream,
                           p);
            return check_launch("conv2d");
        }
    }
    const auto walk = words ? conv2d_depthwise_walk<kTaps, kStride, kAcross, kHasWords>
                            : conv2d_depthwise_walk<kTaps, kStride, kAcross, false>;
    HIPCONV_LAUNCH(true, walk, dim3(static_cast<unsigned>(p.blocks), 1, 1), dim3(kDepthwiseThreads, 1, 1), 0, stream, p);
    check_launch("conv2d");
}

template <int kTaps>
void launch_walk(const Conv2dParams& c, void* on) {
    const hipStream_t stream = static_cast<hipStream_t>(on);
    const bool across = depthwise_lies_across(c);
    if (c.stride_h == 1) return across ? launch_walk<kTaps, 1, true>(c, stream) : launch_walk<kTaps, 1, false>(c, stream);
    return across ? launch_walk<kTaps, 2, true>(c, stream) : launch_walk<kTaps, 2, false>(c, stream);
}

}  // namespace hipconv
