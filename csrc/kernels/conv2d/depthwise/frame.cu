// The frame of a depthwise conv2d's outputs: those whose filters see beyond the image, by padding that is not zeros ("frame").
//
// All others are what zeros around the image give, so the kernels of zeros make the whole result, and this one makes the frame
// again after them. A thread makes an output of a pair of channels by the formula. Lanes lie along
// channels where these are the densest, else along the rows above and below, then down the columns beside.
#include <hip/hip_runtime.h>

#include "../common/depthwise_frame.h"
#include "../common/epilogue.h"
#include "launch/check.h"
#include "launch/division.h"
#include "store.h"

namespace hipconv {
namespace {

constexpr int kFrameThreads = 256;  // of a block

struct FrameParams {
    DepthwiseParams all;  // of which this kernel has the call, how to store, and how many units there are
    DepthwiseInner inner;
    int32_t above;                              // outputs in the rows above and below the inner ones
    int32_t of_plane;                           // outputs of the frame
    uint32_t threads;                           // in all
    Divisor divide_by_first, divide_by_second;  // counts of what lanes lie along: units, then outputs, or these, then units
    Divisor divide_by_columns, divide_by_rows;  // of outputs: all columns, inner rows
};

// Filters have kWidth columns, all of whose x is under way at once; 0: the call says how many.
template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kFrameThreads, 4) conv2d_depthwise_frame(FrameParams p) {
    constexpr int64_t kBytes = sizeof(T);
    let_next_kernel_begin();
    const uint32_t thread = blockIdx.x * kFrameThreads + threadIdx.x;
    const Conv2dParams& c = p.all.conv;
    const uint32_t along = divide(thread, p.divide_by_first), image = divide(along, p.divide_by_second);
    const int of_first = static_cast<int>(thread - along * static_cast<uint32_t>(p.all.across ? p.all.units : p.of_plane));
    const int of_second = static_cast<int>(along - image * static_cast<uint32_t>(p.all.across ? p.of_plane : p.all.units));
    const int unit = p.all.across ? of_first : of_second, place = p.all.across ? of_second : of_first;
    int row, column;
    if (place < p.above) {
        row = static_cast<int>(divide(static_cast<uint32_t>(place), p.divide_by_columns));
        column = place - row * c.out_width;
        if (row >= p.inner.first_row) row += p.inner.rows;
    } else {
        column = static_cast<int>(divide(static_cast<uint32_t>(place - p.above), p.divide_by_rows));
        row = p.inner.first_row + place - p.above - column * p.inner.rows;
        if (column >= p.inner.first_column) column += p.inner.columns;
    }
    wait_for_kernel_before();
    if (thread >= p.threads) return;

    const int k = unit * 2, channels = k + 1 < c.out_channels ? 2 : 1, second = k + channels - 1;
    const int64_t batch = static_cast<int64_t>(image) * c.x.batch_stride;
    const char* const planes[2] = {
        static_cast<const char*>(c.x.data) + (batch + int64_t{k / p.all.multiplier} * c.x.channel_stride) * kBytes,
        static_cast<const char*>(c.x.data) + (batch + int64_t{second / p.all.multiplier} * c.x.channel_stride) * kBytes};
    const T* const filters[2] = {global_pointer<const T>(c.weight.data) + k * c.weight.batch_stride,
                                 global_pointer<const T>(c.weight.data) + second * c.weight.batch_stride};
    Pair sum[1] = {};
    if (c.bias) {
        const void* const bias = global_pointer<void>(c.bias);
        sum[0] = make_pair(load_parameter(bias, k * c.bias_stride, c.bias_dtype),
                           load_parameter(bias, second * c.bias_stride, c.bias_dtype));
    }
    const int first_y = row * c.stride_h - c.pad_top, first_z = column * c.stride_w - c.pad_left;
    const auto column_bytes = [&](int s) {
        return padded_index_of(first_z + s * c.dilation_w, c.in_width, c.padding_mode) * c.x.column_stride * kBytes;
    };
    const auto load = [&](int64_t bytes) {
        if (p.all.x_by_vectors) return pair_of<T>(*global_pointer<const Words<T, 2>>(planes[0] + bytes), 0);
        return make_pair(to_float(*global_pointer<const T>(planes[0] + bytes)),
                         to_float(*global_pointer<const T>(planes[1] + bytes)));
    };
    constexpr int kRowsAtOnce = kWidth == 3 ? 3 : 1;
    int64_t columns[kWidth > 0 ? kWidth : 1];
#pragma unroll
    for (int s = 0; s < kWidth; ++s) columns[s] = column_bytes(s);
#pragma unroll kRowsAtOnce
    for (int r = 0; r < c.kernel_height; ++r) {
        const int64_t line = padded_index_of(first_y + r * c.dilation_h, c.in_height, c.padding_mode) * c.x.row_stride * kBytes;
        const T* taps[2] = {filters[0] + r * c.weight.row_stride, filters[1] + r * c.weight.row_stride};
        const auto multiply = [&](Pair x) {
            sum[0] = multiply_add(make_pair(to_float(*taps[0]), to_float(*taps[1])), x, sum[0]);
            taps[0] += c.weight.column_stride, taps[1] += c.weight.column_stride;
        };
        if constexpr (kWidth > 0) {
            Pair x[kWidth];
#pragma unroll
            for (int s = 0; s < kWidth; ++s) x[s] = load(line + columns[s]);
#pragma unroll
            for (int s = 0; s < kWidth; ++s) multiply(x[s]);
        } else {
            for (int s = 0; s < c.kernel_width; ++s) multiply(load(line + column_bytes(s)));
        }
    }
    char* const out = static_cast<char*>(c.out.data) +
                      offset_in(c.out, static_cast<int64_t>(image), k, row, column) * element_bytes(c.out_dtype);
    store_pairs<true>(p.all, sum, {out, 1, channels}, static_cast<int>(image), k, row, column);
}

// The first output along an axis whose window lies in the image, and how many such there are.
void inner_of(int64_t outputs, int64_t stride, int64_t padding, int64_t reach, int64_t size, int32_t& first, int32_t& count) {
    const int64_t begin = ceil_of(padding, stride), last = size - reach + padding;
    const int64_t behind = last < 0 ? 0 : last / stride + 1, end = behind < outputs ? behind : outputs;
    first = static_cast<int32_t>(begin < outputs ? begin : outputs);
    count = static_cast<int32_t>(end > first ? end - first : 0);
}

}  // namespace

