// This says what the tokens of a row see, for vector_any_kernel.h.
#pragma once

#include "causal_conv1d/forward.h"
#include "device/vec.h"

namespace hipconv {

// A byte says what a token sees: bit k tells whether it sees the token k + 1 before it, and the last bit whether it is padding.
constexpr uint32_t kIsPadding = 0x80, kEachByte = 0x01010101;

template <int kWidth>
constexpr uint32_t kSeesAll = (1u << (kWidth - 1)) - 1;

// The ids of the tokens of a vector that begins at token t, and of the kBefore tokens before it. The row's first id stands for
// those before it, and its last one for those after it.
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
        ids[k] = row[(last < 0 ? 0 : last) * p.seq_idx.seqlen_stride];
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
        uint32_t falls = static_cast<uint32_t>(ids[0]);  // its sign tells whether ids decrease, or are negative
        uint32_t changes = 0;                            // the lowest bit is that of the last token
#pragma unroll
        for (int k = 1; k < kPast + kTokens; ++k) {
            const uint32_t own = static_cast<uint32_t>(ids[k]), older = static_cast<uint32_t>(ids[k - 1]);
            falls |= own | (own - older);
            changes = changes << 1 | (older - own) >> 31;
        }
        if (static_cast<int32_t>(falls) < 0) {
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
        } else if (changes != 0) {  // a token sees what lies behind the last change of the id
#pragma unroll
            for (int w = 0; w < kTokens / 4; ++w) words[w] = 0;
#pragma unroll
            for (int e = 0; e < kTokens; ++e) {
                const uint32_t from_own = changes >> (kTokens - 1 - e);
                words[e / 4] |= ((from_own - 1) & ~from_own & kSeesAll<kWidth>) << e % 4 * 8;
            }
        }
    }
    if (!p.initial_states.data && t < kPast) {
#pragma unroll
        for (int e = 0; e < kTokens; ++e) {
            const int32_t before = t + e;
            if (before >= 0 && before < kPast) words[e / 4] &= ~((kSeesAll<kWidth> & ~((1u << before) - 1)) << e % 4 * 8);
        }
    }
}

}  // namespace hipconv
