// This file has the table of conv2d's algorithms on GPUs, and the one that serves every call.
//
// `naive`: a thread makes one output at a time, by the formula, with f32 sums. Any groups, dilation, strides, padding mode.
// Lanes lie along the denser of out's channels and columns, so that neighbours write neighbouring addresses in both layouts.
#include <hip/hip_runtime.h>

#include "../common/epilogue.h"
#include "../common/launchers.h"
#include "../common/padding.h"
#include "conv2d/conv2d.h"
#include "launch/check.h"
#include "launch/kernel_table.h"

namespace hipconv {

constexpr int kThreads = 256;

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 4) conv2d_naive(Conv2dParams p, bool lanes_along_channels) {
    const int64_t count = static_cast<int64_t>(p.batch) * p.out_channels * p.out_height * p.out_width;
    const int32_t group_channels = p.in_channels / p.groups, group_filters = p.out_channels / p.groups;

    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        int64_t rest = i;
        const auto next_axis = [&](int32_t size) {
            const int64_t index = rest % size;
            rest /= size;
            return index;
        };
        int64_t k = lanes_along_channels ? next_axis(p.out_channels) : 0;
        const int64_t column = next_axis(p.out_width), row = next_axis(p.out_height);
        if (!lanes_along_channels) k = next_axis(p.out_channels);
        const int64_t n = rest;

        const int64_t first_channel = k / group_filters * group_channels;
        float sum = 0.0f;
        for (int32_t r = 0; r < p.kernel_height; ++r) {
            const int64_t y = padded_index(row * p.stride_h - p.pad_top + static_cast<int64_t>(r) * p.dilation_h, p.in_height,
                                           p.padding_mode);
            if (y < 0) continue;
            for (int32_t s = 0; s < p.kernel_width; ++s) {
                const int64_t x = padded_index(column * p.stride_w - p.pad_left + static_cast<int64_t>(s) * p.dilation_w,
                                               p.in_width, p.padding_mode);
                if (x < 0) continue;
                const T* pixel = static_cast<const T*>(p.x.data) + offset_in(p.x, n, first_channel, y, x);
                const T* tap = static_cast<const T*>(p.weight.data) + offset_in(p.weight, k, 0, r, s);
                for (int32_t c = 0; c < group_channels; ++c)
                    sum += to_float(pixel[c * p.x.channel_stride]) * to_float(tap[c * p.weight.channel_stride]);
            }
        }
        conv2d_store(first_parameter_again(p), n, k, row, column, sum);
    }
}

namespace {

template <typename T>
void launch_naive(const Conv2dParams& p, hipStream_t stream) {
    const int64_t count = static_cast<int64_t>(p.batch) * p.out_channels * p.out_height * p.out_width;
    const int64_t blocks = (count + kThreads - 1) / kThreads;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1);
    const bool lanes_along_channels = p.out.channel_stride < p.out.column_stride;
    hipLaunchKernelGGL(conv2d_naive<T>, grid, dim3(kThreads, 1, 1), 0, stream, p, lanes_along_channels);
    check_launch("conv2d");
}

void naive(const Conv2dParams& p, const Conv2dPlan&, void*, void* stream) {
    with_dtype(p.dtype, [&](auto type) { launch_naive<decltype(type)>(p, static_cast<hipStream_t>(stream)); });
}

// ---- the registry -----------------------------------------------------------------------------------------------------

struct Algorithm {
    KernelRow<Conv2dParams, Conv2dPlan> kernel;
    std::vector<Conv2dTile> (*tiles)(const std::string& arch, DType dtype);  // null: it has none anywhere
    // Packed filters, where it can take them.
    int64_t (*packed_bytes)(const Conv2dParams&, const Conv2dPlan&) = nullptr;
    void (*pack)(const Conv2dParams&, const Conv2dPlan&, void* packed, void* stream) = nullptr;
};

