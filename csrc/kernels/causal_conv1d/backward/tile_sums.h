// The end of the channel-last backward: a block of threads adds up its dweight and dbias.
#pragma once

#include "causal_conv1d/states_formula.h"
#include "tile_lane.h"
#include "tile_plan.h"

namespace hipconv {

// Adds up the threads' sums through `sums` in LDS and leaves them in the block's row of the workspace, or, where there is none,
// as gradients. kLastLaneMoves: the last lane of a dim that kChannels does not divide begins further in front.
template <int kWidth, int kChannels, bool kLastLaneMoves>
__device__ __forceinline__ void leave_partial_sums(const BwdTileCall& call, float* sums, uint32_t block,
                                                   const typename ChannelsOf<kChannels>::Value (&dweight)[kWidth],
                                                   const typename ChannelsOf<kChannels>::Value& dbias) {
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
    for (int i = 0; i <= kWidth; ++i) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
            sums[(i * kChannels + c) * threads + thread] =
                ChannelsOf<kChannels>::get(i < kWidth ? dweight[i < kWidth ? i : 0] : dbias, c);
    }
    __syncthreads();
    const int columns = 1 << call.plan.log2_channels;
    const int64_t first_channel = static_cast<int64_t>(blockIdx.x) * columns, dim = first_parameter_again(call).p.in.dim;
    float* partials = global_pointer<float>(first_parameter_again(call).p.partials);
    const bool are_sums = !partials;
    if (!are_sums) partials += static_cast<int64_t>(block) * (kWidth + 1) * dim + first_channel;
    for (int e = thread; e < (kWidth + 1) * columns; e += threads) {
        const int i = e >> call.plan.log2_channels, c = e & (columns - 1);
        if (first_channel + c >= dim) continue;
        int of_lane = c % kChannels;
        if (kLastLaneMoves && first_channel + c - of_lane + kChannels > dim)
            of_lane += static_cast<int>(first_channel + c - of_lane + kChannels - dim);
        const float* column = sums + (i * kChannels + of_lane) * threads + c / kChannels;
        float sum = 0.0f;
        for (unsigned row = 0; row < blockDim.y; ++row) sum += column[row * blockDim.x];
        if (are_sums)
            bwd_store_sum<float>(first_parameter_again(call).p, first_channel + c, i, sum);
        else
            partials[i * dim + c] = sum;
    }
}

}  // namespace hipconv
