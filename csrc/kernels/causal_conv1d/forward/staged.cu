// This kernel is the causal conv1d forward by way of LDS ("staged"): it serves wide filters, and x and out of any layouts.
//
// A block's tile and the tokens before it that its filter reaches come to LDS as floats, in pairs of channels (lds_tile.h). A
// thread makes 16 tokens of a pair. It takes 16 taps at a time: 31 tokens go to registers, and serve 256 multiply-adds of
// pairs, so that LDS is read at about half of its rate. Outputs return by way of LDS: either side moves whole lines of memory,
// whatever the layout of the other.
//
// Around a row stand zeros, if no weight is an infinity or NaN. Else, and where rows have ids, a token reaches back to the last
// change of the id (or the row's beginning): taps that no token of a wave reaches are skipped, taps that all reach are taken as
// they are, others token by token. Where an id returns after others, a block makes its outputs by the formula.
//
// Floor: `width` multiply-adds an element, or the copy of x to out where the width is small. Bytes: each input is read once,
// and those in front of a tile once more, from the cache.
#include <hip/hip_runtime.h>

#include "../common/staged.h"
#include "causal_conv1d/forward_formula.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, kLdsBytes / kStagedBytes > 2 ? 2 : 1)
    causal_conv1d_fwd_staged(CausalConv1dFwdParams p, StagedPlan plan, TileMoves x_moves, TileMoves out_moves) {
    HIPCONV_LARGE_SHARED(Words4, lds, kStagedBytes / 16);
    HIPCONV_SHARED(uint32_t, found, kMostStagedGroups);
    HIPCONV_SHARED(int, returns, 1);
    HIPCONV_SHARED(int, not_finite, 1);
    float* const lines = reinterpret_cast<float*>(lds);

    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    if (block >= plan.all_blocks) return;
    let_next_kernel_begin();
    const StagedPlace place(plan, block);
    float* const weights = lines + (place.pitch << plan.pair_bits);
    const auto again = [&]() -> const CausalConv1dFwdParams& { return first_parameter_again(p); };

    if (threadIdx.x == 0) *returns = *not_finite = 0;
    __syncthreads();
    wait_for_kernel_before();
    with_dtype(p.dtype, [&](auto type) { bring_inputs<decltype(type)>(again(), plan, place, x_moves, lines); });
    bring_weights(again(), plan, place, weights, not_finite);
    const bool has_ids = p.seq_idx.data;
    if (has_ids) find_starts(again(), plan, place, found, returns);
    __syncthreads();
    if (has_ids && *returns) {
        const int channels = 2 << plan.pair_bits;
        for (int i = static_cast<int>(threadIdx.x); i < channels * place.made; i += kStagedThreads) {
            const int d = place.first_channel + i % channels, t = place.first_token + i / channels;
            if (d >= again().dim || t >= again().seqlen) continue;
            with_dtype(again().dtype,
                       [&](auto type) { causal_conv1d_one_output<decltype(type), float>(again(), place.b, d, t); });
        }
        return;
    }

    Pair sums[kGroupTokens];
    begin_with_bias(again(), place, sums);
    const GroupStarts starts = starts_of_group(again(), plan, place, found, *not_finite);
    const int width = again().width;
    convolve_group(place.own(lines), weights + place.pair * 2 * plan.taps, plan.taps, width, starts,
                   GroupReach(starts, width - 1), sums);
    const bool use_silu = again().use_silu;
    const uint32_t padding = has_ids ? found[plan.taps / kGroupTokens + place.group] >> kGroupTokens : 0;
#pragma unroll
    for (int t = 0; t < kGroupTokens; ++t) {
        sums[t] = silu_where(use_silu, sums[t]);
        if (padding >> t & 1) sums[t] = twice(0.0f);
    }
    __syncthreads();  // now outputs may take the place of inputs
    store_group(place.own(lines), sums);
    __syncthreads();
    with_dtype(again().dtype, [&](auto type) {
        using T = decltype(type);
        take_tile_away<T>(staged_part<T>(again(), plan, place, again().out, out_moves, place.first_token), place.made, lines,
                          place.pitch);
    });
}

namespace {

StagedPlan plan_of(const CausalConv1dFwdParams& p, TileMoves x_moves, TileMoves out_moves) {
    const bool channels_first = moves_channels(x_moves);
    return staged_plan(p, channels_first || moves_channels(out_moves), channels_first, 2, /*is_bwd=*/false, 0);
}

}  // namespace

const char* causal_conv1d_staged_refusal(const CausalConv1dFwdParams& p) {
    const int size = element_bytes(p.dtype);
    const bool fits = p.width <= kMostStagedTaps && p.seqlen < 1 << 30 &&
                      plan_of(p, tile_moves(p.x, size), tile_moves(p.out, size)).all_blocks > 0;
    return fits ? nullptr : "widths 1 to 1024, fewer than 2^30 tokens";
}

void causal_conv1d_staged(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    const int size = element_bytes(p.dtype),
              shared = staged_shared_bytes(reinterpret_cast<const void*>(causal_conv1d_fwd_staged));
    const TileMoves x_moves = tile_moves(p.x, size), out_moves = tile_moves(p.out, size);
    const StagedPlan plan = plan_of(p, x_moves, out_moves);
    HIPCONV_LAUNCH(true, causal_conv1d_fwd_staged, staged_grid(plan), dim3(kStagedThreads, 1, 1), shared,
                   static_cast<hipStream_t>(stream), p, plan, moves_of_plan(plan, x_moves, size),
                   moves_of_plan(plan, out_moves, size));
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
