// Vectors of floats in the host's widest registers, with loads and stores that convert, and SiLU. They are GNU vector
// extensions, so that g++ and clang compile one text for every instruction set; intrinsics stand where the extensions cannot
// express an instruction of the hardware.
#pragma once

#include <cstring>
#include <type_traits>

#include "device/arch.h"
#include "device/dtype.h"

#if HIPCONV_VECTOR_BYTES >= 32
#include <immintrin.h>
#endif

#define HIPCONV_SIMD inline __attribute__((always_inline))

namespace hipconv {
namespace simd {

constexpr int kLanes = HIPCONV_VECTOR_BYTES / 4;

typedef float Floats __attribute__((vector_size(HIPCONV_VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(HIPCONV_VECTOR_BYTES)));
typedef int32_t Integers __attribute__((vector_size(HIPCONV_VECTOR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(HIPCONV_VECTOR_BYTES / 2)));

#if HIPCONV_VECTOR_BYTES == 64
constexpr __mmask16 kAll = 0xffff;  // g++ 12 warns of an uninitialised operand in the intrinsics without a mask
#endif

HIPCONV_SIMD Floats broadcast(float v) { return Floats{} + v; }

HIPCONV_SIMD Words lane_numbers() {
    Words numbers;
    for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = lane;
    return numbers;
}

// ---- loads, from any address -------------------------------------------------------------------------------------------

template <typename To, typename From>
HIPCONV_SIMD To read(const From* from) {
    To to;
    memcpy(&to, from, sizeof(to));
    return to;
}

template <typename To, typename From>
HIPCONV_SIMD void write(To* to, From from) {
    memcpy(to, &from, sizeof(from));
}

HIPCONV_SIMD Floats load(const float* from) { return read<Floats>(from); }

HIPCONV_SIMD Floats load(const bf16* from) {
#if HIPCONV_VECTOR_BYTES == 64  // g++ compiles the conversion below to two or three times the instructions
    return bit_cast<Floats>(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, read<__m256i>(from)), 16));
#elif HIPCONV_VECTOR_BYTES == 32
    return bit_cast<Floats>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(read<__m128i>(from)), 16));
#else
    return bit_cast<Floats>(__builtin_convertvector(read<Halves>(from), Words) << 16);
#endif
}

HIPCONV_SIMD Floats load(const f16* from) {
#if HIPCONV_VECTOR_BYTES == 64
    return bit_cast<Floats>(_mm512_maskz_cvtph_ps(kAll, read<__m256i>(from)));
#elif HIPCONV_VECTOR_BYTES == 32 && defined(HIPCONV_HAS_F16C)
    return bit_cast<Floats>(_mm256_cvtph_ps(read<__m128i>(from)));
#else
    Floats v;
    for (int lane = 0; lane < kLanes; ++lane) v[lane] = to_float(from[lane]);
    return v;
#endif
}

// Loads the first `count` elements, and zeros behind them.
template <typename T>
HIPCONV_SIMD Floats load_some(const T* from, int64_t count) {
    if (count >= kLanes) return load(from);
    alignas(64) T lanes[kLanes] = {};
#if HIPCONV_VECTOR_BYTES == 64
    const auto some = static_cast<__mmask16>((1 << count) - 1);
    if constexpr (sizeof(T) == 4)
        return bit_cast<Floats>(_mm512_maskz_loadu_ps(some, from));
    else
        write(lanes, _mm256_maskz_loadu_epi16(some, from));
    return load(lanes);
#endif
    memcpy(lanes, from, count * sizeof(T));
    return load(lanes);
}

// ---- stores, rounding to nearest even as dtype.h does ------------------------------------------------------------------

HIPCONV_SIMD void store(float* to, Floats v) { memcpy(to, &v, sizeof(v)); }

HIPCONV_SIMD void store(bf16* to, Floats v) {  // AVX-512's own conversion would flush denormals
    const Words bits = bit_cast<Words>(v);
    const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
#if HIPCONV_VECTOR_BYTES == 64
    const Words odd_halves = lane_numbers() * 0x00040004u + 0x00030001u;
    const __m512i upper = _mm512_maskz_permutexvar_epi16(~0u, bit_cast<__m512i>(odd_halves), bit_cast<__m512i>(rounded));
    memcpy(to, &upper, sizeof(Halves));
#elif HIPCONV_VECTOR_BYTES == 32
    const __m256i upper = _mm256_srli_epi32(bit_cast<__m256i>(rounded), 16), packed = _mm256_packus_epi32(upper, upper);
    const __m128i halves = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
    memcpy(to, &halves, sizeof(halves));
#else
    const Halves upper = __builtin_convertvector(rounded >> 16, Halves);
    memcpy(to, &upper, sizeof(upper));
#endif
}

