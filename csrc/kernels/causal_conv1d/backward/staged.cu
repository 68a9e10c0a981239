// This kernel is the causal conv1d backward by way of LDS ("staged"): it serves wide filters, and x, dout and dx of any
// layouts.
//
// Tiles are those of the forward's staged kernel. A thread makes the sums of a group of 16 tokens again, and of these and dout
// the gradients g of the sums, which stay in its registers:
//
//   * dweight: 16 taps of its own group at a time, 256 multiply-adds of pairs from 31 tokens of x. 32 lanes add their 16 pairs
//     up by exchanging halves, so that each ends with one number, and store a row of partial sums.
//   * dx: g goes to LDS in place of x; dx is the convolution of g with the filter in reverse. The last groups of a block, as
//     many as the taps reach, are there for their g alone: the next block makes their dx and counts their dweight.
//
// Around a row stand zeros where no weight (for dweight, no gradient) is an infinity or NaN; taps beyond its ends are masked
// elsewhere. Where an id returns after others, a block works by the formula.
//
// Floor: 3 * width multiply-adds an element, or the bytes of x, dout and dx where the width is small.
#include <hip/hip_runtime.h>

#include "../common/staged.h"
#include "derivative.h"
#include "kernels.h"
#include "launch/check.h"
#include "sums.h"

namespace hipconv {

constexpr int kSumLaneBits = 5;
constexpr int kSumLanes = 1 << kSumLaneBits;  // that add their sums up; a pair of channels has at least as many

// Tap `nearest` + i of the reversed filter brings token t what token t + nearest + i gets. Calls come in descending order of t.
struct ReachesOn {
    static constexpr bool kAll = false, kDescends = true;
    GroupStarts starts;
    int nearest, first, next;  // `first` is the row's first token

    HIPCONV_INLINE ReachesOn(const GroupStarts& around, int from, int begin)
        : starts(around), nearest(from), first(begin), next(around.next) {}
    HIPCONV_INLINE void begin(int) { next = starts.next; }
    HIPCONV_INLINE bool sees(int i, int t) {
        const int seen_by = t + nearest + i;
        const bool sees = seen_by < next && seen_by >= first;
        if (starts.bits >> t & 1) next = t;
        return sees;
    }
};

// Term i is that of token i, to which tap t (of 16) is a tap of `oldest` - t steps; tokens that do not count have no terms.
struct CountsTerms {
    static constexpr bool kAll = false, kDescends = false;
    GroupStarts starts;
    uint32_t dead;
    int oldest, start, reach = 0;

    HIPCONV_INLINE CountsTerms(const GroupStarts& around, uint32_t not_there, int reach_of_first)
        : starts(around), dead(not_there), oldest(reach_of_first), start(around.last) {}
    HIPCONV_INLINE void begin(int i) {
        if (starts.bits >> i & 1) start = i;
        reach = dead >> i & 1 ? -1 : i - start;
    }
    HIPCONV_INLINE bool sees(int, int t) { return reach >= oldest - t; }
};

// Tells how far tokens of a group are seen on, at least and at most.
struct GroupReachOn {
    int least = kFarAway, longest = 0;

    HIPCONV_INLINE explicit GroupReachOn(const GroupStarts& starts) {
        int next = starts.next;
#pragma unroll
        for (int t = kGroupTokens - 1; t >= 0; --t) {
            least = next - 1 - t < least ? next - 1 - t : least;
            longest = next - 1 - t > longest ? next - 1 - t : longest;
            if (starts.bits >> t & 1) next = t;
        }
    }
};

// Lanes exchange halves of their numbers, and add up the ones that they keep.
template <int kHalf>
__device__ __forceinline__ void add_halves(float (&numbers)[kSumLanes], int lane) {
    const bool upper = lane & kHalf;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
        const float first = numbers[i], second = numbers[kHalf + i];
        numbers[i] = (upper ? second : first) + __shfl_xor(upper ? first : second, kHalf);
    }
    if constexpr (kHalf > 1) add_halves<kHalf / 2>(numbers, lane);
}

