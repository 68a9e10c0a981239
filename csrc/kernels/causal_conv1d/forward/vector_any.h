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

// What a token sees is a byte: bit k tells whether it sees the token k + 1 before it, and the last bit whether it is padding.
constexpr uint32_t kIsPadding = 0x80, kEachByte = 0x01010101;
constexpr int32_t kNoToken = -1;  // stands for the id of a token that is not there

template <int kWidth>
constexpr uint32_t kSeesAll = (1u << (kWidth - 1)) - 1;

// The ids of the tokens of a vector that begins at token t, and of the kBefore tokens before it. The row's last id stands for
// those after it.
template <int kBefore, int kTokens>
HIPCONV_INLINE void load_ids(const CausalConv1dFwdParams& p, const int32_t* row, int32_t t, int32_t (&ids)[kBefore + kTokens]) {
    constexpr int kFront = (kBefore + 3) / 4 * 4;
    const bool aligned = p.seq_idx.seqlen_stride == 1 && (reinterpret_cast<uintptr_t>(row + t) & 15) == 0;
    if (aligned && t >= kFront && t <= p.seqlen - kTokens) {
#pragma unroll
        for (int v = 0; v < (kFront + kTokens) / 4; ++v) {
            const Words4 four = reinterpret_cast<const Words4*>(row + t - kFront)[v];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int k = 4 * v + i - (kFront - kBefore);
                if (k >= 0) ids[k] = static_cast<int32_t>(word(four, i));
            }
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < kBefore + kTokens; ++k) {
        const int32_t own = t - kBefore + k, last = own < p.seqlen ? own : p.seqlen - 1;
        ids[k] = own < 0 && !p.initial_states.data ? kNoToken : row[(last < 0 ? 0 : last) * p.seq_idx.seqlen_stride];
    }
}

// The bytes of kTokens tokens of a row from t on, in words. What the bytes of tokens outside the row are does not matter.
template <int kWidth, int kTokens>
HIPCONV_INLINE void find_sights(const CausalConv1dFwdParams& p, const int32_t* ids_row, int32_t t,
                                uint32_t (&words)[kTokens / 4]) {
    constexpr int kPast = kWidth - 1;
#pragma unroll
    for (int w = 0; w < kTokens / 4; ++w) words[w] = kEachByte * kSeesAll<kWidth>;
    if (p.seq_idx.data) {
        int32_t ids[kPast + kTokens];
        load_ids<kPast, kTokens>(p, ids_row, t, ids);
        int32_t differ = ids[0] < 0 ? 1 : 0;
#pragma unroll
        for (int k = 1; k < kPast + kTokens; ++k) differ |= ids[k] ^ ids[k - 1];
        if (differ == 0) return;
#pragma unroll
        for (int w = 0; w < kTokens / 4; ++w) words[w] = 0;
#pragma unroll
        for (int e = 0; e < kTokens; ++e) {
            const int32_t own = ids[kPast + e];
            uint32_t sees = 0;
#pragma unroll
            for (int k = 0; k < kPast; ++k) sees |= ids[kPast + e - 1 - k] == own ? 1u << k : 0u;
            words[e / 4] |= (own < 0 ? kIsPadding : sees) << e % 4 * 8;
        }
    } else if (!p.initial_states.data && t < kPast) {
#pragma unroll
        for (int e = 0; e < kTokens; ++e) {
            const int32_t before = t + e;
            if (before >= 0 && before < kPast) words[e / 4] &= ~((kSeesAll<kWidth> & ~((1u << before) - 1)) << e % 4 * 8);
        }
    }
}

}  // namespace hipconv
