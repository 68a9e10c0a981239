// These types tell which taps of a token see an input in the backward. Taps that reach before the row or after it, or into
// another sequence, are left out, not multiplied by zeros: 0 * inf is NaN.
#pragma once

#include "causal_conv1d/states_formula.h"
#include "device/vec.h"

namespace hipconv {

// The taps of eight tokens as a byte for each: in the middle of a row, and at the start of a row without a state.
template <int kWidth>
constexpr uint64_t kTapsInside = 0x0101010101010101u * ((1u << kWidth) - 1);

template <int kWidth>
constexpr uint64_t taps_of_first() {
    uint64_t bytes = 0;
    for (int e = 0; e < 8; ++e)
        for (int i = 0; i < kWidth; ++i)
            if (e + i >= kWidth - 1) bytes |= uint64_t{1} << (e * 8 + i);
    return bytes;
}
template <int kWidth>
constexpr uint64_t kTapsOfFirst = taps_of_first<kWidth>();

// ---- in memory --------------------------------------------------------------------------------------------------------------

// The taps of rows with sequence ids are worked out once for all channels (sums.cu), at widths up to 8: a byte for each token,
// with bit i set if its tap i sees an input. No bit is set for padding, nor for the tokens outside the row, of which there are
// some on either side: those before a row are those after the one before it.
constexpr int kMostTaps = 8, kTapsBefore = 8, kTapsAfter = 12;

HIPCONV_INLINE int64_t bwd_taps_pitch(int32_t seqlen) { return (int64_t{seqlen} + kTapsAfter + 7) / 8 * 8; }

HIPCONV_INLINE const uint8_t* bwd_taps_of(const CausalConv1dBwdParams& p, int64_t b, int64_t t) {
    return p.taps + b * bwd_taps_pitch(p.in.seqlen) + kTapsBefore + t;
}

// Makes the byte of token t of row b, which is in the row, for a width up to kMost. All ids are on their way before one is
// looked at.
template <int kMost>
HIPCONV_INLINE uint32_t bwd_taps_of_token(const CausalConv1dInputs& in, int64_t b, int64_t t) {
    const int left_out = kMost - in.width;
    const bool has_ids = in.seq_idx.data, has_initial = in.initial_states.data;
    int32_t ids[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
        ids[i] = 0;
        if (has_ids && i >= left_out) ids[i] = sequence_of(in, b, t - (kMost - 1) + i);
    }
    uint32_t byte = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i)
        if (i >= left_out && (has_initial || t - (kMost - 1) + i >= 0) && ids[i] == ids[kMost - 1]) byte |= 1u << i;
    return ids[kMost - 1] < 0 ? 0 : byte >> left_out;
}

// The bytes of tokens t to t + 3 of row b, none of them before the row if one is in it; those outside the row have none.
// kAtOnce: near the row's ends, too, all ids are on their way before one is looked at, which is longer code.
template <int kWidth, bool kAtOnce>
HIPCONV_INLINE uint32_t bwd_taps_of_four(const CausalConv1dInputs& in, int64_t b, int32_t t) {
    constexpr int kPast = kWidth - 1;
    if (t < 0 || t >= in.seqlen) return 0;
    const int32_t* const row = global_pointer<const int32_t>(in.seq_idx.data) + b * in.seq_idx.batch_stride;
    int32_t ids[kPast + 4];
    const int64_t step = in.seq_idx.seqlen_stride;
    const auto within = [&](int32_t from) {
        const int32_t last = in.seqlen - 1;
        return (from < 0 ? 0 : from < last ? from : last) * step;
    };
    if constexpr (kAtOnce) {
#pragma unroll
        for (int k = 0; k < kPast + 4; ++k) ids[k] = row[within(t - kPast + k)];
    } else if (t >= kPast && t + 4 <= in.seqlen) {
        const int32_t* from = row + (t - kPast) * step;
#pragma unroll
        for (int k = 0; k < kPast + 4; ++k, from += step) ids[k] = *from;
    } else {
#pragma unroll 1
        for (int k = 0; k < kPast + 4; ++k) {
#pragma unroll
            for (int i = 0; i + 1 < kPast + 4; ++i) ids[i] = ids[i + 1];
            ids[kPast + 3] = row[within(t - kPast + k)];
        }
    }
    const bool has_initial = in.initial_states.data;
    uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        uint32_t byte = 0;
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            if ((has_initial || t + e + i >= kPast) && ids[e + i] == ids[e + kPast]) byte |= 1u << i;
        if (t + e < in.seqlen && ids[e + kPast] >= 0) word |= byte << e * 8;
    }
    return word;
}