// 32 lanes have 32 numbers each; lane l returns the sum of all their numbers l.
__device__ __forceinline__ float sum_over_lanes(const Pair (&pairs)[kGroupTokens]) {
    float numbers[kSumLanes];
#pragma unroll
    for (int t = 0; t < kGroupTokens; ++t) {
        numbers[2 * t] = low(pairs[t]);
        numbers[2 * t + 1] = high(pairs[t]);
    }
    add_halves<kSumLanes / 2>(numbers, static_cast<int>(threadIdx.x) % kSumLanes);
    return numbers[0];
}

// The gradients of final states are added to those of the inputs that they hold.
template <typename T>
HIPCONV_INLINE void add_final_gradients(const CausalConv1dBwdParams& p, const StagedPlace& place, float* lines) {
    const int past = p.in.width - 1, d = place.channel();
    int t = place.first_token + place.group;
    for (; t < place.first_token + place.made && t < p.in.seqlen && d < p.in.dim; t += place.groups) {
        const int column = t - p.in.seqlen + past;
        if (column < 0 || t < -past || !final_state_counts(p.in, place.b, t)) continue;
        float* const to = place.line(lines) + float_of_token(t - place.first_token);
        to[0] += to_float(at<const T>(p.dfinal_states, place.b, d, column));
        if (d + 1 < p.in.dim) to[1] += to_float(at<const T>(p.dfinal_states, place.b, d + 1, column));
    }
}

struct BwdStagedMoves {
    TileMoves x, dout, dx;
};

// One parameter holds all, so that AMD's compiler can read it again wherever it needs it (first_parameter_again).
struct BwdStagedCall {
    CausalConv1dBwdParams params;
    StagedPlan plan;
    BwdStagedMoves moves;
};

// A block's rows of partial sums, one for each 32 lanes of a pair.
HIPCONV_INLINE int64_t first_row_of(const StagedPlan& plan, const StagedPlace& place) {
    return (int64_t{place.b} * plan.tiles + place.tile) * (place.groups / kSumLanes);
}

// The block's dx and partial sums by the formula. As few scalar registers hold values meanwhile, its place is worked out again.
template <typename T>
__device__ __forceinline__ void bwd_block_by_formula(const BwdStagedCall& call, uint32_t block) {
    const auto again = [&]() -> const CausalConv1dBwdParams& { return first_parameter_again(call).params; };
    const auto plan_again = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    {
        const StagedPlan& plan = plan_again();
        const StagedPlace place(plan, block);
        const int channels = 2 << plan.pair_bits, oldest = again().dinitial_states.data ? 1 - again().in.width : 0;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < channels * place.made; i += kStagedThreads) {
            const int d = place.first_channel + i % channels, t = place.first_token + i / channels;
            if (d < again().in.dim && t < again().in.seqlen && t >= oldest) bwd_one_input<T, float>(again(), place.b, d, t);
        }
    }
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < (2 << plan_again().pair_bits) * (again().in.width + 1);
         i += kStagedThreads) {
        const int channel = i % (2 << plan_again().pair_bits), tap = i / (2 << plan_again().pair_bits);
        float sum = 0.0f;
        {
            const StagedPlan& plan = plan_again();
            const StagedPlace place(plan, block);
            const int end = place.first_token + place.made, d = place.first_channel + channel;
            if (d >= again().in.dim) continue;
#pragma unroll 1
            for (int t = place.first_token < 0 ? 0 : place.first_token; t < end && t < again().in.seqlen; ++t)
                sum += bwd_one_term<T, float>(again(), place.b, d, t, tap);
        }
        const StagedPlan& plan = plan_again();
        const StagedPlace place(plan, block);
        const int64_t columns = (int64_t{again().in.width} + 1) * again().in.dim;
        float* const to = static_cast<float*>(again().partials) + first_row_of(plan, place) * columns +
                          int64_t{tap} * again().in.dim + place.first_channel + channel;
#pragma unroll 1
        for (int segment = 0; segment < place.groups / kSumLanes; ++segment) to[segment * columns] = segment == 0 ? sum : 0.0f;
    }
}

