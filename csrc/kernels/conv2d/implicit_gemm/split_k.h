// The reduction of split-K: adds up the parts of each sum in a second kernel, and applies the epilogue.
#pragma once

#include "../common/epilogue.h"
#include "../gemm/gemm.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kReduceThreads = 64;  // small blocks, so that little work is spread over many compute units

struct ReduceParams {
    Conv2dParams conv;
    const float* parts;            // (parts, batch, out_height, out_width, out_channels)
    int32_t count, units, across;  // parts; units of a thread's work, in all and across channels
    int64_t part_stride;
    bool lanes_along_channels;
    Divisor divide_by_across, divide_by_image, divide_by_row;
};

// A thread adds the parts of kEach channels of an output pixel, in the same order on every run.
template <int kEach>
__global__ void HIPCONV_LAUNCH_BOUNDS(kReduceThreads, 8) conv2d_reduce_split_k(ReduceParams p) {
    const int32_t image = p.conv.out_height * p.conv.out_width;
    for (uint32_t i = blockIdx.x * kReduceThreads + threadIdx.x; i < static_cast<uint32_t>(p.units);
         i += gridDim.x * kReduceThreads) {
        int32_t n, k, pixel;  // pixel: within the image
        if (p.lanes_along_channels) {
            const int32_t of_all = static_cast<int32_t>(divide(i, p.divide_by_across));
            k = (static_cast<int32_t>(i) - of_all * p.across) * kEach;
            n = static_cast<int32_t>(divide(of_all, p.divide_by_image));
            pixel = of_all - n * image;
        } else {
            const int32_t of_all = static_cast<int32_t>(divide(i, p.divide_by_image));
            pixel = static_cast<int32_t>(i) - of_all * image;
            n = static_cast<int32_t>(divide(of_all, p.divide_by_across));
            k = (of_all - n * p.across) * kEach;
        }
        const Conv2dParams& c = first_parameter_again(p).conv;
        const int32_t row = static_cast<int32_t>(divide(pixel, p.divide_by_row)), column = pixel - row * c.out_width;
        float sums[kEach] = {}, bias[kEach] = {}, residual[kEach] = {};
        if (c.bias) load_each(bias, c.bias, k * c.bias_stride, c.bias_stride, c.bias_dtype);
        if (c.residual.data)
            load_each(residual, c.residual.data, offset_in(c.residual, n, k, row, column), c.residual.channel_stride,
                      c.residual_dtype);
        const int64_t first = (static_cast<int64_t>(n) * image + pixel) * c.out_channels + k;
        const float* part = global_pointer<const float>(p.parts) + first;
        using Floats = Words<float, kEach>;
#pragma unroll 8
        for (int32_t m = 0; m < p.count; ++m) {
            const Floats more = *reinterpret_cast<const Floats*>(part + m * p.part_stride);
#pragma unroll
            for (int e = 0; e < kEach; ++e) sums[e] += bit_cast<float>(word(more, e));
        }
        void* const out = global_pointer<void>(c.out.data);
        const int64_t first_out = offset_in(c.out, n, k, row, column);
#pragma unroll
        for (int e = 0; e < kEach; ++e)
            store_rounded(out, first_out + e * c.out.channel_stride, c.out_dtype,
                          activate(sums[e] + bias[e] + residual[e], c.activation));
    }
}

inline void reduce_split_k(const Conv2dParams& p, const ConvGemmParams& g, int split_k, void* stream) {
    const bool by_fours = p.out_channels % 4 == 0;
    const int32_t across = by_fours ? p.out_channels / 4 : p.out_channels;
    const int32_t image = p.out_height * p.out_width, units = image * p.batch * across;
    const ReduceParams reduce{p,
                              static_cast<const float*>(g.conv.out.data),
                              split_k,
                              units,
                              across,
                              g.part_stride,
                              p.out.channel_stride < p.out.column_stride,
                              divisor_of(static_cast<uint32_t>(across)),
                              divisor_of(static_cast<uint32_t>(image)),
                              divisor_of(static_cast<uint32_t>(p.out_width))};
    const int32_t blocks = (units - 1) / kReduceThreads + 1;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1), block(kReduceThreads, 1, 1);
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (by_fours)
        hipLaunchKernelGGL(conv2d_reduce_split_k<4>, grid, block, 0, hip_stream, reduce);
    else
        hipLaunchKernelGGL(conv2d_reduce_split_k<1>, grid, block, 0, hip_stream, reduce);
    check_launch("conv2d");
}

}  // namespace hipconv
