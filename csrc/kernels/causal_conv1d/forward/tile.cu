// This kernel is the causal conv1d forward, channel-last ("tile"): neighbouring channels are neighbours in memory.
//
// A thread owns the kChannels channels of one vector and walks a short run of tokens. Their weights stay in registers; the last
// kWidth tokens are a ring in registers, whose positions the unrolled loop knows at compile time; kAhead tokens are prefetched,
// so that memory always has work. A run starts by reading its halo, the kWidth - 1 tokens before it, which a neighbour has just
// brought into the cache. Runs are independent: there is no LDS and no barrier, and a thread's first loads, weights included,
// all leave together. Runs are short because many small blocks keep memory busier than few long ones, and blocks follow each
// other along the channels because that is the order of memory (both measured on an H200).
//
// Bytes: each input is read once from memory (and kWidth - 1 tokens a run once more from cache), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "kernels.h"
#include "launch/check.h"
#include "tile.h"

namespace hipconv {

constexpr int kShortTokenBytes = 32;  // of which a wave would have too many
constexpr int kFarthestSingles = 4;   // elements from channel to channel

// The number of blocks of a compute unit, by the registers that a width needs.
constexpr int tile_blocks(int width) { return width <= 4 ? 8 : width == 5 ? 6 : width == 6 ? 5 : 4; }

template <typename T, int kChannels, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreads, tile_blocks(kWidth))
    causal_conv1d_fwd_tile(CausalConv1dFwdParams p, TilePlan plan) {
    constexpr int kPairs = kChannels / 2;
    constexpr int kAhead = kWidth == 2 ? 4 : kWidth;  // a multiple of kWidth, so that ring positions repeat
    using Vector = Words<T, kChannels>;

    const TileRun run = run_of_thread(plan);
    const int64_t d = run.vector * kChannels, begin = run.begin;
    if (d >= p.dim || run.b >= p.batch || begin >= p.seqlen) return;
    let_next_kernel_begin();
    const int tokens = static_cast<int>(p.seqlen - begin < plan.run ? p.seqlen - begin : plan.run);
    const T* x_channels = static_cast<const T*>(p.x.data) + run.b * p.x.batch_stride + d;
    T* out_channels = static_cast<T*>(p.out.data) + run.b * p.out.batch_stride + d;
    const char* x = reinterpret_cast<const char*>(x_channels) + begin * plan.x_step;
    char* out = reinterpret_cast<char*>(out_channels) + begin * plan.out_step;
    const auto load = [](const char* from) { return *reinterpret_cast<const Vector*>(from); };

    wait_for_kernel_before();
    Vector before[kWidth - 1], ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        const int back = kWidth - 1 - i;
        before[i] = Vector{};
        if (begin >= back) before[i] = load(x - back * plan.x_step);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
        ahead[j] = Vector{};
        if (j < tokens) ahead[j] = load(x);
        x += plan.x_step;
    }

    Pair weight[kWidth][kPairs], bias[kPairs];
    packed_parameters<false, true>(p, d, weight, bias);
    bool redo = false;  // the first outputs: see below
    if (begin == 0) {
        Pair probe = twice(0.0f);  // becomes NaN if a weight is not finite
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) probe = multiply_add(weight[i][j], twice(0.0f), probe);
        }
        redo = !(low(probe) == 0.0f && high(probe) == 0.0f);
    }

    Pair ring[kWidth][kPairs];
    const auto keep = [&](int slot, Vector v) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) ring[slot][j] = pair_of<T>(v, j);
    };
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) keep(i, before[i]);

    // Makes the output of the token in this slot of the ring, from taps that begin `skipped` tokens later than they might.
    const auto produce = [&](int slot, int skipped) {
        Vector result;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            Pair sum = bias[j];
#pragma unroll
            for (int i = skipped; i < kWidth; ++i) sum = multiply_add(weight[i][j], ring[(slot + 1 + i) % kWidth][j], sum);
            set_pair<T>(result, j, silu(sum));
        }
        *reinterpret_cast<Vector*>(out) = result;
        out += plan.out_step;
    };

    int t = 0;
    for (; t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            ahead[j] = load(x);
            x += plan.x_step;
            produce((kWidth - 1 + j) % kWidth, 0);
        }
    }
    for (; t < tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            if (t + kAhead + j < tokens) ahead[j] = load(x);
            x += plan.x_step;
            if (t + j < tokens) produce((kWidth - 1 + j) % kWidth, 0);
        }
    }

    // Where a weight is infinite or NaN, the zeros that stood in for the tokens before the sequence made NaNs: do the first
    // outputs again without those taps.
    if (redo) {
        x -= (t + kAhead) * plan.x_step;
        out -= tokens * plan.out_step;
#pragma unroll
        for (int s = 0; s < kWidth - 1; ++s) {
            if (s >= tokens) break;
            keep(s, load(x));
            x += plan.x_step;
            produce(s, kWidth - 1 - s);
        }
    }
}

