// This kernel is the causal conv1d forward by way of LDS ("staged"): it serves wide filters, and x and out of any layouts.
//
// A block's tile and the tokens before it that its filter reaches come to LDS as floats, in pairs of channels (lds_tile.h). A
// thread makes 16 tokens of a pair. It takes 16 taps at a time: 31 tokens go to registers, and serve 256 multiply-adds of pairs,
// so that LDS is read at about half of its rate. Outputs return by way of LDS: either side moves whole lines of memory, whatever
// the layout of the other.
//
// Where rows have a beginning or ids, a token reaches back to the last change of the id (or the row's beginning). Taps that no
// token of a wave reaches are skipped, taps that all reach are taken as they are, others token by token. Where an id returns
// after others, a block makes its outputs by the formula.
//
// Floor: `width` multiply-adds an element, or the copy of x to out where the width is small. Bytes: each input is read once, and
// those in front of a tile once more, from the cache.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "../common/lds_tile.h"
#include "../common/parts.h"
#include "causal_conv1d/forward_formula.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kStagedThreads = 256;
constexpr int kTapsAtOnce = 16;
constexpr int kMostPairsByTaps = 64;  // pairs of a block, times the taps by 16
constexpr int kMostStagedTaps = kTapsAtOnce * kMostPairsByTaps;
// Groups of all lines in LDS, and weights.
constexpr int kStagedFloats = kGroupFloats * (kStagedThreads + kMostPairsByTaps);
constexpr int kStagedWeights = 2 * kTapsAtOnce * kMostPairsByTaps;
constexpr int kStagedBytes = (kStagedFloats + kStagedWeights) * 4;
constexpr int kMostGroups = kStagedThreads + kMostPairsByTaps;  // of a line

// This plan says how a launch divides the work.
struct ForwardStagedPlan {
    int32_t pair_bits, group_bits;  // of the pairs of channels of a block, and of the groups of tokens that it makes
    int32_t taps;                   // the width, rounded up
    bool channels_first;            // blocks that are neighbours have neighbouring channels, or else neighbouring tokens
    TileMoves x_moves, out_moves;
    uint32_t tiles, channel_blocks, all_blocks;
};

// These are the taps that the tokens of a group reach back to, in steps from the token itself.
struct GroupReach {
    uint32_t starts;     // bit i: token i is the first that sees itself and nothing before
    int last;            // the last such token before the group, from its beginning; far away where there is none
    int least, longest;  // of all tokens

    // Bits beyond the sequence do no harm.
    HIPCONV_INLINE GroupReach(uint32_t bits, int before, int past) : starts(bits), last(before), least(past), longest(0) {
        int start = last;
#pragma unroll
        for (int i = 0; i < kGroupTokens; ++i) {
            if (starts >> i & 1) start = i;
            least = i - start < least ? i - start : least;
            longest = i - start > longest ? i - start : longest;
        }
        longest = longest < past ? longest : past;
    }
};

// 16 taps of 16 tokens. `oldest` is the reach that the first tap needs.
template <bool kMasked>
HIPCONV_INLINE void add_taps(const float* tokens, const float* weights, int first, int oldest, const GroupReach& reach,
                             Pair (&sums)[kGroupTokens]) {
    Pair window[2 * kGroupTokens];
#pragma unroll
    for (int v = 0; v < kGroupTokens; ++v) {
        const Words4 two = *reinterpret_cast<const Words4*>(tokens + v / 8 * kGroupFloats + v % 8 * 4);
        window[2 * v] = pair_of<float>(two, 0);
        window[2 * v + 1] = pair_of<float>(two, 1);
    }
#pragma unroll
    for (int i = 0; i < kTapsAtOnce; ++i) {
        if (i < first) continue;
        const Pair weight = *reinterpret_cast<const Pair*>(weights + 2 * i);
        int start = reach.last;
#pragma unroll
        for (int t = 0; t < kGroupTokens; ++t) {
            if constexpr (kMasked) {
                if (reach.starts >> t & 1) start = t;
                const bool sees = t - start >= oldest - i;
                sums[t] = multiply_add_where(sees, sees, weight, window[t + i], sums[t]);
            } else {
                sums[t] = multiply_add(weight, window[t + i], sums[t]);
            }
        }
    }
}

