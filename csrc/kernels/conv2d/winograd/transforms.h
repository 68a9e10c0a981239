// The matrices of Winograd's minimal filtering, one dimension at a time, in f32 on two channels at once.
//
//   F(m, 3): m outputs of three taps from alpha = m + 2 inputs by alpha products: y = At [(G g) . (Bt d)].
//
// F(2, 3) has the points 0, 1, -1, F(4, 3) the points 0, +-sqrt(1/2), +-sqrt(2), and both infinity. The errors of these points
// for F(4, 3) are half of those of the customary 0, +-1, +-2. The largest sums of absolute values of two applications are 4 and
// 26.3 for Bt, 2.25 and 2.2 for G, no coefficient of which is beyond 1.
#pragma once

#include "device/vec.h"

namespace hipconv {

constexpr float kSqrt2 = 1.41421356237309505f;

HIPCONV_INLINE Pair times(float factor, Pair v) { return multiply(twice(factor), v); }
HIPCONV_INLINE Pair plus_times(Pair sum, float factor, Pair v) { return multiply_add(twice(factor), v, sum); }
HIPCONV_INLINE Pair minus(Pair a, Pair b) { return plus_times(a, -1.0f, b); }

template <int kOutputs>
struct Winograd;

template <>
struct Winograd<2> {
    static constexpr int kInputs = 4;

    static HIPCONV_INLINE void of_inputs(const Pair (&d)[4], Pair (&to)[4]) {
        to[0] = minus(d[0], d[2]);
        to[1] = add(d[1], d[2]);
        to[2] = minus(d[2], d[1]);
        to[3] = minus(d[1], d[3]);
    }
    static HIPCONV_INLINE void of_taps(const Pair (&g)[3], Pair (&to)[4]) {
        const Pair even = times(0.5f, add(g[0], g[2]));
        to[0] = g[0];
        to[1] = plus_times(even, 0.5f, g[1]);
        to[2] = plus_times(even, -0.5f, g[1]);
        to[3] = g[2];
    }
    static HIPCONV_INLINE void of_products(const Pair (&m)[4], Pair (&to)[2]) {
        to[0] = add(m[0], add(m[1], m[2]));
        to[1] = minus(minus(m[1], m[2]), m[3]);
    }
};

template <>
struct Winograd<4> {
    static constexpr int kInputs = 6;

    static HIPCONV_INLINE void of_inputs(const Pair (&d)[6], Pair (&to)[6]) {
        to[0] = plus_times(add(d[0], d[4]), -2.5f, d[2]);
        to[5] = plus_times(add(d[1], d[5]), -2.5f, d[3]);
        const Pair near_even = plus_times(d[4], -2.0f, d[2]),
                   near_odd = times(kSqrt2, plus_times(times(0.5f, d[3]), -1.0f, d[1]));
        to[1] = add(near_even, near_odd);
        to[2] = minus(near_even, near_odd);
        const Pair far_even = plus_times(d[4], -0.5f, d[2]), far_odd = times(kSqrt2, plus_times(d[3], -0.5f, d[1]));
        to[3] = add(far_even, far_odd);
        to[4] = minus(far_even, far_odd);
    }
    static HIPCONV_INLINE void of_taps(const Pair (&g)[3], Pair (&to)[6]) {
        const Pair near_even = plus_times(times(-2.0f / 3, g[0]), -1.0f / 3, g[2]);
        const Pair far_even = plus_times(times(1.0f / 6, g[0]), 1.0f / 3, g[2]);
        to[0] = g[0];
        to[1] = plus_times(near_even, -kSqrt2 / 3, g[1]);
        to[2] = plus_times(near_even, kSqrt2 / 3, g[1]);
        to[3] = plus_times(far_even, kSqrt2 / 6, g[1]);
        to[4] = plus_times(far_even, -kSqrt2 / 6, g[1]);
        to[5] = g[2];
    }
    static HIPCONV_INLINE void of_products(const Pair (&m)[6], Pair (&to)[4]) {
        const Pair near_sum = add(m[1], m[2]), near_difference = minus(m[1], m[2]);
        const Pair far_sum = add(m[3], m[4]), far_difference = minus(m[3], m[4]);
        to[0] = add(m[0], add(near_sum, far_sum));
        to[1] = plus_times(times(kSqrt2, far_difference), kSqrt2 / 2, near_difference);
        to[2] = plus_times(times(2.0f, far_sum), 0.5f, near_sum);
        to[3] = plus_times(plus_times(m[5], 2 * kSqrt2, far_difference), kSqrt2 / 4, near_difference);
    }
};

// ---- powers of two ------------------------------------------------------------------------------------------------------

// Planes are f16. Each tile of x is multiplied by a power of two that brings its largest absolute value to [16, 32), and each
// filter by one that brings the sum of its absolute values to [32, 64): a product's absolute value is then at most
// 32 * 26.3 * 64 < 65504, and none overflows. The output transform takes both back. The products of f16's whole range of
// exponents remain: smaller channels of the same tile lose bits only 2^19 below the largest.
constexpr int kTileExponent = 4, kFilterExponent = 5;

HIPCONV_INLINE int clamped(int exponent, int to) { return exponent < -to ? -to : exponent > to ? to : exponent; }

// The power of two that brings a number with these bits of an absolute value to 2^exponent, as its exponent. Zeros, infinities
// and NaN stay as they are.
HIPCONV_INLINE int exponent_to(uint32_t bits, int exponent) {
    const int own = static_cast<int>(bits >> 23);
    return own == 0 || own == 255 ? 0 : clamped(exponent + 127 - own, 126);
}

HIPCONV_INLINE float power_of_two(int exponent) { return bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

}  // namespace hipconv