namespace {

template <typename T, int kWidth>
void launch(const CausalConv1dFwdParams& p, const TileShape& shape, hipStream_t stream) {
    constexpr int kChannels = lane_bytes(kWidth) / static_cast<int>(sizeof(T));
    HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile<T, kChannels, kWidth>), tile_grid(shape), tile_block(shape), 0, stream, p,
                   tile_plan(p, shape));
    check_launch("causal_conv1d_fwd");
}

// The kernel of this file makes plain rows with the activation of models, of aligned vectors; the others make the rest.
enum class TileWay { usual, checked, single, lds };

bool channels_are_neighbours(const CausalConv1dFwdParams& p) { return p.x.dim_stride == 1 && p.out.dim_stride == 1; }

// Tells whether channels lie apart, but nearer than tokens.
bool channels_are_near(const CausalConv1dFwdParams& p, const Sequences& s) {
    const int64_t step = s.seqlen_stride < 0 ? -s.seqlen_stride : s.seqlen_stride;
    return s.dim_stride >= 1 && s.dim_stride <= kFarthestSingles && (p.seqlen == 1 || step > s.dim_stride);
}

// Large calls in 16 bits, if the channels fill the threads of tiles: without ids, of four taps and more, or in short rows with
// states, of seven and more; with ids, of seven taps and more in long rows (measured on an H100 and an H200).
bool lds_is_faster_than_single(const CausalConv1dFwdParams& p) {
    constexpr int64_t kManyElements = 1 << 25;
    constexpr int kFewTokens = 16, kManyTokens = 512, kManyTaps = 7;
    const bool large = int64_t{p.batch} * p.dim * p.seqlen >= kManyElements;
    const bool states = p.initial_states.data || p.final_states.data, many_taps = p.width >= kManyTaps;
    const bool suits = p.seq_idx.data          ? many_taps && p.seqlen >= kManyTokens
                       : p.seqlen > kFewTokens ? p.width >= 4
                                               : states && many_taps && p.seqlen > 1;
    return kHasPredicates && element_bytes(p.dtype) == 2 && large && suits && causal_conv1d_tile_lds_fits(p) &&
           causal_conv1d_tile_lds_fills_threads(p);
}

// Many rows of channels that leave many of the shifted lanes idle.
bool lds_is_faster_than_shifted(const CausalConv1dFwdParams& p) {
    const bool many = int64_t{p.batch} * p.dim * p.seqlen >= int64_t{32} * kEnoughThreads;
    return kHasPredicates && many && !p.seq_idx.data && !causal_conv1d_tile_checked_fills_lanes(p) &&
           causal_conv1d_tile_lds_fits(p);
}

TileWay way_of(const CausalConv1dFwdParams& p) {
    if (!channels_are_neighbours(p)) return TileWay::single;
    const int bytes = lane_bytes(p.width);
    const bool dense = p.x.seqlen_stride == p.dim && p.out.seqlen_stride == p.dim;
    const bool short_tokens = dense && p.dim * element_bytes(p.dtype) < kShortTokenBytes;
    if (tile_is_whole(p, bytes) && !short_tokens)
        return rows_are_plain(p) && p.use_silu && p.width > 1 ? TileWay::usual : TileWay::checked;
    if (tile_is_of_pairs(p)) return TileWay::checked;
    if (!causal_conv1d_tile_single_fits(p)) return TileWay::lds;
    if (causal_conv1d_tile_checked_fits(p)) return lds_is_faster_than_shifted(p) ? TileWay::lds : TileWay::checked;
    return lds_is_faster_than_single(p) ? TileWay::lds : TileWay::single;
}

TileShape usual_shape(const CausalConv1dFwdParams& p) {
    return tile_shape(p, p.dim / (lane_bytes(p.width) / element_bytes(p.dtype)));
}

bool fits(const CausalConv1dFwdParams& p) {
    switch (way_of(p)) {
        case TileWay::usual:
            return usual_shape(p).fits();
        case TileWay::checked:
            return causal_conv1d_tile_checked_fits(p);
        case TileWay::single:
            return causal_conv1d_tile_single_fits(p);
        case TileWay::lds:
            return causal_conv1d_tile_lds_fits(p);
    }
    return false;
}

}  // namespace

const char* causal_conv1d_tile_refusal(const CausalConv1dFwdParams& p) {
    const bool channel_last = channels_are_neighbours(p) || (channels_are_near(p, p.x) && channels_are_near(p, p.out));
    return channel_last && p.width <= kMaxFastWidth && fits(p)
               ? nullptr
               : "channel-last x and out (stride 1 along dim, or up to 4 with 32 channels and more), widths 1 to 8";
}

bool causal_conv1d_tile(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const TileWay way = way_of(p);
    if (way == TileWay::checked) return causal_conv1d_tile_checked(p, s);
    if (way == TileWay::single) return causal_conv1d_tile_single(p, s);
    if (way == TileWay::lds) return causal_conv1d_tile_lds(p, s);
    with_instance<kMaxFastWidth>(
        p.dtype, p.width, [&](auto type, auto width) { launch<decltype(type), decltype(width)::value>(p, usual_shape(p), s); });
    return false;
}

}  // namespace hipconv