constexpr Algorithm kAlgorithms[] = {
    // {name, refusal, launch, workspace}, tiles; the fastest first
    {{"depthwise", conv2d_depthwise_refusal, conv2d_depthwise}, nullptr},
    {{"relaid_warpgroup_gemm", conv2d_relaid_warpgroup_gemm_refusal, conv2d_relaid_warpgroup_gemm,
      conv2d_relaid_warpgroup_gemm_workspace},
     conv2d_warpgroup_gemm_tiles},
    {{"warpgroup_gemm", conv2d_warpgroup_gemm_refusal, conv2d_warpgroup_gemm, conv2d_warpgroup_gemm_workspace},
     conv2d_warpgroup_gemm_tiles},
    {{"direct", conv2d_direct_refusal, conv2d_direct, conv2d_direct_workspace}, conv2d_direct_tiles},
    {{"split_warpgroup_gemm", conv2d_split_warpgroup_gemm_refusal, conv2d_split_warpgroup_gemm,
      conv2d_split_warpgroup_gemm_workspace},
     conv2d_split_warpgroup_gemm_tiles},
    {{"winograd_f4", conv2d_winograd_refusal, conv2d_winograd, conv2d_winograd_workspace},
     conv2d_winograd_tiles,
     conv2d_winograd_packed_bytes,
     conv2d_winograd_pack},
    {{"winograd_f2", conv2d_winograd_refusal, conv2d_winograd, conv2d_winograd_workspace},
     conv2d_winograd_tiles,
     conv2d_winograd_packed_bytes,
     conv2d_winograd_pack},
    {{"relaid_implicit_gemm", conv2d_relaid_implicit_gemm_refusal, conv2d_relaid_implicit_gemm,
      conv2d_relaid_implicit_gemm_workspace},
     conv2d_implicit_gemm_tiles},
    {{"split_implicit_gemm", conv2d_split_implicit_gemm_refusal, conv2d_split_implicit_gemm, conv2d_implicit_gemm_workspace},
     conv2d_split_implicit_gemm_tiles},
    {{"implicit_gemm", conv2d_implicit_gemm_refusal, conv2d_implicit_gemm, conv2d_implicit_gemm_workspace},
     conv2d_implicit_gemm_tiles},
    {{"naive", nullptr, naive}, nullptr},
};

const Algorithm& algorithm(const std::string& name) {
    for (const Algorithm& entry : kAlgorithms)
        if (name == entry.kernel.name) return entry;
    throw std::invalid_argument("hipconv: conv2d: there is no algorithm '" + name + "'");
}

}  // namespace

std::vector<std::string> conv2d_algorithms() {
    std::vector<std::string> names;
    for (const Algorithm& entry : kAlgorithms) names.emplace_back(entry.kernel.name);
    return names;
}

std::optional<std::vector<Conv2dTile>> conv2d_tiles(const std::string& name, const std::string& arch, DType dtype) {
    const auto tiles = algorithm(name).tiles;
    return tiles ? std::optional(tiles(arch, dtype)) : std::nullopt;
}

const char* conv2d_refusal(const Conv2dParams& params, const Conv2dPlan& plan) {
    return algorithm(plan.algorithm).kernel.refusal_of(params, plan);
}

int64_t conv2d_workspace(const Conv2dParams& params, const Conv2dPlan& plan) {
    return algorithm(plan.algorithm).kernel.workspace_of(params, plan);
}

int64_t conv2d_packed_bytes(const Conv2dParams& params, const Conv2dPlan& plan) {
    const auto bytes = algorithm(plan.algorithm).packed_bytes;
    return bytes ? bytes(params, plan) : 0;
}

void conv2d_pack_filters(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream) {
    algorithm(plan.algorithm).pack(params, plan, packed, stream);
}

void conv2d(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream) {
    algorithm(plan.algorithm).kernel.launch(params, plan, workspace, stream);
}

}  // namespace hipconv