DepthwiseInner depthwise_inner(const Conv2dParams& c) {
    DepthwiseInner inner;
    const auto reach = [](int64_t taps, int64_t dilation) { return (taps - 1) * dilation + 1; };
    inner_of(c.out_height, c.stride_h, c.pad_top, reach(c.kernel_height, c.dilation_h), c.in_height, inner.first_row,
             inner.rows);
    inner_of(c.out_width, c.stride_w, c.pad_left, reach(c.kernel_width, c.dilation_w), c.in_width, inner.first_column,
             inner.columns);
    return inner;
}

void depthwise_frame(const Conv2dParams& c, void* stream) {
    if (!depthwise_has_frame(c)) return;
    FrameParams p{};
    p.inner = depthwise_inner(c);
    p.all.conv = c;
    p.all.across = c.out.channel_stride < c.out.column_stride;
    p.all.has_residual = c.residual.data != nullptr;
    p.all.multiplier = c.out_channels / c.groups;
    p.all.units = (c.out_channels + 1) / 2;
    const int out_bytes = element_bytes(c.out_dtype);
    p.all.x_by_vectors = p.all.multiplier == 1 && columns_are_vectors(c.x, c.out_channels, 2, element_bytes(c.dtype));
    p.all.out_by_vectors = columns_are_vectors(c.out, c.out_channels, 2, out_bytes);
    p.all.out_channel = static_cast<uint64_t>(c.out.channel_stride) * static_cast<unsigned>(out_bytes);
    p.above = (c.out_height - p.inner.rows) * c.out_width;
    p.of_plane = p.above + p.inner.rows * (c.out_width - p.inner.columns);
    p.threads = static_cast<uint32_t>(int64_t{p.all.units} * p.of_plane * c.batch);
    const auto by = [](int32_t count) { return divisor_of(static_cast<uint32_t>(count > 0 ? count : 1)); };
    p.divide_by_first = by(p.all.across ? p.all.units : p.of_plane);
    p.divide_by_second = by(p.all.across ? p.of_plane : p.all.units);
    p.divide_by_columns = by(c.out_width);
    p.divide_by_rows = by(p.inner.rows);
    const dim3 blocks(static_cast<unsigned>(ceil_of(int64_t{p.threads}, kFrameThreads)), 1, 1);
    with_dtype(c.dtype, [&](auto type) {
        using T = decltype(type);
        const int width = c.kernel_width;
        const auto frame = width == 3   ? conv2d_depthwise_frame<T, 3>
                           : width == 5 ? conv2d_depthwise_frame<T, 5>
                           : width == 7 ? conv2d_depthwise_frame<T, 7>
                                        : conv2d_depthwise_frame<T, 0>;
        HIPCONV_LAUNCH(true, frame, blocks, dim3(kFrameThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    });
    check_launch("conv2d");
}

}  // namespace hipconv
