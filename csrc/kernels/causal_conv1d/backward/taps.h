// These types tell which taps of a token see an input in the backward. Taps that reach before the row or after it, or into
// another sequence, are left out, not multiplied by zeros: 0 * inf is NaN.
#pragma once

#include "causal_conv1d/backward.h"
#include "device/arch.h"

namespace hipconv {

// ---- in memory --------------------------------------------------------------------------------------------------------------

// The taps of rows with sequence ids are worked out once for all channels (sums.cu), at widths up to 8: a byte for each token,
// with bit i set if its tap i sees an input. No bit is set for padding, nor for the tokens outside the row, of which there are
// some on either side.
constexpr int kTapsBefore = 16, kTapsAfter = 16;

HIPCONV_INLINE int64_t bwd_taps_pitch(int32_t seqlen) { return (int64_t{seqlen} + kTapsBefore + kTapsAfter + 3) / 4 * 4; }

HIPCONV_INLINE const uint8_t* bwd_taps_of(const CausalConv1dBwdParams& p, int64_t b, int64_t t) {
    return p.taps + b * bwd_taps_pitch(p.in.seqlen) + kTapsBefore + t;
}

// ---- of a thread that has kTokens neighbouring tokens -----------------------------------------------------------------------
//
// `sees` tells whether tap i of token e, one of the thread's, sees an input, `has` whether token e is in the row and no
// padding, `feeds` whether token e + k sees token e.

struct AllTaps {
    HIPCONV_INLINE bool sees(int, int) const { return true; }
    HIPCONV_INLINE bool has(int) const { return true; }
    HIPCONV_INLINE bool feeds(int, int) const { return true; }
};

// These are the taps in rows made of whole threads' tokens. (Lanes past the row's end have zeros for x and dout.)
template <int kTokens, int kWidth>
struct TapsOfWhole {
    bool begins_row, ends_row;
    HIPCONV_INLINE bool sees(int e, int i) const { return !begins_row || e + i >= kWidth - 1; }
    HIPCONV_INLINE bool has(int) const { return true; }
    HIPCONV_INLINE bool feeds(int e, int k) const { return !ends_row || e + k < kTokens; }
};

// The taps of the first four tokens of a row without a state: a byte for each token, with a bit for each of its taps.
template <int kWidth>
constexpr uint32_t taps_of_first() {
    uint32_t word = 0;
    for (int e = 0; e < 4; ++e)
        for (int i = 0; i < kWidth; ++i)
            if (e + i >= kWidth - 1) word |= 1u << (e * 8 + i);
    return word;
}
template <int kWidth>
constexpr uint32_t kTapsOfFirst = taps_of_first<kWidth>();

// These are taps as a byte for each of a thread's tokens and of those after them, with a bit for each tap.
template <int kTokens, int kWidth>
struct TapsOfBits {
    static constexpr int kWords = kTokens / 4 + 1;
    static constexpr uint32_t kAll = 0x01010101u * ((1u << kWidth) - 1);
    static constexpr uint32_t kAfter = (1u << 8 * (kWidth - 1)) - 1;  // of the last word
    static_assert(kWidth <= 4, "the last word has the bytes of the kWidth - 1 tokens after the thread's");
    uint32_t words[kWords];

    HIPCONV_INLINE bool sees(int e, int i) const { return words[e / 4] >> (e % 4 * 8 + i) & 1; }
    HIPCONV_INLINE bool has(int e) const { return sees(e, kWidth - 1); }
    HIPCONV_INLINE bool feeds(int e, int k) const { return sees(e + k, kWidth - 1 - k); }

    // Tells whether the taps are those in a row that is one sequence without a state.
    HIPCONV_INLINE bool are_plain(bool begins_row, bool ends_row) const {
        bool plain = words[0] == (begins_row ? kTapsOfFirst<kWidth> : kAll);
#pragma unroll
        for (int k = 1; k < kWords - 1; ++k) plain = plain && words[k] == kAll;
        return plain && (words[kWords - 1] & kAfter) == (ends_row ? 0u : kAll & kAfter);
    }
};

// Returns four bytes of two words, from byte `first` on.
HIPCONV_INLINE uint32_t bytes_of_two(uint32_t low, uint32_t high, uint32_t first) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (first * 8));
}

// Returns the taps of tokens t, t + 1, ... of a row that is one sequence.
template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_of_row(int32_t t, int32_t seqlen, bool has_state) {
    using Taps = TapsOfBits<kTokens, kWidth>;
    const auto word_at = [&](int32_t place) {
        return place < 0 ? 0 : place == 0 && !has_state ? kTapsOfFirst<kWidth> : Taps::kAll;
    };
    Taps taps;
#pragma unroll
    for (int k = 0; k < Taps::kWords; ++k) {
        const int32_t from = t + 4 * k, place = from >> 2, left = seqlen - from;
        const uint32_t word = bytes_of_two(word_at(place), word_at(place + 1), static_cast<uint32_t>(from) & 3);
        taps.words[k] = left >= 4 ? word : left <= 0 ? 0 : word & ((1u << left * 8) - 1);
    }
    return taps;
}

// These read the taps of a row with sequence ids from memory: from words, or from the words around bytes that are not aligned.
template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_from_words(const uint32_t* words) {
    TapsOfBits<kTokens, kWidth> taps;
#pragma unroll
    for (int k = 0; k < taps.kWords; ++k) taps.words[k] = words[k];
    return taps;
}

template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_from_bytes(const uint8_t* bytes) {
    const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(bytes) % 4);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(bytes - before);
    TapsOfBits<kTokens, kWidth> taps;
    uint32_t word = words[0];
#pragma unroll
    for (int k = 0; k < taps.kWords; ++k) {
        const uint32_t next = words[k + 1];
        taps.words[k] = bytes_of_two(word, next, before);
        word = next;
    }
    return taps;
}

}  // namespace hipconv
