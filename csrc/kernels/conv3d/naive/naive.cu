// This file has the algorithm of conv3d that serves every call.
//
// `naive`: a thread makes one output at a time, by the formula, with f32 sums. Lanes lie along the denser of out's channels and
// columns, so that neighbours write neighbouring addresses in both layouts. A second kernel writes the cache of the next call.
#include <hip/hip_runtime.h>

#include "../../conv2d/common/epilogue.h"
#include "../common/frames.h"
#include "../common/launchers.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kThreads = 256, kRowLanes = 32;

struct NaiveParams {
    Conv3dParams conv;
    SavePlan save;
    bool lanes_along_channels;
};

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 3) conv3d_naive_kernel(NaiveParams params) {
    const Conv3dParams& p = params.conv;
    const bool lanes_along_channels = params.lanes_along_channels;
    const int64_t count = static_cast<int64_t>(p.batch) * p.out_channels * p.out_frames * p.out_height * p.out_width;
    const int32_t group_channels = p.in_channels / p.groups, group_filters = p.out_channels / p.groups;
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = thread; i < count; i += threads) {
        int64_t rest = i;
        const auto next_axis = [&](int32_t size) {
            const int64_t index = rest % size;
            rest /= size;
            return index;
        };
        int64_t k = lanes_along_channels ? next_axis(p.out_channels) : 0;
        const int64_t column = next_axis(p.out_width), row = next_axis(p.out_height), t = next_axis(p.out_frames);
        if (!lanes_along_channels) k = next_axis(p.out_channels);
        const int64_t n = rest;

        const int64_t first_channel = k / group_filters * group_channels;
        float sum = 0.0f;
        for (int32_t tap = 0; tap < p.kernel_frames; ++tap) {
            // Parameters are loaded again where they are used: else all of them would be kept in scalar registers.
            const Conv3dParams& v = first_parameter_again(params).conv;
            const int64_t at = t * v.stride_t - v.front + static_cast<int64_t>(tap) * v.dilation_t;
            const Frame<T> frame = frame_at<T>(v, n, frame_number(v, at, v.time_mode));
            if (!frame.address) continue;
            const Conv3dParams& w = first_parameter_again(params).conv;
            for (int32_t r = 0; r < w.kernel_height; ++r) {
                const int64_t y = padded_index(row * w.stride_h - w.pad_top + static_cast<int64_t>(r) * w.dilation_h,
                                               w.in_height, w.padding_mode);
                if (y < 0) continue;
                for (int32_t s = 0; s < w.kernel_width; ++s) {
                    const int64_t x = padded_index(column * w.stride_w - w.pad_left + static_cast<int64_t>(s) * w.dilation_w,
                                                   w.in_width, w.padding_mode);
                    if (x < 0) continue;
                    const int64_t pixel = first_channel * frame.channel_stride + y * frame.row_stride + x * frame.column_stride;
                    const T* taps = global_pointer<const T>(w.weight.data) + k * w.weight.batch_stride +
                                    tap * w.weight.frame_stride + r * w.weight.row_stride + s * w.weight.column_stride;
                    for (int32_t c = 0; c < group_channels; ++c)
                        sum +=
                            to_float(*frame.at(pixel + c * frame.channel_stride)) * to_float(taps[c * w.weight.channel_stride]);
                }
            }
        }
        const Conv3dParams& again = first_parameter_again(params).conv;
        const auto offset_of = [&](const Volume& v) {
            return n * v.batch_stride + k * v.channel_stride + t * v.frame_stride + row * v.row_stride +
                   column * v.column_stride;
        };
        conv2d_store_at(again, k, [&] { return offset_of(again.out); }, [&] { return offset_of(again.residual); }, sum);
    }
}

// Writes the cache of the next call, for the algorithm above, whose registers it would take.
template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 4) conv3d_save_frames(NaiveParams params) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
    save_frames<T>(params.conv, params.save, thread / kRowLanes, threads / kRowLanes, static_cast<int>(thread % kRowLanes),
                   kRowLanes);
}

namespace {

dim3 grid_for(int64_t threads) {
    const int64_t blocks = (threads + kThreads - 1) / kThreads;
    return dim3(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1);
}

template <typename T>
void launch_naive(const Conv3dParams& p, hipStream_t stream) {
    const NaiveParams params{p, save_plan(p), p.out.channel_stride < p.out.column_stride};
    const dim3 block(kThreads, 1, 1);
    if (const int64_t outputs = static_cast<int64_t>(p.batch) * p.out_channels * p.out_frames * p.out_height * p.out_width) {
        hipLaunchKernelGGL(conv3d_naive_kernel<T>, grid_for(outputs), block, 0, stream, params);
        check_launch("conv3d");
    }
    conv3d_save(p, stream);
}

}  // namespace

void conv3d_naive(const Conv3dParams& p, const Conv3dCard&, void*, void* stream) {
    with_dtype(p.dtype, [&](auto type) { launch_naive<decltype(type)>(p, static_cast<hipStream_t>(stream)); });
}

void conv3d_save(const Conv3dParams& p, void* stream) {
    const NaiveParams params{p, save_plan(p), false};
    if (params.save.rows == 0) return;
    with_dtype(p.dtype, [&](auto type) {
        hipLaunchKernelGGL(conv3d_save_frames<decltype(type)>, grid_for(params.save.rows * kRowLanes), dim3(kThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), params);
    });
    check_launch("conv3d");
}

}  // namespace hipconv
