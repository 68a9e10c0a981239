// Filters over a tile in LDS (lds_tile.h): 16 taps of 16 tokens at a time, in registers; and which taps see something.
//
// Rows are cut by starts: a token that sees nothing before itself, by its id or by being its row's first. A token reaches back
// to the last start, and is seen by tokens in front of the next one.
#pragma once

#include "lds_tile.h"
#include "vector_math.h"

namespace hipconv {

constexpr int kFarAway = 1 << 24;  // tokens

HIPCONV_INLINE bool is_finite(float value) { return value - value == 0.0f; }

// The starts around a group of tokens, counted from its first.
struct GroupStarts {
    uint32_t bits;  // bit t: token t is a start
    int last;       // the last start in front of the group
    int next;       // the first start behind the group
};

// All taps see something.
struct AllSee {
    static constexpr bool kAll = true, kDescends = false;
    HIPCONV_INLINE void begin(int) {}
};

// Token t sees the one `oldest` - i before it. Calls come in order of t.
struct ReachesBack {
    static constexpr bool kAll = false, kDescends = false;
    GroupStarts starts;
    int oldest, start;

    HIPCONV_INLINE ReachesBack(const GroupStarts& around, int reach) : starts(around), oldest(reach), start(around.last) {}
    HIPCONV_INLINE void begin(int) { start = starts.last; }
    HIPCONV_INLINE bool sees(int i, int t) {
        if (starts.bits >> t & 1) start = t;
        return t - start >= oldest - i;
    }
};

// sums[t] += factor(i) * token t + i of those at `tokens`, for i from `begin` to `end` (within 16), where masks say so.
template <typename Factor, typename Masks>
HIPCONV_INLINE void correlate(const float* tokens, Factor factor, int begin, int end, Masks masks, Pair (&sums)[kGroupTokens]) {
    Pair window[2 * kGroupTokens];
#pragma unroll
    for (int v = 0; v < kGroupTokens; ++v) {
        const Words4 two = *reinterpret_cast<const Words4*>(tokens + v / 8 * kGroupFloats + v % 8 * 4);
        window[2 * v] = pair_of<float>(two, 0);
        window[2 * v + 1] = pair_of<float>(two, 1);
    }
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
        masks.begin(i);
        if (i < begin || i >= end) continue;
        const Pair own = factor(i);
#pragma unroll
        for (int u = 0; u < kGroupTokens; ++u) {
            const int t = Masks::kDescends ? kGroupTokens - 1 - u : u;
            if constexpr (Masks::kAll) {
                sums[t] = multiply_add(own, window[t + i], sums[t]);
            } else {
                const bool sees = masks.sees(i, t);
                sums[t] = multiply_add_where(sees, sees, own, window[t + i], sums[t]);
            }
        }
        if constexpr (!Masks::kAll) keep_order();  // or the masks of all taps take scalar registers at once
    }
}

// The steps back that a group's tokens see, up to `past`: at least, and at most.
struct GroupReach {
    int least, longest;

    HIPCONV_INLINE GroupReach(const GroupStarts& starts, int past) : least(past), longest(0) {
        // Steps are counted up: of the differences t - start, nvcc 13.0 took the first one's minimum without its sign.
        int steps = -1 - starts.last;
#pragma unroll
        for (int t = 0; t < kGroupTokens; ++t) {
            steps = starts.bits >> t & 1 ? 0 : steps + 1;
            least = steps < least ? steps : least;
            longest = steps > longest ? steps : longest;
        }
        longest = longest < past ? longest : past;
    }
};

// The sums of a convolution for a group: sums[t] += weight[i] * what token t sees through tap i. `tokens` and `weights` are
// the oldest tap's; `taps` is the width rounded up, and the first taps - width of the weights are not there. All lanes of a
// wave call.
__device__ __forceinline__ void convolve_group(const float* tokens, const float* weights, int taps, int width,
                                               const GroupStarts& starts, const GroupReach& reach, Pair (&sums)[kGroupTokens]) {
    const int past = width - 1;
    for (int oldest = taps - 1; oldest > 0; oldest -= kGroupTokens, tokens += kGroupFloats, weights += 2 * kGroupTokens) {
        const auto weight = [&](int i) { return *reinterpret_cast<const Pair*>(weights + 2 * i); };
        const int least = oldest < past ? oldest : past;  // that is a tap
        if (__ballot(reach.longest > oldest - kGroupTokens) == 0) continue;
        if (__ballot(reach.least < least) != 0)
            correlate(tokens, weight, oldest - past, kGroupTokens, ReachesBack(starts, oldest), sums);
        else if (oldest > past)
            correlate(tokens, weight, oldest - past, kGroupTokens, AllSee(), sums);
        else
            correlate(tokens, weight, 0, kGroupTokens, AllSee(), sums);
    }
}

// A group's place in a line, read and written as a whole.
HIPCONV_INLINE void load_group(const float* from, Pair (&group)[kGroupTokens]) {
#pragma unroll
    for (int v = 0; v < kGroupTokens / 2; ++v) {
        const Words4 two = *reinterpret_cast<const Words4*>(from + 4 * v);
        group[2 * v] = pair_of<float>(two, 0);
        group[2 * v + 1] = pair_of<float>(two, 1);
    }
}
HIPCONV_INLINE void store_group(float* to, const Pair (&group)[kGroupTokens]) {
#pragma unroll
    for (int v = 0; v < kGroupTokens / 2; ++v) {
        Words4 two{};
        set_pair<float>(two, 0, group[2 * v]);
        set_pair<float>(two, 1, group[2 * v + 1]);
        *reinterpret_cast<Words4*>(to + 4 * v) = two;
    }
}

}  // namespace hipconv
