// These access single elements of vectors in registers, by indices that are compile-time constants after unrolling.
#pragma once

#include "device/vec.h"

namespace hipconv {

// This returns the bits of element i of consecutive vectors of kEach elements.
template <typename T, int kEach, typename Vector>
HIPCONV_INLINE uint32_t element(const Vector* vectors, int i) {
    const int at = i % kEach;
    if (sizeof(T) == 4) return word(vectors[i / kEach], at);
    return word(vectors[i / kEach], at / 2) >> (at % 2 * 16) & 0xffffu;
}

template <typename T>
HIPCONV_INLINE T from_bits(uint32_t bits) {
    return bit_cast<T>(static_cast<typename WordsOf<sizeof(T)>::type>(bits));
}

// Makes a vector of elements.
template <typename T, int kCount>
HIPCONV_INLINE Words<T, kCount> join(const T (&elements)[kCount]) {
    constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
    using Bits = typename WordsOf<sizeof(T)>::type;
    Words<T, kCount> vector{};
#pragma unroll
    for (int w = 0; w < kCount / kInWord; ++w) {
        const uint32_t first = bit_cast<Bits>(elements[w * kInWord]);
        const uint32_t second = bit_cast<Bits>(elements[w * kInWord + kInWord - 1]);
        set_word(vector, w, kInWord == 2 ? first | second << 16 : first);
    }
    return vector;
}

}  // namespace hipconv
