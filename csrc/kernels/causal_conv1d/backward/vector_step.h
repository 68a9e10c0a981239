// This file has the arithmetic of a step of the channel-first backward kernel: from a lane's tokens, x and dout, to its part in
// dweight, dbias and dx. Pairs hold tokens half a lane's apart.
#pragma once

#include <type_traits>

#include "causal_conv1d/states_formula.h"
#include "derivative.h"
#include "taps.h"

namespace hipconv {

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

// This stands in front of each token. AMD keeps a condition in scalar registers, of which there are not enough for those of all
// tokens.
template <typename Taps>
HIPCONV_INLINE void look_at_token_by_token(Taps& taps) {
    if constexpr (!kHasPredicates && !std::is_same_v<Taps, AllTaps>) {
        keep_order();
        taps.look_from_here_on();
    }
}

// ---- SiLU -------------------------------------------------------------------------------------------------------------------
//
// With SiLU, 16-bit types keep weights and bias times -log2(e), and gradients times the inverse of that: the exponent that SiLU
// needs is then the sum itself, dx is what it would be without, and dweight and dbias are put right once, at the end. Such sums
// overflow where those of f32 do not yet; f32, for which bytes count more than instructions, keeps everything as it is.
template <typename T>
HIPCONV_INLINE float bwd_scale(const CausalConv1dInputs& in) {
    return sizeof(T) == 2 && in.use_silu ? -kLog2e : 1.0f;
}

// The derivative of SiLU, sigma * (1 + v * (1 - sigma)), over the scale, where `scaled` is v times the scale.
template <typename T>
HIPCONV_INLINE Pair bwd_silu_derivative(Pair scaled) {
    if constexpr (sizeof(T) == 4) return silu_derivative(scaled);
    constexpr float kLn2 = 0.693147180559945309f;
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    const Pair sigma = make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator)));
    const Pair rest = multiply_add(sigma, twice(-kLn2 * kLn2), twice(kLn2 * kLn2));
    return multiply(sigma, multiply_add(scaled, rest, twice(-kLn2)));
}

// ---- the gradients of inputs ------------------------------------------------------------------------------------------------
//
// A lane's gradients g have a part in the dx of its own tokens and of the kWidth - 1 before them. These parts are sums[m], of
// token m - (kWidth - 1). Where pairs are better than single values, each of them is a pair of sums half a lane's tokens apart:
// a token may then have two sums, which are added up at the end.
using BwdVectorSum = std::conditional_t<kHasPredicates, float, Pair>;
template <int kTokens, int kWidth>
constexpr int kBwdVectorSums = (kHasPredicates ? kTokens : kTokens / 2) + kWidth - 1;

HIPCONV_INLINE float bwd_vector_zero(float) { return 0.0f; }
HIPCONV_INLINE Pair bwd_vector_zero(Pair) { return twice(0.0f); }

template <int kHalf, int kSums>
HIPCONV_INLINE void add_to_sums(bool has_low, bool has_high, float weight, Pair g, int m, float (&sums)[kSums]) {
    if (has_low) sums[m] = weight * low(g) + sums[m];
    if (has_high) sums[m + kHalf] = weight * high(g) + sums[m + kHalf];
}
template <int kHalf, int kSums>
HIPCONV_INLINE void add_to_sums(bool has_low, bool has_high, float weight, Pair g, int m, Pair (&sums)[kSums]) {
    sums[m] = multiply_add_where(has_low, has_high, twice(weight), g, sums[m]);
}

// The same for the first addition to each sum, or pair of sums; single sums of a lane's later half are zeros before.
template <int kHalf, int kSums>
HIPCONV_INLINE void begin_sums(float weight, Pair g, int m, float (&sums)[kSums]) {
    sums[m] = weight * low(g) + sums[m];
    sums[m + kHalf] = weight * high(g) + sums[m + kHalf];
}
template <int kHalf, int kSums>
HIPCONV_INLINE void begin_sums(float weight, Pair g, int m, Pair (&sums)[kSums]) {
    sums[m] = multiply(twice(weight), g);
}

template <int kHalf, int kSums>
HIPCONV_INLINE float total(const float (&sums)[kSums], int m) {
    return sums[m];
}
template <int kHalf, int kSums>
HIPCONV_INLINE float total(const Pair (&sums)[kSums], int m) {
    if (m < kHalf) return low(sums[m]);
    float both = high(sums[m - kHalf]);
    if (m < kSums) {
        both += low(sums[m]);
        in_a_register(both);  // else AMD's compiler moves two of these into a pair, to add them up
    }
    return both;
}

// ---- a step -----------------------------------------------------------------------------------------------------------------
//
// A step makes gradients of dout, in place, and adds their parts to the sums. `window` begins with the input that the first
// token's first tap sees, at kOldest.