// Tells whether ids are neighbours, and so many and lie so that four tokens from a multiple of four on are an aligned vector.
inline bool bwd_ids_are_quads(const CausalConv1dInputs& in) {
    return in.seq_idx.data && in.seq_idx.seqlen_stride == 1 && in.seqlen % 4 == 0 &&
           reinterpret_cast<uintptr_t>(in.seq_idx.data) % 16 == 0 && (in.batch == 1 || in.seq_idx.batch_stride % 4 == 0);
}

// The same as `bwd_taps_of_four` of such ids, for t a multiple of four; tokens outside the row have no taps.
template <int kWidth>
HIPCONV_INLINE uint32_t bwd_taps_of_quad(const CausalConv1dInputs& in, int64_t b, int32_t t) {
    constexpr int kPast = kWidth - 1, kBefore = (kPast + 3) / 4 * 4;
    if (t < 0 || t >= in.seqlen) return 0;
    const int32_t* const row = global_pointer<const int32_t>(in.seq_idx.data) + b * in.seq_idx.batch_stride;
    const bool has_initial = in.initial_states.data;
    int32_t ids[kBefore + 4];
#pragma unroll
    for (int at = kBefore; at >= 0; at -= 4) {
        Words4 quad{};
        const int32_t from = t - (kBefore - at);
        if (from >= 0) quad = *reinterpret_cast<const Words4*>(row + from);
#pragma unroll
        for (int k = 0; k < 4; ++k) ids[at + k] = static_cast<int32_t>(word(quad, k));
        if (at < kBefore && from < 0) {
#pragma unroll
            for (int k = 0; k < 4; ++k) ids[at + k] = ids[at + 4];  // in front of a row are inputs of its first sequence
        }
    }
    uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int32_t own = ids[kBefore + e];
        uint32_t byte = 1u << kPast;
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            if (ids[kBefore - kPast + e + i] == own) byte |= 1u << i;
        if (own >= 0) word |= byte << e * 8;
    }
    if (!has_initial && t < kPast) word &= static_cast<uint32_t>(kTapsOfFirst<kWidth> >> t * 8);
    return word;
}

// ---- of a lane that has kTokens neighbouring tokens -------------------------------------------------------------------------
//
// `sees` tells whether tap i of token e, one of the lane's, sees an input, `has` whether token e is in the row and no padding.

struct AllTaps {
    HIPCONV_INLINE bool sees(int, int) const { return true; }
    HIPCONV_INLINE bool has(int) const { return true; }
    HIPCONV_INLINE AllTaps again(uint32_t) const { return *this; }
    HIPCONV_INLINE void look_from_here_on() {}
};

// The taps of a lane whose tokens are all in the row, and which may begin a row without a state.
template <int kWidth>
struct TapsOfWhole {
    bool begins_row;
    HIPCONV_INLINE bool sees(int e, int i) const { return !begins_row || e + i >= kWidth - 1; }
    HIPCONV_INLINE bool has(int) const { return true; }
};

// Taps as a byte for each of a lane's tokens, with a bit for each tap.
template <int kTokens, int kWidth>
struct TapsOfBits {
    uint64_t bytes;

    HIPCONV_INLINE bool sees(int e, int i) const {
        return (static_cast<uint32_t>(bytes >> (e / 4 * 32)) & 1u << (e % 4 * 8 + i)) != 0;
    }
    HIPCONV_INLINE bool has(int e) const { return sees(e, kWidth - 1); }

    // The same taps, of which NVIDIA's compiler does not know that they are (`nothing` is 0): it looks at each bit anew, rather
    // than keep conditions as bits of a register of its own.
    HIPCONV_INLINE TapsOfBits again(uint32_t nothing) const {
        const uint32_t first = static_cast<uint32_t>(bytes) + nothing, second = static_cast<uint32_t>(bytes >> 32) + nothing;
        return {static_cast<uint64_t>(second) << 32 | first};
    }