__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, 1) causal_conv1d_bwd_staged_kernel(BwdStagedCall call) {
    HIPCONV_LARGE_SHARED(Words4, lds, kStagedBytes / 16);
    HIPCONV_SHARED(uint32_t, found, kMostStagedGroups);
    HIPCONV_SHARED(int, returns, 1);
    HIPCONV_SHARED(int, not_finite, 1);
    float* const lines = reinterpret_cast<float*>(lds);

    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    if (block >= call.plan.all_blocks) return;
    let_next_kernel_begin();
    const auto again = [&]() -> const CausalConv1dBwdParams& { return first_parameter_again(call).params; };
    const auto plan_again = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    const StagedPlan& plan = plan_again();
    const StagedPlace place(plan, block);
    float* const weights = lines + (place.pitch << plan.pair_bits);
    const int tap_groups = plan.taps / kGroupTokens;

    if (threadIdx.x == 0) *returns = *not_finite = 0;
    __syncthreads();
    wait_for_kernel_before();
    with_dtype(again().in.dtype, [&](auto type) {
        using T = decltype(type);
        bring_tile<T, 0>(
            staged_part<T>(again().in, plan, place, again().dout, first_parameter_again(call).moves.dout, place.first_token),
            place.groups * kGroupTokens, lines, place.pitch);
    });
    bring_weights(again().in, plan, place, weights, not_finite);
    const bool has_ids = again().in.seq_idx.data;
    if (has_ids) find_starts(again().in, plan, place, found, returns);
    __syncthreads();
    if (has_ids && *returns) {
        with_dtype(again().in.dtype, [&](auto type) { bwd_block_by_formula<decltype(type)>(call, block); });
        return;
    }
    Pair g[kGroupTokens];  // dout, then the gradients of the sums
    load_group(place.own(lines), g);
    __syncthreads();
    with_dtype(again().in.dtype, [&](auto type) {
        bring_inputs<decltype(type)>(again().in, plan, place, first_parameter_again(call).moves.x, lines);
    });

    const bool ends_matter = has_ids || *not_finite;
    GroupStarts starts = starts_of_group(again().in, plan, place, found, ends_matter);
    const int width = again().in.width, past = width - 1;
    const int first = place.first_token + place.group * kGroupTokens;
    // Tokens of the group that are not in the row, or are padding.
    uint32_t dead = has_ids ? found[tap_groups + place.group] >> kGroupTokens : 0;
    if (first < 0) dead |= first <= -kGroupTokens ? 0xffffu : (1u << -first) - 1;
    const int left = again().in.seqlen - first;
    if (left < kGroupTokens) dead |= left <= 0 ? 0xffffu : 0xffffu << left;
    const float* const own_weights = weights + place.pair * 2 * plan.taps;
    __syncthreads();

    if (again().in.use_silu) {
        Pair sums[kGroupTokens];
        begin_with_bias(again().in, place, sums);
        convolve_group(place.own(lines), own_weights, plan.taps, width, starts, GroupReach(starts, past), sums);
#pragma unroll
        for (int t = 0; t < kGroupTokens; ++t) g[t] = multiply(g[t], silu_derivative(sums[t]));
    }
#pragma unroll
    for (int t = 0; t < kGroupTokens; ++t)
        if (dead >> t & 1) g[t] = twice(0.0f);

    // dweight and dbias of the groups that count here.
    const bool counts = place.group * kGroupTokens < place.made;
    {
        bool is_odd = false;
#pragma unroll
        for (int t = 0; t < kGroupTokens; ++t) is_odd = is_odd || !is_finite(low(g[t])) || !is_finite(high(g[t]));
        const bool takes_zeros = !has_ids && __ballot(is_odd) == 0;
        const GroupStarts seen =
            takes_zeros == !ends_matter ? starts : starts_of_group(again().in, plan, place, found, !takes_zeros);
        const int64_t columns = (int64_t{width} + 1) * again().in.dim;
        float* const row = static_cast<float*>(again().partials) +
                           (first_row_of(plan, place) + place.group / kSumLanes) * columns + place.channel();
        const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
        const GroupReach reach(seen, past);
        const auto own = [&](int i) { return g[i]; };
        const auto store = [&](int64_t tap, int channel, float sum) {
            if (place.channel() + channel < again().in.dim) row[tap * again().in.dim + channel] = sum;
        };
        for (int j = 0; j < tap_groups; ++j) {
            const int oldest = plan.taps - 1 - j * kGroupTokens, least = oldest < past ? oldest : past;
            Pair terms[kGroupTokens];
#pragma unroll
            for (int t = 0; t < kGroupTokens; ++t) terms[t] = twice(0.0f);
            const float* const from = place.own(lines) + j * kGroupFloats;
            const bool counts_all = !dead && reach.least >= least;
            if (__ballot(counts && !counts_all) == 0) {
                if (counts) correlate(from, own, 0, kGroupTokens, AllSee(), terms);
            } else if (__ballot(counts && reach.longest > oldest - kGroupTokens) != 0) {
                if (counts) correlate(from, own, 0, kGroupTokens, CountsTerms(seen, dead, oldest), terms);
            }
            const float sum = sum_over_lanes(terms);
            const int tap = j * kGroupTokens + lane / 2 - (plan.taps - width);
            if (tap >= 0) store(tap, lane % 2, sum);
        }
        Pair all = twice(0.0f);
#pragma unroll
        for (int t = 0; t < kGroupTokens; ++t) all = add(all, g[t]);
        float sums[] = {counts ? low(all) : 0.0f, counts ? high(all) : 0.0f};
#pragma unroll
        for (int bit = 1; bit < kSumLanes; bit *= 2) {
            sums[0] += __shfl_xor(sums[0], bit);
            sums[1] += __shfl_xor(sums[1], bit);
        }
        if (lane < 2) store(width, lane, lane ? sums[1] : sums[0]);
    }
    __syncthreads();  // now gradients may take the place of inputs
    store_group(place.own(lines), g);
    if (place.group < tap_groups) {  // nothing is behind the tile's last group, if it counts
#pragma unroll
        for (int t = 0; t < kGroupTokens; ++t) g[t] = twice(0.0f);
        store_group(place.own(lines) + place.groups * kGroupFloats, g);
    }
    __syncthreads();

    Pair sums[kGroupTokens];
#pragma unroll
    for (int t = 0; t < kGroupTokens; ++t) sums[t] = twice(0.0f);
    {
        const GroupReachOn reach(starts);
        for (int j = 0; j < tap_groups; ++j) {
            const int nearest = j * kGroupTokens, end = width - nearest;
            const float* const from = place.own(lines) + j * kGroupFloats;
            const float* const reversed = own_weights + 2 * (plan.taps - 1 - nearest);
            const auto weight = [&](int i) { return *reinterpret_cast<const Pair*>(reversed - 2 * i); };
            const int farthest = (end < kGroupTokens ? width : nearest + kGroupTokens) - 1;
            if (__ballot(counts && reach.longest >= nearest) == 0) continue;
            if (__ballot(counts && (reach.least < farthest || (ends_matter && nearest < -first))) != 0)
                correlate(from, weight, 0, end, ReachesOn(starts, nearest, -first), sums);
            else if (end < kGroupTokens)
                correlate(from, weight, 0, end, AllSee(), sums);
            else
                correlate(from, weight, 0, kGroupTokens, AllSee(), sums);
        }
    }
    __syncthreads();
    store_group(place.own(lines), sums);
    __syncthreads();
    const StagedPlan& last_plan = plan_again();
    const StagedPlace last_place(last_plan, block);  // worked out again, as few scalar registers hold values for so long
    const int last_past = again().in.width - 1;
    if (again().dfinal_states.data && last_place.first_token + last_place.made > again().in.seqlen - last_past) {
        with_dtype(again().in.dtype, [&](auto type) { add_final_gradients<decltype(type)>(again(), last_place, lines); });
        __syncthreads();
    }
    with_dtype(again().in.dtype, [&](auto type) {
        using T = decltype(type);
        take_tile_away<T>(staged_part<T>(again().in, last_plan, last_place, again().dx, first_parameter_again(call).moves.dx,
                                         last_place.first_token),
                          last_place.made, lines, last_place.pitch);
        if (last_place.first_token >= 0 || !again().dinitial_states.data) return;
        const int d = last_place.channel();
        for (int t = last_place.first_token + last_place.group; t < 0 && t < last_place.first_token + last_place.made;
             t += last_place.groups) {
            if (t < -last_past || d >= again().in.dim) continue;
            const Pair both =
                *reinterpret_cast<const Pair*>(last_place.line(lines) + float_of_token(t - last_place.first_token));
            at<T>(again().dinitial_states, last_place.b, d, t + last_past) = from_float<T>(low(both));
            if (d + 1 < again().in.dim)
                at<T>(again().dinitial_states, last_place.b, d + 1, t + last_past) = from_float<T>(high(both));
        }
    });
}

