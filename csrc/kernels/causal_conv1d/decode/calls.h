// Questions that several of decode's kernels ask of a call on the host.
#pragma once

#include "causal_conv1d/decode.h"

namespace hipconv {

inline bool has_one_token(const CausalConv1dUpdateParams& p) { return p.seqlen == 1 && !p.query_start_loc.data; }

// The bytes of tokens and slots that a call moves.
inline int64_t bytes_of(const CausalConv1dUpdateParams& p) {
    const int64_t tokens = p.query_start_loc.data ? p.total_tokens : int64_t{p.batch} * p.seqlen;
    return 2 * element_bytes(p.dtype) * p.dim * (tokens + int64_t{p.batch} * p.state_len);
}

// Tells whether a row's words lie at multiples of their size, wherever they are.
inline bool rows_are_words(const CausalConv1dUpdateParams& p) {
    const int own = 4 / element_bytes(p.dtype);
    const auto in_words = [&](const Tokens& tokens) {
        return tokens.dim_stride == 1 && tokens.data.bits % 4 == 0 && tokens.row_stride % own == 0 &&
               (has_one_token(p) || tokens.token_stride % own == 0);
    };
    if (p.dim % own != 0 || !in_words(p.x) || p.state.bits % 4 != 0 || p.slot_stride % own != 0) return false;
    for (int part = 0, begin = 0; begin < p.dim; begin = p.out_end[part++])
        if (!in_words(p.out[part]) || p.out_end[part] % own != 0) return false;
    return true;
}

}  // namespace hipconv
