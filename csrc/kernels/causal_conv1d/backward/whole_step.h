// This file has the arithmetic of a step of the backward kernel of whole rows (whole.cu). Pairs hold tokens half a vector
// apart.
#pragma once

#include "vector_step.h"

namespace hipconv {

// The taps of a lane's tokens where a row is whole vectors of them. (Lanes past the row's end have zeros for x and
// dout.) `feeds` tells whether token e + k sees token e.
template <int kTokens, int kWidth>
struct BwdWholeTaps {
    bool begins_row, ends_row;
    HIPCONV_INLINE bool sees(int e, int i) const { return !begins_row || e + i >= kWidth - 1; }
    HIPCONV_INLINE bool feeds(int e, int k) const { return !ends_row || e + k < kTokens; }
};

struct BwdAllWholeTaps {
    HIPCONV_INLINE bool sees(int, int) const { return true; }
    HIPCONV_INLINE bool feeds(int, int) const { return true; }
};

// Converts elements of vectors to floats, from `to` on.
template <typename T, int kEach, typename Vector, int kCount>
HIPCONV_INLINE void bwd_whole_unpack(Vector words, float (&values)[kCount], int to) {
#pragma unroll
    for (int j = 0; j < kEach / 2; ++j) {
        const Pair both = pair_of<T>(words, j);
        values[to + 2 * j] = low(both);
        values[to + 2 * j + 1] = high(both);
    }
}

HIPCONV_INLINE void bwd_whole_accumulate(Pair a, Pair& sum) {
    if constexpr (!kHasPredicates)
        sum = add(sum, a);
    else
        sum = make_pair(low(sum) + low(a) + high(a), 0.0f);
}

// Turns dout into the gradients of the sums, in place. `window` begins with `oldest`, the input that the first token's first
// tap sees.
template <typename T, int kTokens, int kWidth, int kOldest, int kWindow, int kCount, typename Taps>
HIPCONV_INLINE void bwd_whole_gradients(const Taps& taps, const float (&window)[kWindow], float (&gradients)[kCount],
                                        const float (&weight)[kWidth], float bias) {
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) {
        Pair sum = twice(bias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const int from = kOldest + j + i;
            const Pair inputs = make_pair(window[from], window[from + kTokens / 2]);
            sum = multiply_add_where(taps.sees(j, i), taps.sees(j + kTokens / 2, i), twice(weight[i]), inputs, sum);
        }
        const Pair g = multiply(make_pair(gradients[j], gradients[j + kTokens / 2]), bwd_silu_derivative<T>(sum));
        gradients[j] = low(g);
        gradients[j + kTokens / 2] = high(g);
    }
}

// Fetches the next lane's gradients and puts them after this lane's. `carried` are the first lane's of the step before, and
// become those of this step.
template <int kTokens, int kPast>
HIPCONV_INLINE void bwd_whole_share(float (&gradients)[kTokens + kPast], float (&carried)[kPast], int next_lane) {
#pragma unroll
    for (int k = 0; k < kPast; ++k) {
        gradients[kTokens + k] = __shfl(threadIdx.x == 0 ? carried[k] : gradients[k], next_lane);
        carried[k] = gradients[k];
    }
}

// Taps have no say in dbias. This stands in front of the branch that looks at them: what both sides of a branch add to, AMD's
// compiler copies twice in each step.
template <int kTokens, int kCount>
HIPCONV_INLINE void bwd_whole_add_to_bias(const float (&gradients)[kCount], Pair& dbias) {
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) bwd_whole_accumulate(make_pair(gradients[j], gradients[j + kTokens / 2]), dbias);
}

template <int kTokens, int kOldest, int kWindow, int kCount, int kWidth, typename Taps>
HIPCONV_INLINE void bwd_whole_add(const Taps& taps, const float (&window)[kWindow], const float (&gradients)[kCount],
                                  Pair (&dweight)[kWidth]) {
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) {
        const Pair g = make_pair(gradients[j], gradients[j + kTokens / 2]);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const int from = kOldest + j + i;
            const Pair inputs = make_pair(window[from], window[from + kTokens / 2]);
            accumulate_where(taps.sees(j, i), taps.sees(j + kTokens / 2, i), g, inputs, dweight[i]);
        }
    }
}

// Makes dx, two tokens at a time.
template <int kHalf, int kCount, int kWidth, typename Taps>
HIPCONV_INLINE void bwd_whole_inputs(const Taps& taps, const float (&gradients)[kCount], const float (&weight)[kWidth],
                                     Pair (&sums)[kHalf]) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
        sums[j] = multiply(twice(weight[kWidth - 1]), make_pair(gradients[j], gradients[j + kHalf]));
#pragma unroll
        for (int k = 1; k < kWidth; ++k) {
            const Pair tap = twice(weight[kWidth - 1 - k]), more = make_pair(gradients[j + k], gradients[j + kHalf + k]);
            sums[j] = multiply_add_where(taps.feeds(j, k), taps.feeds(j + kHalf, k), tap, more, sums[j]);
        }
    }
}

}  // namespace hipconv
