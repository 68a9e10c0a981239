// Depthwise conv2d of any filter, stride, dilation and padding ("any").
//
// A thread makes kColumns neighbouring outputs of a row and a channel, by the formula. Filters pass through LDS, a number of
// taps at a time. Where a step of outputs is as long as one of taps, each column of x is read once for all outputs of the
// thread.
#include <hip/hip_runtime.h>

#include "../common/epilogue.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kAnyColumns = 4, kAnyTaps = 64;  // taps: in LDS at once

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, 6) conv2d_depthwise_any(DepthwiseParams p) {
    HIPCONV_SHARED(float, filters, kAnyTaps* kFilterPitch);
    const int64_t taps = static_cast<int64_t>(p.conv.kernel_height) * p.conv.kernel_width;
    for (uint64_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
        const DepthwiseParams& all = first_parameter_again(p);
        const auto at = depthwise_place(all, block, threadIdx.x);
        const int64_t k = at.unit, row = at.segment, column = static_cast<int64_t>(at.tile) * kAnyColumns;
        const int64_t stride = p.conv.stride_w, dilation = p.conv.dilation_w;
        const bool slides = stride == dilation && p.conv.kernel_width > 1;
        const T* const x =
            global_pointer<const T>(p.conv.x.data) + (at.has_work ? offset_in(p.conv.x, at.batch, k / p.multiplier, 0, 0) : 0);
        float sums[kAnyColumns] = {};
        for (int64_t first = 0; first < taps; first += kAnyTaps) {
            const int64_t behind = first + kAnyTaps < taps ? first + kAnyTaps : taps;
            const int count = static_cast<int>(behind - first);
            __syncthreads();
            const DepthwiseParams& with = first_parameter_again(p);
            const auto load = [&](int i) {
                const int of_block = i / count, tap = i - of_block * count;
                const int64_t r = (first + tap) / with.conv.kernel_width, s = first + tap - r * with.conv.kernel_width;
                return global_pointer<const T>(
                    with.conv.weight.data)[offset_in(with.conv.weight, depthwise_unit(with, at, of_block), 0, r, s)];
            };
            load_and_store<4>(static_cast<int>(at.block_units) * count, load, [&](int i, T weight) {
                const int of_block = i / count, tap = i - of_block * count;
                filters[tap * kFilterPitch + of_block] = to_float(weight);
            });
            __syncthreads();
            if (!at.has_work) continue;
            const Conv2dParams& c = first_parameter_again(p).conv;
            int64_t r = first / c.kernel_width, s = first - r * c.kernel_width;
            for (int64_t tap = first; tap < behind; s = 0, ++r) {
                const int64_t end = tap + (c.kernel_width - s) < behind ? tap + (c.kernel_width - s) : behind;
                const float* filter = filters + (tap - first) * kFilterPitch + at.of_block;
                const int64_t y = padded_index(row * c.stride_h - c.pad_top + r * c.dilation_h, c.in_height, c.padding_mode);
                int64_t z = column * stride - c.pad_left + s * dilation;
                const int64_t steps = end - tap;
                tap = end;
                if (y < 0) continue;
                const T* const line = x + y * c.x.row_stride;
                const auto value = [&](int64_t place) {
                    const int64_t inside = padded_index(place, c.in_width, c.padding_mode);
                    const bool there =
                        inside >= 0 && inside < c.in_width;  // else a zero, or of an output that there is none of
                    return there ? to_float(line[inside * c.x.column_stride]) : 0.0f;
                };
                if (slides) {
                    constexpr int kAtOnce = 4;  // taps, whose loads are under way together
                    float window[kAnyColumns - 1 + kAtOnce];
#pragma unroll
                    for (int q = 0; q + 1 < kAnyColumns; ++q) window[kAtOnce + q] = value(z + q * stride);
                    for (int64_t i = 0; i < steps; i += kAtOnce) {
#pragma unroll
                        for (int q = 0; q + 1 < kAnyColumns; ++q) window[q] = window[kAtOnce + q];
#pragma unroll
                        for (int t = 0; t < kAtOnce; ++t)
                            window[kAnyColumns - 1 + t] = i + t < steps ? value(z + (kAnyColumns - 1 + t) * stride) : 0.0f;
#pragma unroll
                        for (int t = 0; t < kAtOnce; ++t) {
                            if (i + t >= steps) continue;
#pragma unroll
                            for (int q = 0; q < kAnyColumns; ++q) sums[q] += filter[t * kFilterPitch] * window[q + t];
                        }
                        filter += kAtOnce * kFilterPitch;
                        z += kAtOnce * dilation;
                    }
                } else {
                    for (int64_t i = 0; i < steps; ++i) {
#pragma unroll
                        for (int q = 0; q < kAnyColumns; ++q) sums[q] += *filter * value(z + q * stride);
                        filter += kFilterPitch;
                        z += dilation;
                    }
                }
            }
        }
        if (!at.has_work) continue;
#pragma unroll
        for (int q = 0; q < kAnyColumns; ++q)
            if (column + q < p.conv.out_width)
                conv2d_store(first_parameter_again(p).conv, at.batch, k, row, column + q, sums[q]);
    }
}

void depthwise_any(const Conv2dParams& conv, void* stream) {
    const DepthwiseParams p = depthwise_blocks(conv, depthwise_lies_across(conv), 1, kAnyColumns, 1);
    const dim3 grid(depthwise_grid(p), 1, 1);
    with_dtype(conv.dtype, [&](auto type) {
        hipLaunchKernelGGL(conv2d_depthwise_any<decltype(type)>, grid, dim3(kDepthwiseThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), p);
    });
    check_launch("conv2d");
}

}  // namespace hipconv