namespace {

BwdStagedMoves moves_of(const CausalConv1dBwdParams& p) {
    const int size = element_bytes(p.in.dtype);
    return {tile_moves(p.in.x, size), tile_moves(p.dout, size), tile_moves(p.dx, size)};
}

StagedPlan plan_of(const CausalConv1dBwdParams& p, const BwdStagedMoves& moves) {
    const int past = p.in.width - 1;
    const int before = p.dinitial_states.data ? (past + kGroupTokens - 1) / kGroupTokens * kGroupTokens : 0;
    const bool along_channels = moves_channels(moves.x) || moves_channels(moves.dout) || moves_channels(moves.dx);
    return staged_plan(p.in, along_channels, moves_channels(moves.x), kSumLaneBits, /*is_bwd=*/true, before);
}

BwdPartials partials_of(const CausalConv1dBwdParams& p, const StagedPlan& plan) {
    return equal_partials(int64_t{p.in.batch} * plan.tiles * ((1 << plan.group_bits) / kSumLanes));
}

}  // namespace

const char* causal_conv1d_bwd_staged_refusal(const CausalConv1dBwdParams& p) {
    const bool fits =
        p.in.width <= kMostStagedTaps && p.in.seqlen > 0 && p.in.seqlen < 1 << 30 && plan_of(p, moves_of(p)).all_blocks > 0;
    return fits ? nullptr : "widths 1 to 1024, at least one and fewer than 2^30 tokens";
}

int64_t causal_conv1d_bwd_staged_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, partials_of(p, plan_of(p, moves_of(p))), /*looks_at_taps=*/false);
}

void causal_conv1d_bwd_staged(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const int size = element_bytes(params.in.dtype);
    const int shared = staged_shared_bytes(reinterpret_cast<const void*>(causal_conv1d_bwd_staged_kernel));
    const BwdStagedMoves moves = moves_of(params);
    const StagedPlan plan = plan_of(params, moves);
    const BwdPartials partials = partials_of(params, plan);
    const CausalConv1dBwdParams p = bwd_sums_begin(params, partials, /*looks_at_taps=*/false, workspace, s);
    const BwdStagedMoves taken{moves_of_plan(plan, moves.x, size), moves_of_plan(plan, moves.dout, size),
                               moves_of_plan(plan, moves.dx, size)};
    HIPCONV_LAUNCH(true, causal_conv1d_bwd_staged_kernel, staged_grid(plan), dim3(kStagedThreads, 1, 1), shared, s,
                   BwdStagedCall{p, plan, taken});
    check_launch("causal_conv1d_bwd");
    bwd_sums_add_up(p, partials, s);
}

}  // namespace hipconv
