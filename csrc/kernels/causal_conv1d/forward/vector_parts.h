// Vectors that lie across the boundaries of memory, for the channel-first kernels "vector".
#pragma once

#include "../common/vector_math.h"

namespace hipconv {

template <typename T>
HIPCONV_INLINE T* global_address(const void* address) {
    T* const pointer = global_pointer<T>(address);
    promise_global(pointer);
    return pointer;
}

// Moves words down by so many bytes of less than 16, a multiple of kUnit. The last words are lost.
template <int kUnit, int kCount>
HIPCONV_INLINE void move_down(uint32_t (&words)[kCount], uint32_t bytes) {
#pragma unroll
    for (int k = 0; k + 2 < kCount; ++k) words[k] = bytes & 8 ? words[k + 2] : words[k];
#pragma unroll
    for (int k = 0; k + 1 < kCount; ++k) words[k] = bytes & 4 ? words[k + 1] : words[k];
    if constexpr (kUnit == 2) {
#pragma unroll
        for (int k = 0; k + 1 < kCount; ++k)
            words[k] = static_cast<uint32_t>((static_cast<uint64_t>(words[k + 1]) << 32 | words[k]) >> ((bytes & 2) * 8));
    }
}

// The elements of the first words as floats, as many as the window has.
template <typename T, int kWords, int kAll>
HIPCONV_INLINE void unpack_words(const uint32_t (&words)[kWords], float (&window)[kAll]) {
#pragma unroll
    for (int k = 0; k < kAll * static_cast<int>(sizeof(T)) / 4; ++k) {
        if constexpr (sizeof(T) == 2) {
            const Pair both = unpack<T>(words[k]);
            window[2 * k] = low(both);
            window[2 * k + 1] = high(both);
        } else {
            window[k] = bit_cast<float>(words[k]);
        }
    }
}

// The tokens of a vector and of its halo as floats, from the granules around them and the next one, moved by so many bytes.
template <typename T, int kWidth, int kAll>
HIPCONV_INLINE void unpack_moved(const typename TokensBefore<T, kWidth>::Part (&before)[TokensBefore<T, kWidth>::kParts],
                                 Words<T, 16 / sizeof(T)> current, Words<T, 16 / sizeof(T)> next, uint32_t bytes,
                                 float (&window)[kAll]) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kWords = kAll * kSize / 4, kHaloWords = kWords - 4;
    constexpr int kPartWords = TokensBefore<T, kWidth>::kPartTokens * kSize / 4;
    uint32_t words[kWords + 4];
#pragma unroll
    for (int k = 0; k < kHaloWords; ++k) words[k] = word(before[k / kPartWords], k % kPartWords);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        words[kHaloWords + k] = word(current, k);
        words[kWords + k] = word(next, k);
    }
    if (bytes != 0) move_down<kSize>(words, bytes);
    unpack_words<T>(words, window);
#pragma unroll
    for (int k = 0; k < kAll; ++k) in_a_register(window[k]);
}

// Stores elements of a vector that begins at token `first` of a dense row: those that the row has. 16-bit elements go as words
// but for the first and the last, which may share their words with others.
template <typename T, int kCount>
HIPCONV_INLINE void store_part_in_words(T* row, int32_t first, int32_t size, Words<T, kCount> result) {
    if constexpr (sizeof(T) == 4) {
        store_part<T, kCount>(row, first, size, result);
    } else {
        constexpr int kWords = kCount / 2 + 1;
        uint16_t* to = reinterpret_cast<uint16_t*>(row) + first;
        const int odd = reinterpret_cast<uintptr_t>(to) % 4 != 0 ? 1 : 0;
        to -= odd;  // there, a word begins
        uint32_t words[kWords];
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
            const uint32_t own = k < kCount / 2 ? word(result, k) : 0, past = k > 0 ? word(result, k - 1) : 0;
            words[k] = odd ? own << 16 | past >> 16 : own;
        }
        // The row has these of the elements from `to` on.
        const int begin = (first < 0 ? -first : 0) + odd, left = size - first, end = (left < kCount ? left : kCount) + odd;
        uint32_t with_begin = words[0], with_end = words[0];
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
            if (2 * k >= begin && 2 * k + 1 < end) reinterpret_cast<uint32_t*>(to)[k] = words[k];
            if (k > 0 && 2 * k < begin) with_begin = words[k];
            if (k > 0 && 2 * k < end) with_end = words[k];
        }
        if (begin % 2 != 0) to[begin] = static_cast<uint16_t>(with_begin >> 16);
        if (end % 2 != 0) to[end - 1] = static_cast<uint16_t>(with_end);
    }
}

}  // namespace hipconv