__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, kLdsBytes / kStagedBytes > 2 ? 2 : 1)
    causal_conv1d_fwd_staged(CausalConv1dFwdParams p, ForwardStagedPlan plan) {
    HIPCONV_LARGE_SHARED(Words4, lds, kStagedBytes / 16);
    HIPCONV_SHARED(uint32_t, changes, kMostGroups);  // bit i: token i of the group is a start; bit 16 + i: it is padding
    HIPCONV_SHARED(int, returns, 1);                 // whether an id may return after others
    float* const lines = reinterpret_cast<float*>(lds);

    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    if (block >= plan.all_blocks) return;
    let_next_kernel_begin();
    const uint32_t inner_blocks = plan.channels_first ? plan.channel_blocks : plan.tiles;
    const uint32_t outer_blocks = plan.channels_first ? plan.tiles : plan.channel_blocks;
    const uint32_t outer = block / inner_blocks, inner = block - outer * inner_blocks;
    const uint32_t b = outer / outer_blocks, middle = outer - b * outer_blocks;
    const int tile = static_cast<int>(plan.channels_first ? middle : inner);
    const int channel_block = static_cast<int>(plan.channels_first ? inner : middle);

    const int thread = static_cast<int>(threadIdx.x), pair = thread >> plan.group_bits;
    const int group = thread & ((1 << plan.group_bits) - 1), groups = 1 << plan.group_bits;
    const int before = plan.taps / kGroupTokens, missing = plan.taps - p.width, past = p.width - 1;  // groups before; taps
    const int tokens = groups * kGroupTokens, first_token = tile * tokens, first_channel = channel_block * 2 << plan.pair_bits;
    const int pitch = kGroupFloats * (groups + before);
    float* const weights = lines + (pitch << plan.pair_bits);
    const int d = first_channel + 2 * pair;
    const bool has_state = p.initial_states.data;

    wait_for_kernel_before();
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        const CausalConv1dFwdParams& given = first_parameter_again(p);
        TilePart part{given.x,      plan.x_moves,   first_channel,  given.dim, first_token - plan.taps,
                      given.seqlen, plan.pair_bits, plan.group_bits};
        part.rows.data = global_pointer<T>(part.rows.data) + b * part.rows.batch_stride;
        bring_tile<T>(part, tokens + plan.taps, lines, pitch);
        if (first_token < past && given.initial_states.data) {
            const Sequences& states = given.initial_states;
            if (d < given.dim) {
                const bool has_both = d + 1 < given.dim;
                const T* const from = global_pointer<const T>(states.data) + b * states.batch_stride + d * states.dim_stride;
                for (int t = first_token - past + group; t < 0; t += groups) {
                    const T* const column = from + (t + past) * states.seqlen_stride;
                    const float other = has_both ? to_float(column[states.dim_stride]) : 0.0f;
                    *reinterpret_cast<Pair*>(lines + pair * pitch + float_of_token(t - first_token + plan.taps - 1)) =
                        make_pair(to_float(column[0]), other);
                }
            }
        }
    });
    {
        const CausalConv1dFwdParams& given = first_parameter_again(p);
        const int own = thread >> (plan.group_bits - 1), lane = thread & (groups / 2 - 1);
        const int64_t from = (first_channel + own) * given.weight_dim_stride;
        if (first_channel + own < given.dim) {
            with_dtype(given.weight_dtype, [&](auto type) {
                using P = decltype(type);
                const P* const row = global_pointer<const P>(given.weight);
                for (int i = lane; i < given.width; i += groups / 2)
                    weights[own / 2 * 2 * plan.taps + 2 * (missing + i) + own % 2] =
                        parameter<P>(row, from + i * given.weight_width_stride);
            });
        }
    }
    const bool has_ids = p.seq_idx.data;
    if (has_ids) {
        if (thread == 0) *returns = 0;
        __syncthreads();
        const CausalConv1dFwdParams& given = first_parameter_again(p);
        for (int g = thread; g < groups + before; g += kStagedThreads) {
            uint32_t bits = 0;
            bool may_return = false;
            const int64_t first = int64_t{first_token} - plan.taps + g * kGroupTokens;
            int32_t id = first + kGroupTokens > 0 && first <= given.seqlen ? sequence_of(given, b, first - 1) : 0;
            for (int i = 0; i < kGroupTokens; ++i) {
                if (first + i < 0 || first + i >= given.seqlen) continue;
                const int32_t next = sequence_of(given, b, first + i);
                const bool starts = first + i == 0 ? !has_state : next != id;
                bits |= static_cast<uint32_t>(starts) << i | static_cast<uint32_t>(next < 0) << (kGroupTokens + i);
                may_return = may_return || (next >= 0 && next != id && (next < id || id < 0));
                id = next;
            }
            changes[g] = bits;
            if (may_return) *returns = 1;
        }
    }
    __syncthreads();
    if (has_ids && *returns) {
        const CausalConv1dFwdParams& given = first_parameter_again(p);
        const int channels = 2 << plan.pair_bits;
        for (int i = thread; i < channels * tokens; i += kStagedThreads) {
            const int channel = first_channel + i % channels, t = first_token + i / channels;
            if (channel >= given.dim || t >= given.seqlen) continue;
            with_dtype(given.dtype, [&](auto type) { causal_conv1d_one_output<decltype(type), float>(given, b, channel, t); });
        }
        return;
    }

    // The reach of this thread's tokens.
    constexpr int kFar = -(1 << 24);
    uint32_t starts = 0, padding = 0;
    int last = kFar;
    if (has_ids) {
        const uint32_t own = changes[before + group];
        starts = own & 0xffffu;
        padding = own >> kGroupTokens;
        for (int back = 1; back <= before && last == kFar; ++back) {
            const uint32_t bits = changes[before + group - back] & 0xffffu;
            if (bits) last = 31 - __clz(static_cast<int>(bits)) - back * kGroupTokens;
        }
    } else if (!has_state) {
        last = -first_token - group * kGroupTokens;
    }
    const GroupReach reach(starts, last, past);

    Pair sums[kGroupTokens];
    {
        const CausalConv1dFwdParams& given = first_parameter_again(p);
        const auto bias = [&](int channel) {
            if (!given.bias || channel >= given.dim) return 0.0f;
            return load_parameter(global_pointer<const char>(given.bias), channel * given.bias_stride, given.bias_dtype);
        };
        const Pair both = make_pair(bias(d), bias(d + 1));
#pragma unroll
        for (int t = 0; t < kGroupTokens; ++t) sums[t] = both;
    }
    const float* from = lines + pair * pitch + group * kGroupFloats;
    const float* tap = weights + pair * 2 * plan.taps;
    for (int oldest = plan.taps - 1; oldest > 0; oldest -= kTapsAtOnce, from += kGroupFloats, tap += 2 * kTapsAtOnce) {
        const int least = oldest < past ? oldest : past;  // that is a tap
        if (__ballot(reach.longest > oldest - kTapsAtOnce) == 0) continue;
        if (__ballot(reach.least < least) != 0)
            add_taps<true>(from, tap, oldest - past, oldest, reach, sums);
        else if (oldest > past)
            add_taps<false>(from, tap, oldest - past, oldest, reach, sums);
        else
            add_taps<false>(from, tap, 0, oldest, reach, sums);
    }
    const bool use_silu = first_parameter_again(p).use_silu;