// A step of tokens that are all in a row, by pairs of them. The inputs before a row are zeros: a sum that a weight which is not
// finite makes NaN is one in a row with no finite dx anyway, as it has kWidth tokens at least. `may_begin` is false where no
// lane of the wave begins a row.
template <typename T, int kTokens, int kWidth, int kOldest, int kWindow, typename Sum, int kSums>
HIPCONV_INLINE void bwd_vector_plain_step(bool may_begin, bool begins_row, bool use_silu, const float (&window)[kWindow],
                                          float (&gradients)[kTokens], const float (&weight)[kWidth], float bias,
                                          Pair (&dweight)[kWidth], Pair& dbias, Sum (&sums)[kSums]) {
    constexpr int kHalf = kTokens / 2, kPairs = kHalf + kWidth - 1;
    float later[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
        later[k] = window[kOldest + k + kHalf];
        // An input of two pairs has a register in each: AMD's compiler would make copies where each side of a branch begins.
        if (!kHasPredicates && k + kHalf < kPairs) in_a_register(later[k]);
    }
    const auto inputs_of = [&](int e, int i) { return make_pair(window[kOldest + e + i], later[e + i]); };
    const auto gradients_of = [&](int e) { return make_pair(gradients[e], gradients[e + kHalf]); };
    if (use_silu) {
#pragma unroll
        for (int e = 0; e < kHalf; ++e) {
            Pair sum = twice(bias);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sum = multiply_add(twice(weight[i]), inputs_of(e, i), sum);
            const Pair g = multiply(gradients_of(e), bwd_silu_derivative<T>(sum));
            gradients[e] = low(g);
            gradients[e + kHalf] = high(g);
        }
    }
    const auto add_to_parameters = [&](auto taps) {
#pragma unroll
        for (int e = 0; e < kHalf; ++e) {
            accumulate_where(true, true, gradients_of(e), twice(1.0f), dbias);
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                accumulate_where(taps.sees(e, i), taps.sees(e + kHalf, i), gradients_of(e), inputs_of(e, i), dweight[i]);
        }
    };
    if (may_begin)
        add_to_parameters(TapsOfWhole<kWidth>{begins_row});
    else
        add_to_parameters(AllTaps{});
#pragma unroll
    for (int e = 0; e < kHalf; ++e) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            if (e == 0 || i == kWidth - 1)
                begin_sums<kHalf>(weight[i], gradients_of(e), e + i, sums);
            else
                add_to_sums<kHalf>(true, true, weight[i], gradients_of(e), e + i, sums);
        }
    }
}

// A step of any tokens: by pairs of them where lanes have no predicates, and first the gradients of all. Where they have, it
// goes token by token, so that a condition serves all three products of a tap, or, with kAllFirst, makes all gradients and then
// the conditions again: no token's gradient waits for another's then.
template <typename T, bool kAllFirst, int kTokens, int kWidth, int kOldest, typename Taps, int kWindow, typename Sum, int kSums>
HIPCONV_INLINE void bwd_vector_step(Taps taps, bool use_silu, const float (&window)[kWindow], float (&gradients)[kTokens],
                                    const float (&weight)[kWidth], float bias, Pair (&dweight)[kWidth], Pair& dbias,
                                    Sum (&sums)[kSums]) {
    constexpr bool kTwo = !kHasPredicates;
    constexpr int kHalf = kTwo ? kTokens / 2 : 0, kCount = kTokens - kHalf;
    const auto has_low = [&](int e, int i) { return taps.sees(e, i); };
    const auto has_high = [&](int e, int i) { return kTwo && taps.sees(e + kHalf, i); };
    const auto inputs_of = [&](int e, int i) { return make_pair(window[kOldest + e + i], window[kOldest + e + i + kHalf]); };
    const auto make_gradient = [&](int e) {
        look_at_token_by_token(taps);
        // A token that is not there has no part in anything: its own input needs no condition.
        Pair sum = multiply_add(twice(weight[kWidth - 1]), inputs_of(e, kWidth - 1), twice(bias));
#pragma unroll
        for (int i = kWidth - 2; i >= 0; --i)
            sum = multiply_add_where(has_low(e, i), has_high(e, i), twice(weight[i]), inputs_of(e, i), sum);
        const Pair derivative = bwd_silu_derivative<T>(sum);
        gradients[e] *= low(derivative);
        if (kTwo) gradients[e + kHalf] *= high(derivative);
    };
    const auto add_parts = [&](int e) {
        const Pair g = make_pair(gradients[e], gradients[e + kHalf]);
        accumulate_where(taps.has(e), kTwo && taps.has(e + kHalf), g, twice(1.0f), dbias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            accumulate_where(has_low(e, i), has_high(e, i), g, inputs_of(e, i), dweight[i]);
            add_to_sums<kTokens / 2>(has_low(e, i), has_high(e, i), weight[i], g, e + i, sums);
        }
    };
    if constexpr (!kTwo && !kAllFirst) {
        if (use_silu) {
#pragma unroll
            for (int e = 0; e < kCount; ++e) {
                make_gradient(e);
                add_parts(e);
            }
            return;
        }
    } else if (use_silu) {  // all lanes branch alike, and without SiLU no sum is worked out
#pragma unroll
        for (int e = 0; e < kCount; ++e) make_gradient(e);
    }
    if constexpr (!kTwo && kAllFirst) taps = taps.again(threadIdx.z);
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
        if constexpr (kTwo) look_at_token_by_token(taps);
        add_parts(e);
    }
}

