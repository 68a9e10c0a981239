// This file has the arithmetic of a step of the channel-first backward kernels; pairs hold tokens half a vector apart.
//
// With SiLU, weights and bias are kept times -log2(e), and gradients times the inverse of that: the exponent that SiLU needs is
// then the sum itself, dx needs no correction, and dweight and dbias are corrected once, in the epilogue.
// then the sum itself, dx is what it would be without, and dweight and dbias are put right once, at the end.
#pragma once

#include "parts.h"
#include "taps.h"

namespace hipconv {

// Converts elements of vectors to floats, from `to` on.
template <typename T, int kEach, typename Vector, int kCount>
HIPCONV_INLINE void unpack_elements(Vector words, float (&values)[kCount], int to) {
#pragma unroll
    for (int j = 0; j < kEach / 2; ++j) {
        const Pair both = pair_of<T>(words, j);
        values[to + 2 * j] = low(both);
        values[to + 2 * j + 1] = high(both);
    }
}

// Sets to zero the gradients of tokens that are in no row or are padding.
template <int kTokens, int kCount, typename Taps>
HIPCONV_INLINE void bwd_vector_leave_out(const Taps& taps, float (&gradients)[kCount]) {
#pragma unroll
    for (int e = 0; e < kTokens; ++e) gradients[e] = taps.has(e) ? gradients[e] : 0.0f;
}

// Adds a * b, in those halves where there is something new, to a sum of which only both halves together count: where pairs are
// two registers, one is enough.
HIPCONV_INLINE void accumulate_where(bool has_low, bool has_high, Pair a, Pair b, Pair& sum) {
    if constexpr (!kHasPredicates) {
        sum = choose(has_low, has_high, multiply_add(a, b, sum), sum);
    } else {
        float total = low(sum);
        if (has_low) total = low(a) * low(b) + total;
        if (has_high) total = high(a) * high(b) + total;
        sum = make_pair(total, 0.0f);
    }
}

HIPCONV_INLINE void accumulate(Pair a, Pair& sum) {
    if constexpr (!kHasPredicates)
        sum = add(sum, a);
    else
        sum = make_pair(low(sum) + low(a) + high(a), 0.0f);
}

constexpr float kLn2 = 0.693147180559945309f;

// The derivative of SiLU, sigma * (1 + v * (1 - sigma)), times -ln(2), where `scaled` is -log2(e) * v.
HIPCONV_INLINE Pair scaled_silu_derivative(Pair scaled) {
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    const Pair sigma = make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator)));
    const Pair rest = multiply_add(sigma, twice(-kLn2 * kLn2), twice(kLn2 * kLn2));
    return multiply(sigma, multiply_add(scaled, rest, twice(-kLn2)));
}

// Turns dout into the gradients of the sums, in place. `window` begins with `oldest`, the input that the first token's first
// tap sees.
template <int kTokens, int kWidth, int kOldest, int kWindow, int kCount, typename Taps>
HIPCONV_INLINE void bwd_vector_gradients(const Taps& taps, const float (&window)[kWindow], float (&gradients)[kCount],
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
        const Pair g = multiply(make_pair(gradients[j], gradients[j + kTokens / 2]), scaled_silu_derivative(sum));
        gradients[j] = low(g);
        gradients[j + kTokens / 2] = high(g);
    }
}

// Fetches the next lane's gradients and puts them after this lane's. `carried` are the first lane's of the step before, and
// become those of this step.
template <int kTokens, int kPast>
HIPCONV_INLINE void bwd_vector_share(float (&gradients)[kTokens + kPast], float (&carried)[kPast], int next_lane) {
#pragma unroll
    for (int k = 0; k < kPast; ++k) {
        gradients[kTokens + k] = __shfl(threadIdx.x == 0 ? carried[k] : gradients[k], next_lane);
        carried[k] = gradients[k];
    }
}

template <int kTokens, int kOldest, int kWindow, int kCount, int kWidth, typename Taps>
HIPCONV_INLINE void bwd_vector_add(const Taps& taps, const float (&window)[kWindow], const float (&gradients)[kCount],
                                   Pair (&dweight)[kWidth], Pair& dbias) {
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) {
        const Pair g = make_pair(gradients[j], gradients[j + kTokens / 2]);
        accumulate(g, dbias);
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
HIPCONV_INLINE void bwd_vector_inputs(const Taps& taps, const float (&gradients)[kCount], const float (&weight)[kWidth],
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

HIPCONV_INLINE float bwd_vector_scale(const CausalConv1dInputs& in) { return in.use_silu ? -kLog2e : 1.0f; }

template <int kWidth>
HIPCONV_INLINE void bwd_vector_parameters(const CausalConv1dInputs& in, int64_t d, float (&weight)[kWidth], float& bias) {
    const float scale = bwd_vector_scale(in);
    with_dtype(in.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight[i] = scale * parameter<P>(in.weight, d * in.weight_dim_stride + i * in.weight_width_stride);
    });
    bias = in.bias ? scale * load_parameter(in.bias, d * in.bias_stride, in.bias_dtype) : 0.0f;
}

// Adds up dweight and dbias of all lanes of a channel, and stores them in a row of the workspace.
template <int kWidth>
HIPCONV_INLINE void bwd_vector_store_sums(const Pair (&dweight)[kWidth], Pair dbias, float scale, float* partials, int64_t dim,
                                          bool has_channel) {
    float sums[kWidth + 1];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = low(dweight[i]) + high(dweight[i]);
    sums[kWidth] = low(dbias) + high(dbias);
    const int lanes = static_cast<int>(blockDim.x);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) sums[i] += __shfl_xor(sums[i], distance, lanes);
    }
    if (threadIdx.x == 0 && has_channel) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) partials[i * dim] = scale * sums[i];
    }
}

}  // namespace hipconv