HIPCONV_SIMD void store(f16* to, Floats v) {
#if HIPCONV_VECTOR_BYTES == 64
    const __m256i rounded = _mm512_maskz_cvtps_ph(kAll, bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    memcpy(to, &rounded, sizeof(rounded));
#elif HIPCONV_VECTOR_BYTES == 32 && defined(HIPCONV_HAS_F16C)
    const __m128i rounded = _mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT);
    memcpy(to, &rounded, sizeof(rounded));
#else
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = from_float<f16>(v[lane]);
#endif
}

template <typename T>
HIPCONV_SIMD void store_some(T* to, Floats v, int64_t count) {
    if (count >= kLanes) return store(to, v);
    alignas(64) T lanes[kLanes];
    store(lanes, v);
#if HIPCONV_VECTOR_BYTES == 64
    const auto some = static_cast<__mmask16>((1 << count) - 1);
    if constexpr (sizeof(T) == 4)
        _mm512_mask_storeu_ps(to, some, bit_cast<__m512>(v));
    else
        _mm256_mask_storeu_epi16(to, some, read<__m256i>(lanes));
    return;
#endif
    memcpy(to, lanes, count * sizeof(T));
}

// ---- three rows whose elements take turns in memory ----------------------------------------------------------------------
//
// Three vectors hold eight elements of each row: element k of row i lies at 3 * k + i, that is in vector (3 * k + i) / 8, in
// lane (3 * k + i) % 8. So no lane holds two elements of one row.

template <typename E>  // kLanes elements, as bits
using Row = std::conditional_t<sizeof(E) == 4, Floats, Halves>;

#if HIPCONV_VECTOR_BYTES >= 32
// Lane k of the result is lane (3 * k + kShift) % 8.
template <int kShift>
HIPCONV_SIMD __m256 every_third(__m256 v) {
    constexpr int s = kShift;
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(s & 7, (s + 3) & 7, (s + 6) & 7, (s + 9) & 7, (s + 12) & 7,
                                                         (s + 15) & 7, (s + 18) & 7, (s + 21) & 7));
}

template <int kShift>
HIPCONV_SIMD __m128i every_third(__m128i v) {
    const auto bytes = [](int lane) { return static_cast<short>((lane & 7) * 0x0202 + 0x0100); };
    constexpr int s = kShift;
    return _mm_shuffle_epi8(v, _mm_setr_epi16(bytes(s), bytes(s + 3), bytes(s + 6), bytes(s + 9), bytes(s + 12), bytes(s + 15),
                                              bytes(s + 18), bytes(s + 21)));
}

// The result takes lanes 1, 4 and 7 from b, lanes 2 and 5 from c, and the others from a.
HIPCONV_SIMD __m256 mixed(__m256 a, __m256 b, __m256 c) { return _mm256_blend_ps(_mm256_blend_ps(a, b, 0x92), c, 0x24); }
HIPCONV_SIMD __m128i mixed(__m128i a, __m128i b, __m128i c) { return _mm_blend_epi16(_mm_blend_epi16(a, b, 0x92), c, 0x24); }

HIPCONV_SIMD __m256 eight(const float* from) { return read<__m256>(from); }
HIPCONV_SIMD __m128i eight(const uint16_t* from) { return read<__m128i>(from); }
#endif

template <typename E>
HIPCONV_SIMD void unzip3(const E* from, Row<E>& row0, Row<E>& row1, Row<E>& row2) {
#if HIPCONV_VECTOR_BYTES >= 32
    for (int k = 0; k < kLanes; k += 8) {
        const auto a = eight(from + 3 * k), b = eight(from + 3 * k + 8), c = eight(from + 3 * k + 16);
        write(reinterpret_cast<E*>(&row0) + k, every_third<0>(mixed(a, b, c)));
        write(reinterpret_cast<E*>(&row1) + k, every_third<1>(mixed(c, a, b)));
        write(reinterpret_cast<E*>(&row2) + k, every_third<2>(mixed(b, c, a)));
    }
#else
    for (int k = 0; k < kLanes; ++k) {
        row0[k] = from[3 * k];
        row1[k] = from[3 * k + 1];
        row2[k] = from[3 * k + 2];
    }
#endif
}