    // Bits that are looked at behind this are not looked at before.
    HIPCONV_INLINE void look_from_here_on() {
        uint32_t first = static_cast<uint32_t>(bytes), second = static_cast<uint32_t>(bytes >> 32);
        from_here_on(first);
        if (kTokens > 4) from_here_on(second);
        bytes = static_cast<uint64_t>(second) << 32 | first;
    }
};

template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_inside() {
    return {kTokens == 8 ? kTapsInside<kWidth> : kTapsInside<kWidth> & 0xffffffffu};
}

// Returns the taps of tokens t, t + 1, ..., for t > -8, of a row that is one sequence.
template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_of_row(int32_t t, int32_t seqlen, bool has_state) {
    uint64_t bytes = has_state ? kTapsInside<kWidth> : kTapsOfFirst<kWidth>;
    if (t < 0)
        bytes <<= -t * 8;
    else if (t >= kWidth - 1)
        bytes = kTapsInside<kWidth>;
    else if (t > 0)
        bytes = bytes >> t * 8 | kTapsInside<kWidth> << (64 - t * 8);
    const int32_t left = seqlen - t;
    if (left < 8) bytes &= left > 0 ? (uint64_t{1} << left * 8) - 1 : 0;
    return {kTokens == 8 ? bytes : bytes & 0xffffffffu};
}

// These are bytes of eight tokens, of which the first is `left` tokens in front of the row's end: bit i of token e's byte tells
// whether the token i before e, which may be behind the end, sees by its tap i what lies width - 1 tokens before e. So the byte
// has the taps by which token e completes dx.
template <int kWidth>
constexpr uint64_t later_taps_past_end() {
    uint64_t bytes = 0;
    for (int e = 0; e < 8; ++e)
        for (int i = e + 1; i < kWidth; ++i) bytes |= uint64_t{1} << (e * 8 + i);
    return bytes;
}
template <int kWidth>
HIPCONV_INLINE uint64_t later_taps_of_row(int32_t left) {
    constexpr uint64_t kPastEnd = later_taps_past_end<kWidth>();
    if (left >= 8) return kTapsInside<kWidth>;
    if (left <= 0) return left > -8 ? kPastEnd >> -left * 8 : 0;
    return (kTapsInside<kWidth> & ((uint64_t{1} << left * 8) - 1)) | kPastEnd << left * 8;
}

// The same bytes of four tokens, made of the taps of these and of the eight before them, the first of which are in `far`.
HIPCONV_INLINE uint32_t later_taps_of_four(uint32_t far, uint32_t near, uint32_t own) {
    uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int bits = (e + 1) * 8;
        const uint32_t last = static_cast<uint32_t>((uint64_t{own} << 32 | near) >> bits);
        const uint32_t first = static_cast<uint32_t>((uint64_t{near} << 32 | far) >> bits);
        uint32_t byte = (last & 0x01020408u) | (first & 0x10204080u);
        byte |= byte >> 16;
        byte |= byte >> 8;
        word |= (byte & 0xffu) << e * 8;
    }
    return word;
}

// The words around the taps of the tokens of a row. (AMD's compiler keeps an array of three in memory.)
struct TapWords {
    uint32_t first, second, third;
};

// Loads those of kTokens tokens from t on, where `row` has those of token 0. kWhole: t is a multiple of four.
template <int kTokens, bool kWhole>
HIPCONV_INLINE TapWords load_taps(const uint8_t* row, int32_t t) {
    const uint32_t* from = global_pointer<const uint32_t>(row + (t & ~3));
    return {from[0], kTokens > 4 || !kWhole ? from[1] : 0, kTokens > 4 && !kWhole ? from[2] : 0};
}

// Makes them of these words; tokens from the row's end on have none.
template <int kTokens, int kWidth, bool kWhole>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_of_words(int32_t t, int32_t seqlen, TapWords words) {
    const auto four = [&](uint32_t word, uint32_t next) {
        const uint64_t both = static_cast<uint64_t>(next) << 32 | word;
        return t < seqlen ? static_cast<uint32_t>(both >> (kWhole ? 0 : t * 8 & 24)) : 0;
    };
    if constexpr (kTokens == 4)
        return {four(words.first, words.second)};
    else
        return {static_cast<uint64_t>(four(words.second, words.third)) << 32 | four(words.first, words.second)};
}

}  // namespace hipconv