// Adds the part that a lane's gradients have in the dx of the tokens before its own: spill[m] is of token m - (kWidth - 1).
template <typename T, int kTokens, int kWidth, int kOldest, typename Taps, int kWindow, int kSpill>
HIPCONV_INLINE void bwd_vector_spill(Taps taps, bool use_silu, const float (&window)[kWindow], float (&gradients)[kTokens],
                                     const float (&weight)[kWidth], float bias, float (&spill)[kSpill]) {
    if (use_silu) {
#pragma unroll
        for (int e = 0; e < kWidth - 1; ++e) {
            look_at_token_by_token(taps);
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (taps.sees(e, i)) sum = weight[i] * window[kOldest + e + i] + sum;
            gradients[e] *= low(bwd_silu_derivative<T>(twice(sum)));
        }
    }
#pragma unroll
    for (int e = 0; e < kWidth - 1; ++e) {
        look_at_token_by_token(taps);
#pragma unroll
        for (int i = 0; i < kWidth - 1 - e; ++i)
            if (taps.sees(e, i)) spill[e + i] = weight[i] * gradients[e] + spill[e + i];
    }
}

template <typename T, int kWidth>
HIPCONV_INLINE void bwd_vector_parameters(const CausalConv1dInputs& in, int64_t d, float (&weight)[kWidth], float& bias) {
    const uint32_t bias_bits = load_bias_bits(in, d);
    with_dtype(in.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight[i] = parameter<P>(in.weight, d * in.weight_dim_stride + i * in.weight_width_stride);
    });
    bias = parameter_of(bias_bits, in.bias_dtype);
    const float scale = bwd_scale<T>(in);
    bias *= scale;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) weight[i] *= scale;
}

// Adds up dweight and dbias of all lanes of a channel.
template <int kWidth>
HIPCONV_INLINE void bwd_vector_sum_lanes(const Pair (&dweight)[kWidth], Pair dbias, float (&sums)[kWidth + 1]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = low(dweight[i]) + high(dweight[i]);
    sums[kWidth] = low(dbias) + high(dbias);
    const int lanes = static_cast<int>(blockDim.x);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) sums[i] += __shfl_xor(sums[i], distance, lanes);
    }
}

// Leaves the sums of channel d in a row of the workspace, or, where there is none, as gradients.
template <int kWidth>
HIPCONV_INLINE void bwd_vector_leave_sums(const CausalConv1dBwdParams& p, uint32_t row, int64_t d,
                                          const float (&sums)[kWidth + 1]) {
    if (p.partials) {
        float* const partials = global_pointer<float>(p.partials) + int64_t{row} * (kWidth + 1) * p.in.dim + d;
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) partials[int64_t{i} * p.in.dim] = sums[i];
        return;
    }
    with_dtype(p.in.weight_dtype, [&](auto type) {
        using P = decltype(type);
        P* const to = global_pointer<P>(p.dweight) + d * kWidth;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) to[i] = from_float<P>(sums[i]);
    });
    bwd_store_sum<float>(p, d, kWidth, sums[kWidth]);
}

// Adds up the sums, and leaves them times `scale`.
template <int kWidth>
HIPCONV_INLINE void bwd_vector_store_sums(const Pair (&dweight)[kWidth], Pair dbias, const CausalConv1dBwdParams& p,
                                          uint32_t row, int64_t d, bool has_channel, float scale) {
    float sums[kWidth + 1];
    bwd_vector_sum_lanes(dweight, dbias, sums);
    if (threadIdx.x == 0 && has_channel) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) sums[i] *= scale;
        bwd_vector_leave_sums<kWidth>(p, row, d, sums);
    }
}

// The same of a block whose channels have several rows of lanes each, which are added up through `sums_of_rows` in LDS.
template <int kWidth>
__device__ __forceinline__ void bwd_vector_store_sums_of_parts(const Pair (&dweight)[kWidth], Pair dbias,
                                                               const CausalConv1dBwdParams& p, uint32_t row_of_sums, int64_t d,
                                                               bool has_channel, float scale, uint32_t channels,
                                                               float* sums_of_rows) {
    float sums[kWidth + 1];
    bwd_vector_sum_lanes(dweight, dbias, sums);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) sums_of_rows[i * blockDim.y + threadIdx.y] = sums[i];
    }
    __syncthreads();
    if (threadIdx.x != 0 || threadIdx.y >= channels || !has_channel) return;
#pragma unroll
    for (int i = 0; i <= kWidth; ++i) {
        float sum = 0.0f;
        for (uint32_t row = threadIdx.y; row < blockDim.y; row += channels) sum += sums_of_rows[i * blockDim.y + row];
        sums[i] = sum * scale;
    }
    bwd_vector_leave_sums<kWidth>(p, row_of_sums, d, sums);
}

}  // namespace hipconv
