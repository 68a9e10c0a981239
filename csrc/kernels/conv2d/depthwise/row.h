// Depthwise conv2d of few outputs by square filters of 3 or 5 taps ("row").
//
// A thread has a pair of channels and a few columns of one row of outputs. It loads all that its taps see of x at once, so that
// memory is waited for a single time, where the walking kernel waits a few times for each of its rows. In exchange each row of
// x is loaded and turned into floats as often as a filter has rows. Sums have the walking kernel's order, and so its bits.
#pragma once

#include <hip/hip_runtime.h>

#include "filters.h"
#include "rows.h"
#include "store.h"

namespace hipconv {

// Blocks of a compute unit, by the registers that the rows of x need.
constexpr int row_blocks(int taps, bool across, bool words) {
    return taps == 3 ? (across && !words ? 4 : 6) : across && !words ? 2 : 4;
}

template <int kTaps, int kStride, bool kAcross, bool kWords>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, row_blocks(kTaps, kAcross, kWords))
    conv2d_depthwise_row(DepthwiseParams p) {
    using Shape = RowShape<kTaps, kStride, kAcross, kWords>;
    constexpr int kColumns = Shape::kColumns;
    HIPCONV_SHARED(Pair, filters, kTaps * kTaps * kFilterPitch);

    let_next_kernel_begin();
    const auto at = depthwise_place<uint32_t>(p, blockIdx.x, threadIdx.x);
    const int column = at.tile * kColumns, y = at.segment * kStride - p.conv.pad_top;
    RowSource from = row_source<Shape>(p, at, y, column * kStride - p.conv.pad_left - Shape::kOdd);
    wait_for_kernel_before();
    uint32_t rows[kTaps][Shape::kRegisters];
#pragma unroll
    for (int r = 0; r < kTaps; ++r) {
        const bool is_inside = static_cast<uint32_t>(y + r) < static_cast<uint32_t>(p.conv.in_height);
        load_row<Shape, false>(rows[r], p, {from.first, from.second, is_inside ? from.inside : 0});
        from.first += p.x_row;
        from.second += p.x_row;
    }
    const PairOfBias bias_bits(first_parameter_again(p).conv, at.unit * 2, at.has_work);
    stage_filters<kTaps>(filters, p, at);
    __syncthreads();
    if (!at.has_work) return;
    const Pair bias = bias_bits.get(p.conv);

    Pair sums[kColumns];
#pragma unroll
    for (int q = 0; q < kColumns; ++q) sums[q] = bias;
#pragma unroll
    for (int r = 0; r < kTaps; ++r) {
        Pair x[Shape::kReach];
        row_of<Shape>(x, rows[r], p, from.inside);
#pragma unroll
        for (int s = 0; s < kTaps; ++s) {
            const Pair filter = filters[(r * kTaps + s) * kFilterPitch + at.of_block];
#pragma unroll
            for (int q = 0; q < kColumns; ++q) sums[q] = multiply_add(filter, x[q * kStride + s], sums[q]);
        }
    }
    const Conv2dParams& c = first_parameter_again(p).conv;
    const int k = at.unit * 2;
    const RowTarget to{
        static_cast<char*>(c.out.data) + offset_in(c.out, at.batch, k, at.segment, column) * element_bytes(c.out_dtype),
        c.out_width - column, k + 1 < c.out_channels ? 2 : 1};
    store_pairs<kAcross>(p, sums, to, at.batch, k, at.segment, column);
}

}  // namespace hipconv
