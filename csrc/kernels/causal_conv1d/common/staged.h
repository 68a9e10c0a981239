// The staged kernels, forward and backward, share this: how a launch is divided into tiles, and what a block does before it
// computes. A block makes the tokens of a tile for a few pairs of channels; a thread makes a group of 16 tokens of a pair.
//
// The file is for files that include <hip/hip_runtime.h>.
#pragma once

#include "causal_conv1d/states_formula.h"
#include "launch.h"
#include "lds_taps.h"
#include "lds_tile.h"

namespace hipconv {

constexpr int kStagedThreads = 256;
constexpr int kStagedThreadBits = 8;
constexpr int kMostPairsByTaps = 64;  // pairs of a block, times the taps by 16
constexpr int kMostStagedTaps = kGroupTokens * kMostPairsByTaps;
// LDS: a group for each thread, the groups that the taps of all pairs reach, and the weights.
constexpr int kStagedLineFloats = kGroupFloats * (kStagedThreads + kMostPairsByTaps);
constexpr int kStagedWeightFloats = 2 * kGroupTokens * kMostPairsByTaps;
constexpr int kStagedBytes = (kStagedLineFloats + kStagedWeightFloats) * 4;
constexpr int kMostStagedGroups = kStagedThreads + kMostPairsByTaps;  // of a line

// The plan says how a launch divides the work.
struct StagedPlan {
    int32_t pair_bits, group_bits;  // of the pairs of channels of a block, and of the threads that each pair has
    int32_t taps;                   // the width, rounded up to groups
    int32_t made;                   // tokens that a block makes; the row's last one may make all of its groups
    int32_t before;                 // tokens made in front of the row
    bool channels_first;            // blocks that are neighbours have neighbouring channels, or else neighbouring tokens
    uint32_t tiles, channel_blocks, all_blocks;
};

inline int bits_up_to(int64_t size, int most) {
    int bits = 0;
    while (bits < most && int64_t{1} << bits < size) ++bits;
    return bits;
}
inline bool moves_channels(TileMoves moves) { return moves == TileMoves::channel_vectors || moves == TileMoves::channels; }

// `group_bits` are the fewest. In the backward, the last groups of a block, as many as the taps reach, are made for their
// gradients only. `before` tokens are made in front of rows.
inline StagedPlan staged_plan(const CausalConv1dInputs& in, bool along_channels, bool channels_first, int group_bits,
                              bool is_bwd, int32_t before) {
    StagedPlan plan{};
    plan.taps = (in.width + kGroupTokens - 1) / kGroupTokens * kGroupTokens;
    plan.before = before;
    plan.channels_first = channels_first;
    const int64_t tokens = int64_t{in.seqlen} + before;
    const int tap_groups = plan.taps / kGroupTokens, behind = is_bwd ? tap_groups : 0;
    const int64_t pairs = (int64_t{in.dim} + 1) / 2;
    int most = kStagedThreadBits - group_bits;
    const auto at_most = [&](int limit) { most = most < limit ? most : limit; };
    at_most(bits_up_to(pairs, kStagedThreadBits));
    at_most(bits_up_to(kMostPairsByTaps / tap_groups + 1, kStagedThreadBits + 1) - 1);
    if (tap_groups > kMostPairsByTaps || most < 0) return plan;
    // Blocks have the pairs for which the fewest threads make nothing. Lines of memory want many, if they are channels. A token
    // that a tile reads in front of itself costs an eighth of one that it makes.
    int64_t least = INT64_MAX;
    for (int bits = along_channels && most > 4 ? 4 : along_channels ? most : 0; bits <= most; ++bits) {
        const int groups = 1 << (kStagedThreadBits - bits);
        const int made = (groups - behind) * kGroupTokens;
        if (made <= 0) break;
        const int64_t last = tokens - behind * kGroupTokens, tiles = last > made ? (last + made - 1) / made : 1;
        const int64_t blocks = (pairs + (int64_t{1} << bits) - 1) >> bits;
        const int64_t cost = tiles * blocks * (groups * kGroupTokens + plan.taps / 8) << bits;
        if (cost >= least) continue;
        least = cost;
        plan.pair_bits = bits;
        plan.group_bits = kStagedThreadBits - bits;
        plan.made = made;
        plan.tiles = static_cast<uint32_t>(tiles);
    }
    if (plan.made <= 0) return plan;
    const int64_t channels = int64_t{2} << plan.pair_bits;
    plan.channel_blocks = static_cast<uint32_t>((in.dim + channels - 1) / channels);
    const double all = static_cast<double>(plan.tiles) * plan.channel_blocks * in.batch;
    plan.all_blocks = all < 4e9 ? plan.tiles * plan.channel_blocks * static_cast<uint32_t>(in.batch) : 0;
    return plan;
}

// Where a token of the tile is less than a vector, its elements are moved one by one.
inline TileMoves moves_of_plan(const StagedPlan& plan, TileMoves moves, int element_bytes) {
    const bool is_less = (2 << plan.pair_bits) * element_bytes < 16;
    return moves == TileMoves::channel_vectors && is_less ? TileMoves::channels : moves;
}

constexpr int64_t kStagedGridLimit = kGridLimit / 2;  // AMD counts the threads along x in 32 bits

inline dim3 staged_grid(const StagedPlan& plan) {
    const int64_t x = plan.all_blocks < kStagedGridLimit ? plan.all_blocks : kStagedGridLimit;
    return dim3(static_cast<unsigned>(x), static_cast<unsigned>((plan.all_blocks + x - 1) / x), 1);
}

// The bytes of LDS that a launch of the kernel asks for, after it has been allowed to.
inline int staged_shared_bytes(const void* kernel) {
    const int shared = launch_shared_bytes(kStagedBytes);
    if (shared > 48 * 1024) (void)hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    return shared;
}

// A thread's place in the work.
struct StagedPlace {
    uint32_t b;
    int tile, first_token, first_channel;  // of the block; the first token may lie before the row
    int made;                              // tokens that the block makes
    int pair, group, groups;               // of the thread; groups of its pair
    int pitch;                             // floats from line to line