#pragma unroll
    for (int t = 0; t < kGroupTokens; ++t) {
        sums[t] = silu_where(use_silu, sums[t]);
        if (padding >> t & 1) sums[t] = twice(0.0f);
    }
    __syncthreads();  // now outputs may take the place of inputs
    float* const to = lines + pair * pitch + group * kGroupFloats;
#pragma unroll
    for (int v = 0; v < kGroupTokens / 2; ++v) {
        Words4 two{};
        set_pair<float>(two, 0, sums[2 * v]);
        set_pair<float>(two, 1, sums[2 * v + 1]);
        *reinterpret_cast<Words4*>(to + 4 * v) = two;
    }
    __syncthreads();
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        const CausalConv1dFwdParams& given = first_parameter_again(p);
        TilePart part{given.out,   plan.out_moves, first_channel,  given.dim,
                      first_token, given.seqlen,   plan.pair_bits, plan.group_bits};
        part.rows.data = global_pointer<T>(part.rows.data) + b * part.rows.batch_stride;
        take_tile_away<T>(part, tokens, lines, pitch);
    });
}

namespace {

int bits_up_to(int64_t size, int most) {
    int bits = 0;
    while (bits < most && int64_t{1} << bits < size) ++bits;
    return bits;
}

ForwardStagedPlan plan_of(const CausalConv1dFwdParams& p) {
    ForwardStagedPlan plan{};
    const int size = element_bytes(p.dtype), all_bits = bits_up_to(kStagedThreads, 8);
    plan.taps = (p.width + kTapsAtOnce - 1) / kTapsAtOnce * kTapsAtOnce;
    plan.x_moves = tile_moves(p.x, size);
    plan.out_moves = tile_moves(p.out, size);
    const auto is_along_channels = [](TileMoves moves) {
        return moves == TileMoves::channel_vectors || moves == TileMoves::channels;
    };
    plan.channels_first = is_along_channels(plan.x_moves);
    // Lines of memory want many channels where they are channels; many tokens keep the share of those before a tile small.
    const int most_groups = bits_up_to((p.seqlen + kGroupTokens - 1) / kGroupTokens, all_bits);
    int bits = plan.channels_first || is_along_channels(plan.out_moves) ? 4 : 0;
    if (bits < all_bits - most_groups) bits = all_bits - most_groups;
    const auto at_most = [&](int limit) { bits = bits < limit ? bits : limit; };
    at_most(bits_up_to((p.dim + 1) / 2, all_bits));
    int most_pairs = kMostPairsByTaps / (plan.taps / kTapsAtOnce), limit = 0;
    while (most_pairs > 1) most_pairs /= 2, ++limit;
    at_most(limit);
    plan.pair_bits = bits;
    plan.group_bits = all_bits - bits;
    const auto in_elements = [&](TileMoves& moves) {  // where a token of the tile is less than a vector
        if (moves == TileMoves::channel_vectors && (2 << bits) * size < 16) moves = TileMoves::channels;
    };
    in_elements(plan.x_moves);
    in_elements(plan.out_moves);
    const int64_t tokens = int64_t{kGroupTokens} << plan.group_bits, channels = int64_t{2} << bits;
    plan.tiles = static_cast<uint32_t>((p.seqlen + tokens - 1) / tokens);
    plan.channel_blocks = static_cast<uint32_t>((p.dim + channels - 1) / channels);
    const double all = static_cast<double>(plan.tiles) * plan.channel_blocks * p.batch;
    plan.all_blocks = all < 4e9 ? plan.tiles * plan.channel_blocks * static_cast<uint32_t>(p.batch) : 0;
    return plan;
}

}  // namespace

const char* causal_conv1d_staged_refusal(const CausalConv1dFwdParams& p) {
    const bool fits = p.width <= kMostStagedTaps && p.seqlen < 1 << 30 && plan_of(p).all_blocks > 0;
    return fits ? nullptr : "widths 1 to 1024, fewer than 2^30 tokens";
}

void causal_conv1d_staged(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    const ForwardStagedPlan plan = plan_of(p);
    const dim3 grid = plan.all_blocks <= kGridLimit ? dim3(plan.all_blocks, 1, 1)
                                                    : grid_of(kGridLimit, (plan.all_blocks + kGridLimit - 1) / kGridLimit);
    const int shared = launch_shared_bytes(kStagedBytes);
    if (shared > 48 * 1024)
        (void)hipFuncSetAttribute(reinterpret_cast<const void*>(causal_conv1d_fwd_staged),
                                  hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    HIPCONV_LAUNCH(true, causal_conv1d_fwd_staged, grid, dim3(kStagedThreads, 1, 1), shared, static_cast<hipStream_t>(stream),
                   p, plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
