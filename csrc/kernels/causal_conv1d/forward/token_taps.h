// A byte says which taps of a token see something: the same for all channels.
#pragma once

#include "causal_conv1d/states_formula.h"
#include "kernels.h"

namespace hipconv {

constexpr int kPaddingBit = 7;  // of a token's byte; bit k - 1 is set if the token sees the one k before it

// The ids from which the byte of a token is made. All of them are read side by side, those of tokens that no tap reaches as
// well: reads under conditions would wait for each other. Between `load` and `taps` a thread may begin other loads.
struct TokenIds {
    int32_t own, before[kMaxFastWidth - 1];

    // Begins the loads for token t of row b.
    HIPCONV_INLINE void load(const CausalConv1dInputs& p, int64_t b, int32_t t) {
        own = 0;
        if (!p.seq_idx.data) return;
        const int32_t* at =
            global_pointer<const int32_t>(p.seq_idx.data) + b * p.seq_idx.batch_stride + t * p.seq_idx.seqlen_stride;
        own = *at;
#pragma unroll
        for (int k = 1; k < kMaxFastWidth; ++k) {
            at -= k <= t ? p.seq_idx.seqlen_stride : 0;
            before[k - 1] = *at;
        }
    }

    // The tokens with the same id, the row's first one included, which stands for those before it.
    HIPCONV_INLINE uint32_t same() const {
        uint32_t same = 0;
#pragma unroll
        for (int k = 1; k < kMaxFastWidth; ++k) same |= before[k - 1] == own ? 1u << (k - 1) : 0;
        return same;
    }
    HIPCONV_INLINE uint8_t taps(const CausalConv1dInputs& p, int32_t t) const {
        const int32_t past = p.width - 1, reached = p.initial_states.data || t >= past ? past : t;
        uint32_t taps = (1u << reached) - 1;
        if (p.seq_idx.data) taps = (taps & same()) | (own < 0 ? 1u << kPaddingBit : 0);
        return static_cast<uint8_t>(taps);
    }
    // Tells whether ids hide something from the token.
    HIPCONV_INLINE bool hide(const CausalConv1dInputs& p) const {
        const uint32_t all = (1u << (p.width - 1)) - 1;
        return (same() & all) != all || own < 0;
    }
};

// Makes the byte of token t of row b.
HIPCONV_INLINE uint8_t taps_of_token(const CausalConv1dInputs& p, int64_t b, int32_t t) {
    TokenIds ids;
    ids.load(p, b, t);
    return ids.taps(p, t);
}

// The bytes of some tokens that follow each other, in words. They `differ` where one says that an id hides something.
constexpr int kTapGroup = 8;
struct GroupTaps {
    uint32_t words[kTapGroup / 4];
    bool differ;
};

// Makes them for token t of row b and those after it; those behind the row's end mean nothing. Mostly ids do not decrease along
// a row. Then a token sees what lies behind the last change of the id, which costs less than to compare each id with all that
// its taps reach.
HIPCONV_INLINE GroupTaps taps_of_group(const CausalConv1dInputs& p, int64_t b, int32_t t) {
    constexpr int kMostPast = kMaxFastWidth - 1, kAll = kMostPast + kTapGroup;
    const int32_t past = p.width - 1, left = p.seqlen - t;
    const uint32_t all = (1u << past) - 1;
    const int32_t* const row = global_pointer<const int32_t>(p.seq_idx.data) + b * p.seq_idx.batch_stride;
    uint32_t older = 0, falls = 0;  // the sign of `falls` tells whether ids decrease, or are negative
    uint32_t changes = 0;           // the lowest bit is that of the last token
    const auto look_at = [&](int32_t id) {
        const uint32_t own = static_cast<uint32_t>(id);
        falls |= own | (own - older);
        changes = changes << 1 | (older - own) >> 31;
        older = own;
    };
    if (p.seq_idx.seqlen_stride == 1) {
        const int32_t* const at = row + t;
        int32_t ids[kAll];  // all of them are under way together
        if (t >= kMostPast && left >= kTapGroup) {
#pragma unroll
            for (int i = 0; i < kAll; ++i) ids[i] = at[i - kMostPast];
            keep_apart<0>();
        } else {  // the row's first and last ones stand for those beside it
#pragma unroll
            for (int i = 0; i < kMostPast; ++i) ids[i] = at[i - kMostPast > -t ? i - kMostPast : -t];
#pragma unroll
            for (int i = 0; i < kTapGroup; ++i) ids[kMostPast + i] = at[i < left ? i : left - 1];
            keep_apart<1>();
        }
#pragma unroll
        for (int i = 0; i < kAll; ++i) look_at(ids[i]);
    } else {
#pragma unroll 1
        for (int own = t - kMostPast; own < t + kTapGroup; ++own)
            look_at(row[(own < 0 ? 0 : own < p.seqlen ? own : p.seqlen - 1) * p.seq_idx.seqlen_stride]);
    }
    changes &= (1u << (kAll - 1)) - 1;  // without that of the first, which has none before it
    const bool ordered = static_cast<int32_t>(falls) >= 0;
    GroupTaps found{};
    if (!ordered) {
        found.differ = true;
#pragma unroll 1
        for (int j = kTapGroup - 1; j >= 0; --j) {
            const uint32_t taps = t + j < p.seqlen ? taps_of_token(p, b, t + j) : 0;
            found.words[1] = found.words[1] << 8 | found.words[0] >> 24;
            found.words[0] = found.words[0] << 8 | taps;
        }
        return found;
    }
    if (changes == 0 && t >= past) {
#pragma unroll
        for (int w = 0; w < kTapGroup / 4; ++w) found.words[w] = 0x01010101u * all;
        return found;
    }
#pragma unroll
    for (int j = 0; j < kTapGroup; ++j) {
        const uint32_t from_own = changes >> (kTapGroup - 1 - j);
        found.words[j / 4] |= ((from_own - 1) & ~from_own & all) << j % 4 * 8;
    }
#pragma unroll
    for (int w = 0; w < kTapGroup / 4; ++w) found.differ = found.differ || found.words[w] != 0x01010101u * all;
    if (t < past && !p.initial_states.data) {
        // The bytes of the first tokens of a row, of which each sees one more than the one before it; and then all.
        constexpr uint64_t kOfFirst = 0x7f3f1f0f07030100;
        const uint64_t reached = t > 0 ? kOfFirst >> 8 * t | ~uint64_t{0} << (64 - 8 * t) : kOfFirst;
        found.words[0] &= static_cast<uint32_t>(reached);
        found.words[1] &= static_cast<uint32_t>(reached >> 32);
    }
    return found;
}

}  // namespace hipconv
