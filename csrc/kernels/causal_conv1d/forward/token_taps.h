// A byte says which taps of a token see something: the same for all channels.
#pragma once

#include "causal_conv1d/states_formula.h"
#include "kernels.h"

namespace hipconv {

constexpr int kPaddingBit = 7;  // of a token's byte; bit k - 1 is set if the token sees the one k before it

// Makes the byte of token t of row b.
HIPCONV_INLINE uint8_t taps_of_token(const CausalConv1dInputs& p, int64_t b, int64_t t) {
    const bool has_ids = p.seq_idx.data;
    const int32_t id = has_ids ? sequence_of(p, b, t) : 0;
    const int64_t oldest = p.initial_states.data ? 1 - int64_t{p.width} : 0;
    int taps = id < 0 ? 1 << kPaddingBit : 0;
#pragma unroll
    for (int k = 1; k < kMaxFastWidth; ++k) {
        if (k >= p.width || t - k < oldest) break;
        if (!has_ids || sequence_of(p, b, t - k) == id) taps |= 1 << (k - 1);
    }
    return static_cast<uint8_t>(taps);
}

}  // namespace hipconv
