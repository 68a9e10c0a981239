// Vectors in registers: one access moves a vector of 2 to 16 bytes, and f32 values come in pairs, which AMD's packed
// instructions take two at a time. Only this file and the vendors' headers touch vectors.
#pragma once

#include "device/arch.h"
#include "device/dtype.h"

namespace hipconv {

// ---- words: raw memory ------------------------------------------------------------------------------------------------

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

// Holds kCount elements of T as one register vector; a single element is as good as a vector of one.
template <typename T, int kCount>
using Words = typename WordsOf<kCount* static_cast<int>(sizeof(T))>::type;

// This returns word i of a vector; i is a compile-time constant after unrolling.
HIPCONV_INLINE uint32_t word(uint32_t v, int) { return v; }
HIPCONV_INLINE uint32_t word(uint16_t v, int) { return v; }
// Sets word i of a vector of any size.
HIPCONV_INLINE void set_word(uint32_t& v, int, uint32_t w) { v = w; }
HIPCONV_INLINE void set_word(uint16_t& v, int, uint32_t w) { v = static_cast<uint16_t>(w); }

// Loads a vector from the address of an element, where kUnalignedVectors.
template <typename Vector>
HIPCONV_INLINE Vector load_unaligned(const char* address) {
    struct __attribute__((packed)) Unaligned {
        Vector vector;
    };
    return reinterpret_cast<const Unaligned*>(address)->vector;
}

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

// This returns pair i of a vector of T. The high half means nothing in a vector of one element.
template <typename T, typename W>
HIPCONV_INLINE Pair pair_of(W words, int i) {
    if constexpr (sizeof(T) == 4)
        return make_pair(bit_cast<float>(word(words, 2 * i)), bit_cast<float>(word(words, 2 * i + 1)));
    else
        return unpack<T>(word(words, i));
}

template <typename T>
HIPCONV_INLINE uint32_t pack(Pair v);
template <>
HIPCONV_INLINE uint32_t pack<bf16>(Pair v) {
    return floats_to_bf16x2(low(v), high(v));
}
template <>
HIPCONV_INLINE uint32_t pack<f16>(Pair v) {
    return floats_to_f16x2(low(v), high(v));
}

// Writes pair i of a vector of T, rounded; a vector of one element takes only the low half.
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

// Loads elements first to first + kCount - 1 of a dense row of `size` elements, one access each; zeros stand for those
// outside the row.
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
