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

    HIPCONV_INLINE uint8_t taps(const CausalConv1dInputs& p, int32_t t) const {
        const int32_t past = p.width - 1, reached = p.initial_states.data || t >= past ? past : t;
        uint32_t taps = (1u << reached) - 1;
        if (p.seq_idx.data) {
            uint32_t same = 0;
#pragma unroll
            for (int k = 1; k < kMaxFastWidth; ++k) same |= before[k - 1] == own ? 1u << (k - 1) : 0;
            taps = (taps & same) | (own < 0 ? 1u << kPaddingBit : 0);
        }
        return static_cast<uint8_t>(taps);
    }
};

// Makes the byte of token t of row b.
HIPCONV_INLINE uint8_t taps_of_token(const CausalConv1dInputs& p, int64_t b, int32_t t) {
    TokenIds ids;
    ids.load(p, b, t);
    return ids.taps(p, t);
}

}  // namespace hipconv
