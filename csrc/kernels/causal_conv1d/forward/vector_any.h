// The parts of vector_any.cu: vectors that lie across the boundaries of memory, and what the tokens of a row see.
#pragma once

#include "causal_conv1d/forward.h"
#include "device/vec.h"

namespace hipconv {

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

// Stores elements of a vector that begins at token `first` of a dense row: those that the row has. 16-bit elements go two at a
// time where two of the row share a word of memory.
template <typename T, int kCount>
HIPCONV_INLINE void store_part_in_words(T* row, int32_t first, int32_t size, Words<T, kCount> result) {
    if constexpr (sizeof(T) == 4) {
        store_part<T, kCount>(row, first, size, result);
    } else {
        const bool odd = reinterpret_cast<uintptr_t>(row + first) % 4 != 0;
        const int32_t from = first - (odd ? 1 : 0);  // where words begin
        uint16_t* const to = reinterpret_cast<uint16_t*>(row);
#pragma unroll
        for (int k = 0; k <= kCount / 2; ++k) {
            const uint32_t own = k < kCount / 2 ? word(result, k) : 0, past = k > 0 ? word(result, k - 1) : 0;
            const uint32_t both = odd ? past >> 16 | own << 16 : own;
            const int32_t t = from + 2 * k;
            const bool has_low = t >= 0 && t < size && (k > 0 || !odd) && (k < kCount / 2 || odd);
            const bool has_high = t + 1 >= 0 && t + 1 < size && k < kCount / 2;
            if (has_low && has_high) {
                *reinterpret_cast<uint32_t*>(to + t) = both;
            } else {
                if (has_low) to[t] = static_cast<uint16_t>(both);
                if (has_high) to[t + 1] = static_cast<uint16_t>(both >> 16);
            }
        }
    }
}

// What a token sees is a byte: bit k tells whether it sees the token k + 1 before it, and the last bit whether it is padding.
constexpr uint32_t kIsPadding = 0x80, kEachByte = 0x01010101;

template <int kWidth>
constexpr uint32_t kSeesAll = (1u << (kWidth - 1)) - 1;

// The bytes of kTokens tokens of a row from t on, in words. Tokens outside the row are nobody's: they see everything.
template <int kWidth, int kTokens>
HIPCONV_INLINE void find_sights(const CausalConv1dFwdParams& p, const int32_t* ids_row, int32_t t,
                                uint32_t (&words)[kTokens / 4]) {
    constexpr int kPast = kWidth - 1;
    const bool has_state = p.initial_states.data != nullptr;
#pragma unroll
    for (int w = 0; w < kTokens / 4; ++w) words[w] = kEachByte * kSeesAll<kWidth>;
    if (p.seq_idx.data) {
        int32_t ids[kPast + kTokens];
#pragma unroll
        for (int k = 0; k < kPast + kTokens; ++k) {
            const int32_t own = t - kPast + k, last = own < p.seqlen ? own : p.seqlen - 1;
            ids[k] = ids_row[(last < 0 ? 0 : last) * p.seq_idx.seqlen_stride];
        }
#pragma unroll
        for (int e = 0; e < kTokens; ++e) {
            uint32_t sees = 0;
#pragma unroll
            for (int k = 0; k < kPast; ++k) {
                const bool is_there = has_state || t + e > k;
                if (is_there && ids[kPast + e - 1 - k] == ids[kPast + e]) sees |= 1u << k;
            }
            if (ids[kPast + e] < 0) sees = kIsPadding;
            if (t + e < 0 || t + e >= p.seqlen) sees = kSeesAll<kWidth>;
            if (e % 4 == 0) words[e / 4] = 0;
            words[e / 4] |= sees << e % 4 * 8;
        }
    } else if (!has_state && t < kPast) {
#pragma unroll
        for (int e = 0; e < kTokens; ++e) {
            const int32_t before = t + e;
            if (before >= 0 && before < kPast) words[e / 4] &= ~((kSeesAll<kWidth> & ~((1u << before) - 1)) << e % 4 * 8);
        }
    }
}

}  // namespace hipconv