    HIPCONV_INLINE StagedPlace(const StagedPlan& plan, uint32_t block) {
        const uint32_t inner_blocks = plan.channels_first ? plan.channel_blocks : plan.tiles;
        const uint32_t outer_blocks = plan.channels_first ? plan.tiles : plan.channel_blocks;
        const uint32_t outer = block / inner_blocks, inner = block - outer * inner_blocks;
        b = outer / outer_blocks;
        const uint32_t middle = outer - b * outer_blocks;
        tile = static_cast<int>(plan.channels_first ? middle : inner);
        first_token = tile * plan.made - plan.before;
        first_channel = static_cast<int>(plan.channels_first ? inner : middle) * (2 << plan.pair_bits);
        groups = 1 << plan.group_bits;
        made = static_cast<uint32_t>(tile) + 1 == plan.tiles ? groups * kGroupTokens : plan.made;
        pair = static_cast<int>(threadIdx.x) >> plan.group_bits;
        group = static_cast<int>(threadIdx.x) & (groups - 1);
        pitch = kGroupFloats * (groups + plan.taps / kGroupTokens);
    }
    HIPCONV_INLINE int channel() const { return first_channel + 2 * pair; }
    HIPCONV_INLINE float* line(float* lines) const { return lines + pair * pitch; }
    HIPCONV_INLINE float* own(float* lines) const { return line(lines) + group * kGroupFloats; }
};

// The block's share of a tensor, from `token` on.
template <typename T>
HIPCONV_INLINE TilePart staged_part(const CausalConv1dInputs& in, const StagedPlan& plan, const StagedPlace& place,
                                    const Sequences& rows, TileMoves moves, int token) {
    TilePart part{rows, moves, place.first_channel, in.dim, token, in.seqlen, plan.pair_bits, plan.group_bits};
    part.rows.data = global_pointer<T>(rows.data) + place.b * rows.batch_stride;
    return part;
}

// Brings x of the tile and of the taps before it; initial states stand before the row, and zeros around it.
template <typename T>
HIPCONV_INLINE void bring_inputs(const CausalConv1dInputs& in, const StagedPlan& plan, const StagedPlace& place,
                                 TileMoves moves, float* lines) {
    const int first = place.first_token - plan.taps, past = in.width - 1;
    bring_tile<T, 1>(staged_part<T>(in, plan, place, in.x, moves, first), place.groups * kGroupTokens + plan.taps, lines,
                     place.pitch);
    const int in_front = (in.initial_states.data ? -past : 0) - (first + 1), all = place.groups * kGroupTokens + plan.taps;
    const auto clear = [&](int t) { *reinterpret_cast<Pair*>(place.line(lines) + float_of_token(t)) = twice(0.0f); };
    for (int t = place.group; t < in_front && t < all; t += place.groups) clear(t);
    const int end = in.seqlen - (first + 1);
    for (int t = (end > 0 ? end : 0) + place.group; t < all; t += place.groups) clear(t);
    const int d = place.channel();
    if (!in.initial_states.data || place.first_token >= past || d >= in.dim) return;
    const Sequences& states = in.initial_states;
    const T* const from = global_pointer<const T>(states.data) + place.b * states.batch_stride + d * states.dim_stride;
    int begin = place.first_token - past;
    if (begin < -past) begin = -past;
    if (begin < first + 1) begin = first + 1;
    for (int t = begin + place.group; t < 0; t += place.groups) {
        const T* const column = from + (t + past) * states.seqlen_stride;
        const float other = d + 1 < in.dim ? to_float(column[states.dim_stride]) : 0.0f;
        *reinterpret_cast<Pair*>(place.line(lines) + float_of_token(t - first - 1)) = make_pair(to_float(column[0]), other);
    }
}

// Brings the weights of the block's channels: pairs, oldest tap first, behind the taps that the width leaves out. It sets
// `not_finite` if one is an infinity or NaN: zeros around a row are no substitute then for taps that see nothing.
HIPCONV_INLINE void bring_weights(const CausalConv1dInputs& in, const StagedPlan& plan, const StagedPlace& place,
                                  float* weights, int* not_finite) {
    const int own = static_cast<int>(threadIdx.x) >> (plan.group_bits - 1), lanes = place.groups / 2;
    const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
    if (place.first_channel + own >= in.dim) return;
    float* const to = weights + own / 2 * 2 * plan.taps + 2 * (plan.taps - in.width) + own % 2;
    const int64_t from = (place.first_channel + own) * in.weight_dim_stride;
    with_dtype(in.weight_dtype, [&](auto type) {
        using P = decltype(type);
        const P* const row = global_pointer<const P>(in.weight);
        for (int i = lane; i < in.width; i += lanes) {
            const float weight = parameter<P>(row, from + i * in.weight_width_stride);
            to[2 * i] = weight;
            if (!is_finite(weight)) *not_finite = 1;
        }
    });
}

// The sums of a group before any tap: its channels' biases.
HIPCONV_INLINE void begin_with_bias(const CausalConv1dInputs& in, const StagedPlace& place, Pair (&sums)[kGroupTokens]) {
    const auto bits = [&](int d) -> uint32_t {
        return in.bias && d < in.dim ? load_parameter_bits(in.bias, d * in.bias_stride, in.bias_dtype) : 0;
    };
    const uint32_t first = bits(place.channel()), second = bits(place.channel() + 1);
    const Pair both = make_pair(parameter_of(first, in.bias_dtype), parameter_of(second, in.bias_dtype));
#pragma unroll
    for (int t = 0; t < kGroupTokens; ++t) sums[t] = both;
}

// For each group of a line, bit t says that token t is a start, bit 16 + t that it is padding. `returns` is set where an id may
// come back after others: starts do not tell then what a token sees. Zero it before.
HIPCONV_INLINE void find_starts(const CausalConv1dInputs& in, const StagedPlan& plan, const StagedPlace& place, uint32_t* found,
                                int* returns) {
    const int groups = place.groups + plan.taps / kGroupTokens;
    for (int g = static_cast<int>(threadIdx.x); g < groups; g += kStagedThreads) {
        uint32_t bits = 0;
        bool may_return = false;
        const int64_t first = int64_t{place.first_token} - plan.taps + g * kGroupTokens;
        int32_t id = first + kGroupTokens > 0 && first <= in.seqlen ? sequence_of(in, place.b, first - 1) : 0;
        for (int t = 0; t < kGroupTokens; ++t) {
            if (first + t < 0 || first + t > in.seqlen) continue;
            const bool ends = first + t == in.seqlen;
            const int32_t next = ends ? id : sequence_of(in, place.b, first + t);
            const bool starts = ends || (first + t == 0 ? !in.initial_states.data : next != id);
            bits |= static_cast<uint32_t>(starts) << t | static_cast<uint32_t>(next < 0) << (kGroupTokens + t);
            may_return = may_return || (next >= 0 && next != id && (next < id || id < 0));
            id = next;
        }
        found[g] = bits;
        if (may_return) *returns = 1;
    }
}

// The starts around the thread's group, of those found or, without ids, by the row's beginning and end, if they matter.
__device__ __forceinline__ GroupStarts starts_of_group(const CausalConv1dInputs& in, const StagedPlan& plan,
                                                       const StagedPlace& place, const uint32_t* found, bool ends_matter) {
    const int first = place.first_token + place.group * kGroupTokens;
    GroupStarts starts{0, -kFarAway, kFarAway};
    const bool begins = !in.initial_states.data;
    if (!in.seq_idx.data) {
        if (!ends_matter) return starts;
        if (begins && first > -kGroupTokens) {
            if (first > 0)
                starts.last = -first;
            else
                starts.bits |= 1u << -first;
        }
        if (begins && first <= -kGroupTokens) starts.next = -first;
        const int end = in.seqlen - first;
        if (end >= 0 && end < kGroupTokens) starts.bits |= 1u << end;
        if (end >= kGroupTokens && end < starts.next) starts.next = end;
        return starts;
    }
    const int before = plan.taps / kGroupTokens, own = before + place.group, groups = place.groups + before;
    starts.bits = found[own] & 0xffffu;
    for (int back = 1; back <= before && starts.last == -kFarAway; ++back) {
        const uint32_t bits = found[own - back] & 0xffffu;
        if (bits) starts.last = 31 - __clz(static_cast<int>(bits)) - back * kGroupTokens;
    }
    for (int on = 1; on <= before && own + on < groups && starts.next == kFarAway; ++on) {
        const uint32_t bits = found[own + on] & 0xffffu;
        if (bits) starts.next = __ffs(static_cast<int>(bits)) - 1 + on * kGroupTokens;
    }
    return starts;
}

}  // namespace hipconv