template <typename E>
HIPCONV_SIMD void zip3(E* to, const Row<E>& row0, const Row<E>& row1, const Row<E>& row2) {
#if HIPCONV_VECTOR_BYTES >= 32
    for (int k = 0; k < kLanes; k += 8) {  // 3 is its own inverse modulo 8: lane l must have element 3 * (l - i) of row i
        const auto a = every_third<0>(eight(reinterpret_cast<const E*>(&row0) + k)),
                   b = every_third<5>(eight(reinterpret_cast<const E*>(&row1) + k)),
                   c = every_third<2>(eight(reinterpret_cast<const E*>(&row2) + k));
        write(to + 3 * k, mixed(a, b, c));
        write(to + 3 * k + 8, mixed(c, a, b));
        write(to + 3 * k + 16, mixed(b, c, a));
    }
#else
    for (int k = 0; k < kLanes; ++k) {
        to[3 * k] = row0[k];
        to[3 * k + 1] = row1[k];
        to[3 * k + 2] = row2[k];
    }
#endif
}

// ---- SiLU --------------------------------------------------------------------------------------------------------------

// NaN counts as more than the limit.
HIPCONV_SIMD Floats at_most(Floats v, float limit) {
#if HIPCONV_VECTOR_BYTES == 64
    return bit_cast<Floats>(_mm512_maskz_min_ps(kAll, bit_cast<__m512>(v), _mm512_set1_ps(limit)));
#elif HIPCONV_VECTOR_BYTES == 32
    return bit_cast<Floats>(_mm256_min_ps(bit_cast<__m256>(v), _mm256_set1_ps(limit)));
#else
    return v < limit ? v : broadcast(limit);
#endif
}

// 1 / v for 1 <= v < 2^127.
HIPCONV_SIMD Floats reciprocal(Floats v) {
#if HIPCONV_VECTOR_BYTES == 64
    const Floats r = bit_cast<Floats>(_mm512_maskz_rcp14_ps(kAll, bit_cast<__m512>(v)));
    return r + r * (1.0f - v * r);  // one Newton step doubles the 14 bits; a division takes as long as the rest of SiLU
#else
    return 1.0f / v;
#endif
}

// 1 / (1 + exp(-v)) for v > -kSigmoidEnd; below that, the result means nothing. exp(-v) = 2^(n + f) with n whole and
// |f| <= 1/2: n goes into the exponent, and 2^f is a polynomial.
constexpr float kSigmoidEnd = 87.0f;  // this keeps n within a float's exponent

HIPCONV_SIMD Floats sigmoid_within(Floats v) {
    constexpr float kLog2e = 1.44269504088896341f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: a float near it has no fraction, and its low bits are a whole number
    const Floats u = at_most(v, kSigmoidEnd);
    const Floats shifted = kRound - u * kLog2e;
    const Floats f = (kRound - shifted) - u * kLog2e;
    Floats e = broadcast(1.327647201e-3f);
    e = e * f + 9.675541388e-3f;
    e = e * f + 5.550713274e-2f;
    e = e * f + 2.402211972e-1f;
    e = e * f + 6.931469671e-1f;
    e = e * f + 1.000000072f;
    e = bit_cast<Floats>(bit_cast<Words>(e) + (bit_cast<Words>(shifted) << 23));
    return reciprocal(1.0f + e);
}

// v / (1 + exp(-v)).
HIPCONV_SIMD Floats silu(Floats v) {
    const Floats r = sigmoid_within(v);
    return v * (v > -kSigmoidEnd ? r : Floats{});  // beyond, the product is -0, or NaN of NaN and -inf
}

// SiLU's derivative, sigma * (1 + v * (1 - sigma)) where sigma is the sigmoid. It is NaN for NaN and infinities, as in
// torch.
HIPCONV_SIMD Floats silu_derivative(Floats v) {
    const Floats r = sigmoid_within(v);
    const Floats sigma = v > -kSigmoidEnd ? r : Floats{};
    return sigma * (1.0f + v * (1.0f - sigma));
}

}  // namespace simd
}  // namespace hipconv
