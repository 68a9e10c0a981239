// Vectors in registers: what one access of 2 to 16 bytes moves, and f32 values in pairs, which AMD's packed instructions take two
// at a time. The only file that touches vectors. They are native vector types where the compiler has them: a struct around an
// array of registers ends up in scratch memory on gfx90a and gfx942.
#pragma once

#include "device/arch.h"
#include "device/dtype.h"

namespace hipconv {

// ---- words: raw memory ------------------------------------------------------------------------------------------------

#if defined(HIPCONV_NVIDIA)
using Words4 = uint4;
using Words2 = uint2;
using Pair = float2;
#elif defined(HIPCONV_AMD)
using Words4 = uint32_t __attribute__((ext_vector_type(4)));
using Words2 = uint32_t __attribute__((ext_vector_type(2)));
using Pair = float __attribute__((ext_vector_type(2)));
#else
typedef uint32_t Words4 __attribute__((vector_size(16)));
typedef uint32_t Words2 __attribute__((vector_size(8)));
typedef float Pair __attribute__((vector_size(8)));
#endif

template <int kBytes>
struct WordsOf;
template <>
struct WordsOf<16> {
    using type = Words4;
};
template <>
struct WordsOf<8> {
    using type = Words2;
};
template <>
struct WordsOf<4> {
    using type = uint32_t;
};
template <>
struct WordsOf<2> {
    using type = uint16_t;
};

// kCount elements of T as one register vector; a single element is as good as a vector of one.
template <typename T, int kCount>
using Words = typename WordsOf<kCount * static_cast<int>(sizeof(T))>::type;

// Word i of a vector; i is a compile-time constant after unrolling.
HIPCONV_INLINE uint32_t word(uint32_t v, int) { return v; }
HIPCONV_INLINE uint32_t word(uint16_t v, int) { return v; }
#if defined(HIPCONV_NVIDIA)
HIPCONV_INLINE uint32_t word(Words2 v, int i) { return i == 0 ? v.x : v.y; }
HIPCONV_INLINE uint32_t word(Words4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
HIPCONV_INLINE void set_word(Words2& v, int i, uint32_t w) { (i == 0 ? v.x : v.y) = w; }
HIPCONV_INLINE void set_word(Words4& v, int i, uint32_t w) { (i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w) = w; }
HIPCONV_INLINE Pair make_pair(float low, float high) { return make_float2(low, high); }
HIPCONV_INLINE float low(Pair v) { return v.x; }
HIPCONV_INLINE float high(Pair v) { return v.y; }
HIPCONV_INLINE Pair multiply_add(Pair a, Pair b, Pair c) { return make_float2(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y)); }
HIPCONV_INLINE Pair multiply(Pair a, Pair b) { return make_float2(a.x * b.x, a.y * b.y); }
HIPCONV_INLINE Pair add(Pair a, Pair b) { return make_float2(a.x + b.x, a.y + b.y); }
#else
HIPCONV_INLINE uint32_t word(Words2 v, int i) { return v[i]; }
HIPCONV_INLINE uint32_t word(Words4 v, int i) { return v[i]; }
HIPCONV_INLINE void set_word(Words2& v, int i, uint32_t w) { v[i] = w; }
HIPCONV_INLINE void set_word(Words4& v, int i, uint32_t w) { v[i] = w; }
HIPCONV_INLINE Pair make_pair(float low, float high) { return Pair{low, high}; }
HIPCONV_INLINE float low(Pair v) { return v[0]; }
HIPCONV_INLINE float high(Pair v) { return v[1]; }
HIPCONV_INLINE Pair multiply_add(Pair a, Pair b, Pair c) { return a * b + c; }  // v_pk_fma_f32 on AMD
HIPCONV_INLINE Pair multiply(Pair a, Pair b) { return a * b; }
HIPCONV_INLINE Pair add(Pair a, Pair b) { return a + b; }
#endif

// Word i of a vector of any size, set.
HIPCONV_INLINE void set_word(uint32_t& v, int, uint32_t w) { v = w; }
HIPCONV_INLINE void set_word(uint16_t& v, int, uint32_t w) { v = static_cast<uint16_t>(w); }

HIPCONV_INLINE Pair twice(float v) { return make_pair(v, v); }

// ---- pairs: two neighbouring elements as floats -----------------------------------------------------------------------

// A word holds two elements of 16 bits, or half a pair of f32.
template <typename T>
HIPCONV_INLINE Pair unpack(uint32_t both) {
    return make_pair(to_float(T{static_cast<uint16_t>(both)}), to_float(T{static_cast<uint16_t>(both >> 16)}));
}
template <>
HIPCONV_INLINE Pair unpack<bf16>(uint32_t both) {
    return make_pair(bit_cast<float>(both << 16), bit_cast<float>(both & 0xffff0000u));
}

// Pair i of a vector of T. The high half means nothing in a vector of one element.
template <typename T, typename W>
HIPCONV_INLINE Pair pair_of(W words, int i) {
    if constexpr (sizeof(T) == 4)
        return make_pair(bit_cast<float>(word(words, 2 * i)), bit_cast<float>(word(words, 2 * i + 1)));
    else
        return unpack<T>(word(words, i));
}

template <typename T>
HIPCONV_INLINE uint32_t pack(Pair v) {
    return from_float<T>(low(v)).bits | static_cast<uint32_t>(from_float<T>(high(v)).bits) << 16;
}
#if defined(HIPCONV_AMD)
// The rounded halves are taken out of both registers by one byte permutation.
template <>
HIPCONV_INLINE uint32_t pack<bf16>(Pair v) {
    const uint32_t a = bit_cast<uint32_t>(low(v)), b = bit_cast<uint32_t>(high(v));
    const uint32_t rounded_a = a + 0x7fffu + ((a >> 16) & 1u), rounded_b = b + 0x7fffu + ((b >> 16) & 1u);
#if __has_builtin(__builtin_amdgcn_perm)
    return __builtin_amdgcn_perm(rounded_b, rounded_a, 0x07060302u);
#else
    return (rounded_b & 0xffff0000u) | rounded_a >> 16;
#endif
}
#elif defined(HIPCONV_NVIDIA)
template <>
HIPCONV_INLINE uint32_t pack<bf16>(Pair v) {
    return compat::floats_to_bf16x2(low(v), high(v));
}
template <>
HIPCONV_INLINE uint32_t pack<f16>(Pair v) {
    return compat::floats_to_f16x2(low(v), high(v));
}
#endif

// Writes pair i of a vector of T, rounded; of a vector of one element, its low half.
template <typename T, typename W>
HIPCONV_INLINE void set_pair(W& words, int i, Pair v) {
    if constexpr (sizeof(W) == sizeof(T)) {
        words = bit_cast<W>(from_float<T>(low(v)));
    } else if constexpr (sizeof(T) == 4) {
        set_word(words, 2 * i, bit_cast<uint32_t>(low(v)));
        set_word(words, 2 * i + 1, bit_cast<uint32_t>(high(v)));
    } else {
        set_word(words, i, pack<T>(v));
    }
}

// ---- vectors of which memory holds only a part ------------------------------------------------------------------------

// Elements first to first + kCount - 1 of a row of `size` elements one after another, one access each; zeros outside the row.
template <typename T, int kCount>
HIPCONV_INLINE Words<T, kCount> load_part(const T* row, int32_t first, int32_t size) {
    Words<T, kCount> words{};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        if (first + i < 0 || first + i >= size) continue;
        if constexpr (sizeof(T) == 4) {
            set_word(words, i, bit_cast<uint32_t>(row[first + i]));
        } else {
            const uint32_t bits = bit_cast<uint16_t>(row[first + i]);
            set_word(words, i / 2, word(words, i / 2) | bits << (i % 2 * 16));
        }
    }
    return words;
}

template <typename T, int kCount>
HIPCONV_INLINE void store_part(T* row, int32_t first, int32_t size, Words<T, kCount> words) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        if (first + i < 0 || first + i >= size) continue;
        if constexpr (sizeof(T) == 4)
            row[first + i] = bit_cast<T>(word(words, i));
        else
            row[first + i] = bit_cast<T>(static_cast<uint16_t>(word(words, i / 2) >> (i % 2 * 16)));
    }
}

}  // namespace hipconv
