// The fast causal conv1d kernels share this arithmetic of values in registers: SiLU and sums of pairs, some of them under
// conditions; parameters of a few channels, fetched in vectors; the tokens before a vector of tokens.
#pragma once

#include "causal_conv1d/forward.h"
#include "device/activation.h"
#include "device/vec.h"

namespace hipconv {

// SiLU of two values; all but the exponentials and reciprocals is packed where the card can.
HIPCONV_INLINE Pair silu(Pair v) {
    const Pair scaled = multiply(v, twice(-kLog2e));
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    return multiply(v, make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator))));
}

// SiLU where it is `wanted`, a flag that is one for all lanes. It is chosen value by value where that costs nothing, and by a
// branch elsewhere, which keeps fewer values at a time.
HIPCONV_INLINE Pair silu_where(bool wanted, Pair v) {
    if constexpr (kHasPredicates) {
        const Pair activated = silu(v);
        return make_pair(wanted ? low(activated) : low(v), wanted ? high(activated) : high(v));
    }
    if (wanted) v = silu(v);
    return v;
}

// Returns the halves of `both` where there is something new, else those of `old`.
HIPCONV_INLINE Pair choose(bool has_low, bool has_high, Pair both, Pair old) {
    return make_pair(has_low ? low(both) : low(old), has_high ? high(both) : high(old));
}

// Returns a * b + c in those halves.
HIPCONV_INLINE Pair multiply_add_where(bool has_low, bool has_high, Pair a, Pair b, Pair c) {
    if constexpr (!kHasPredicates) return choose(has_low, has_high, multiply_add(a, b, c), c);
    float first = low(c), second = high(c);
    if (has_low) first = low(a) * low(b) + first;
    if (has_high) second = high(a) * high(b) + second;
    return make_pair(first, second);
}

template <typename P>
HIPCONV_INLINE float parameter(const void* base, int64_t index) {
    const float v = to_float(static_cast<const P*>(base)[index]);
    return sizeof(P) == 4 ? canonical_nan(v) : v;
}

// kCount parameters that lie one after another, fetched in the widest vectors that divide them. Their address must be a
// multiple of those vectors' size.
template <typename P, int kCount>
HIPCONV_INLINE void load_packed(const P* from, float (&to)[kCount]) {
    constexpr int kBytes = kCount * static_cast<int>(sizeof(P));
    constexpr int kVector = (kBytes % 16 == 0  ? 16
                             : kBytes % 8 == 0 ? 8
                             : kBytes % 4 == 0 ? 4
                                               : 2) /
                            static_cast<int>(sizeof(P));
    using Vector = Words<P, kVector>;
#pragma unroll
    for (int v = 0; v < kCount / kVector; ++v) {
        const Vector words = reinterpret_cast<const Vector*>(from)[v];
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            const float value = i % 2 ? high(pair_of<P>(words, i / 2)) : low(pair_of<P>(words, i / 2));
            to[v * kVector + i] = sizeof(P) == 4 ? canonical_nan(value) : value;
        }
    }
}

// Tells whether load_packed can fetch weight and bias for any group of channels.
template <typename Params>
bool parameters_are_packed(const Params& p) {
    const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
    return p.weight_width_stride == 1 && p.weight_dim_stride == p.width && aligned(p.weight) &&
           (!p.bias || (p.bias_stride == 1 && aligned(p.bias)));
}

// The tokens before a 16-byte vector of tokens, as many as kWidth needs, in one or two vectors of the next larger size.
template <typename T, int kWidth>
struct TokensBefore {
    static constexpr int kSize = static_cast<int>(sizeof(T));
    static constexpr int kTokens = kWidth - 1 <= 8 / kSize ? 8 / kSize : kWidth - 1 <= 16 / kSize ? 16 / kSize : 32 / kSize;
    static constexpr int kParts = kTokens * kSize > 16 ? 2 : 1;
    static constexpr int kPartTokens = kTokens / kParts;
    using Part = Words<T, kPartTokens>;

    // All of them and the vector's own, oldest first, as floats.
    static HIPCONV_INLINE void unpack(const Part (&before)[kParts], Words<T, 16 / kSize> current,
                                      float (&window)[kTokens + 16 / kSize]) {
#pragma unroll
        for (int k = 0; k < kParts; ++k) {
#pragma unroll
            for (int j = 0; j < kPartTokens / 2; ++j) {
                const Pair both = pair_of<T>(before[k], j);
                window[k * kPartTokens + 2 * j] = low(both);
                window[k * kPartTokens + 2 * j + 1] = high(both);
            }
        }
#pragma unroll
        for (int j = 0; j < 8 / kSize; ++j) {
            const Pair both = pair_of<T>(current, j);
            window[kTokens + 2 * j] = low(both);
            window[kTokens + 2 * j + 1] = high(both);
        }
    }
};

// Makes a vector of tokens from its outputs in pairs, which hold elements half a vector apart: paired so, all taps of a
// convolution along the vector see the same pairs of inputs.
template <typename T, int kCount>
HIPCONV_INLINE Words<T, kCount> vector_of_halves(const Pair (&halves)[kCount / 2]) {
    constexpr int kHalf = kCount / 2;
    const auto element = [&](int e) { return e < kHalf ? low(halves[e]) : high(halves[e - kHalf]); };
    Words<T, kCount> words{};
#pragma unroll
    for (int j = 0; j < kHalf; ++j) set_pair<T>(words, j, make_pair(element(2 * j), element(2 * j + 1)));
    return words;
}

}  // namespace hipconv
