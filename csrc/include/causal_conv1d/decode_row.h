// This file reads from the indices on the device which slot, columns and tokens a row of a decode call has, and computes one
// channel of the row in the plainest way. Indices are never trusted: a row whose slot, column or accepted count is out of range
// is padding.
#pragma once

#include <type_traits>

#include "causal_conv1d/decode.h"
#include "device/activation.h"
#include "device/dtype.h"

namespace hipconv {

// Element (row, column), in two loads of 32 bits: nothing waits for the first one before another index is on its way.
HIPCONV_INLINE int64_t load_index(const Indices& from, int64_t row, int64_t column = 0) {
    const int64_t at = row * from.row_stride + column * from.column_stride;
    const int32_t* words = from.data.as<const int32_t>() + (from.wide ? 2 * at : at);
    const int32_t low = words[0], high = from.wide ? words[1] : low >> 31;
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low));
}

// All that the indices say of a row, loaded together and not yet looked at.
struct RowIndices {
    int64_t first_token, end_token, rest;  // of a packed batch; the rest are its tokens after the last row
    int64_t write_slot, read_slot;
    int64_t position;  // the accepted tokens, or of a circular state the tokens so far
};

constexpr int64_t kOutsideOfPool = int64_t{1} << 62;  // a slot that no pool has

HIPCONV_INLINE int64_t load_slot(const Indices& table, const Indices& columns, int64_t b) {
    if (!table.data) return b;
    const int64_t column = columns.data ? load_index(columns, b) : 0;
    return column < 0 || column >= table.columns ? kOutsideOfPool : load_index(table, b, column);
}

HIPCONV_INLINE RowIndices indices_of_row(const CausalConv1dUpdateParams& p, int64_t b) {
    RowIndices row{};
    if (p.query_start_loc.data) {
        row.first_token = load_index(p.query_start_loc, b);
        row.end_token = load_index(p.query_start_loc, b + 1);
        if (p.zero_padding) row.rest = load_index(p.query_start_loc, p.batch);
    }
    if (p.num_accepted_tokens.data)
        row.position = load_index(p.num_accepted_tokens, b);
    else if (p.cache_seqlens.data)
        row.position = load_index(p.cache_seqlens, b);
    row.write_slot = load_slot(p.write_slots, p.write_columns, b);
    if (p.fork) row.read_slot = load_slot(p.read_slots, p.read_columns, b);
    return row;
}

// The tokens of a row: `count` of them from `first` on, in x and out.
struct RowTokens {
    int64_t first;
    int32_t count;
};

HIPCONV_INLINE int64_t token_within(const CausalConv1dUpdateParams& p, int64_t token) {
    return token < 0 ? 0 : token > p.total_tokens ? p.total_tokens : token;
}

HIPCONV_INLINE RowTokens tokens_of_row(const CausalConv1dUpdateParams& p, const RowIndices& indices) {
    if (!p.query_start_loc.data) return {0, p.seqlen};
    const int64_t first = token_within(p, indices.first_token), end = token_within(p, indices.end_token);
    return {first, static_cast<int32_t>(end > first ? end - first : 0)};
}

// Tells where a row's history is and where it goes.
struct RowState {
    bool live;  // or else padding
    int64_t read_slot, write_slot;
    int32_t first_column;  // of the history; of a circular one, the column that the next token goes to
};

template <typename P>
HIPCONV_INLINE bool is_in_pool(const P& p, const Indices& table, int64_t slot) {
    const bool pad = table.data && p.has_pad_slot && slot == p.pad_slot;
    return static_cast<uint64_t>(slot) < static_cast<uint64_t>(p.slots) && !pad;
}

HIPCONV_INLINE RowState state_of_row(const CausalConv1dUpdateParams& p, const RowIndices& indices, int32_t tokens) {
    RowState row{};
    row.write_slot = indices.write_slot;
    row.read_slot = p.fork ? indices.read_slot : row.write_slot;
    row.live = is_in_pool(p, p.write_slots, row.write_slot) && (!p.fork || is_in_pool(p, p.read_slots, row.read_slot));
    if (p.num_accepted_tokens.data && p.width > 1) {
        const int64_t accepted = indices.position;
        const int32_t kept = p.state_len - (p.width - 2);  // tokens that a state holds after the width - 2 before them
        row.live = row.live && accepted >= 1 && accepted < kept + 1 && tokens <= kept;
        row.first_column = row.live ? static_cast<int32_t>(accepted - 1) : 0;
    } else if (p.cache_seqlens.data && p.state_len > 0) {
        const int64_t position = indices.position % p.state_len;
        row.first_column = static_cast<int32_t>(position < 0 ? position + p.state_len : position);
    }
    return row;
}

// The column of h[i], 0 <= i < width - 1, in the slot read.
HIPCONV_INLINE int32_t window_column(const CausalConv1dUpdateParams& p, const RowState& row, int32_t i) {
    if (!p.cache_seqlens.data) return row.first_column + p.history - (p.width - 1) + i;
    const int32_t column = row.first_column - (p.width - 1) + i;
    return column < 0 ? column + p.state_len : column;  // state_len >= width - 1
}

// Slot of the row's intermediate windows, or -1 for none.
HIPCONV_INLINE int64_t intermediate_slot_of_row(const CausalConv1dUpdateParams& p, int64_t b) {
    if (!p.intermediate) return -1;
    const int64_t slot = p.intermediate_slot.data ? load_index(p.intermediate_slot, b) : b;
    return slot >= 0 && slot < p.intermediate_slots ? slot : -1;
}

// ---- one channel, by the formula: the history stays in the pool, and each token is a step of its own ------------------------

template <typename S>
HIPCONV_INLINE S* state_at(const CausalConv1dUpdateParams& p, int64_t slot, int64_t d, int64_t column) {
    return p.state.as<S>() + slot * p.slot_stride + d * p.state_dim_stride + column * p.column_stride;
}

template <typename S>
HIPCONV_INLINE S* intermediate_at(const CausalConv1dUpdateParams& p, int64_t slot, int64_t t, int64_t d, int64_t column) {
    return p.intermediate.as<S>() + slot * p.intermediate_slot_stride + t * p.intermediate_token_stride +
           d * p.intermediate_dim_stride + column * p.intermediate_column_stride;
}

HIPCONV_INLINE float weight_at(const CausalConv1dUpdateParams& p, int64_t d, int64_t i) {
    return load_parameter(p.weight.as<void>(), d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
}

HIPCONV_INLINE float bias_at(const CausalConv1dUpdateParams& p, int64_t d) {
    return p.bias ? load_parameter(p.bias.as<void>(), d * p.bias_stride, p.bias_dtype) : 0.0f;
}

template <typename P>
HIPCONV_INLINE int output_of_channel(const P& p, int64_t d) {
    return d < p.out_end[0] ? 0 : d < p.out_end[1] ? 1 : 2;
}

template <typename T>
HIPCONV_INLINE T* token_at(const Tokens& tokens, int64_t b, int64_t d, int64_t t) {
    return tokens.data.as<T>() + b * tokens.row_stride + d * tokens.dim_stride + t * tokens.token_stride;
}

template <typename T>
HIPCONV_INLINE T* out_at(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int64_t t) {
    const int part = output_of_channel(p, d);
    const Tokens& out = part == 0 ? p.out[0] : part == 1 ? p.out[1] : p.out[2];
    return token_at<T>(out, b, part == 0 ? d : d - (part == 1 ? p.out_end[0] : p.out_end[1]), t);
}

template <typename T>
HIPCONV_INLINE void zero_one_channel(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, RowTokens tokens) {
    for (int32_t t = 0; t < tokens.count; ++t) *out_at<T>(p, b, d, tokens.first + t) = from_float<T>(0.0f);
}

// A token as the pool keeps it.
template <typename S, typename T>
HIPCONV_INLINE S history_of(T x) {
    if constexpr (std::is_same_v<S, T>)
        return x;
    else
        return from_float<S>(to_float(x));
}

// Calls zero(t) for the tokens of a packed batch before its first row, and for those after its last one, which the rows divide
// among themselves.
template <typename Zero>
HIPCONV_INLINE void zero_rest(const CausalConv1dUpdateParams& p, const RowIndices& indices, int64_t b, Zero zero) {
    if (!p.zero_padding || !p.query_start_loc.data) return;
    for (int64_t t = token_within(p, indices.rest) + b; t < p.total_tokens; t += p.batch) zero(t);
    for (int64_t t = 0; b == 0 && t < token_within(p, indices.first_token); ++t) zero(t);
}

// The same for one channel.
template <typename T>
HIPCONV_INLINE void zero_rest(const CausalConv1dUpdateParams& p, const RowIndices& indices, int64_t b, int64_t d) {
    zero_rest(p, indices, b, [&](int64_t t) { *out_at<T>(p, 0, d, t) = from_float<T>(0.0f); });
}

// `T` of x and out, `S` of the state.
template <typename T, typename S>
HIPCONV_INLINE void update_one_channel(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, RowTokens tokens,
                                       RowState row) {
    const int32_t past = p.width - 1;
    const int64_t snapshots = intermediate_slot_of_row(p, b);
    for (int32_t t = 0; t < tokens.count; ++t) {
        const T x = *token_at<T>(p.x, b, d, tokens.first + t);
        float sum = bias_at(p, d);
        for (int32_t i = 0; i < past; ++i) {
            sum += weight_at(p, d, i) * to_float(*state_at<S>(p, row.read_slot, d, window_column(p, row, i)));
        }
        sum += weight_at(p, d, past) * to_float(x);

        const S last = history_of<S>(x);
        if (past == 0) {
            // no history
        } else if (p.cache_seqlens.data) {
            *state_at<S>(p, row.write_slot, d, row.first_column) = last;
            row.first_column = row.first_column + 1 == p.state_len ? 0 : row.first_column + 1;
        } else {
            // The history moves one column down; that of a speculative row moves to column 0 and grows from there.
            const int32_t to = p.num_accepted_tokens.data && t > 0 ? row.first_column + 1 : 0;
            const bool in_place = to == row.first_column + 1 && row.read_slot == row.write_slot;
            for (int32_t i = 0; i < p.history - 1 && !in_place; ++i)
                *state_at<S>(p, row.write_slot, d, to + i) = *state_at<S>(p, row.read_slot, d, row.first_column + 1 + i);
            *state_at<S>(p, row.write_slot, d, to + p.history - 1) = last;
            row.first_column = to;
        }
        row.read_slot = row.write_slot;
        if (snapshots >= 0 && t < p.intermediate_tokens)
            for (int32_t i = 0; i < past; ++i)
                *intermediate_at<S>(p, snapshots, t, d, i) = *state_at<S>(p, row.read_slot, d, window_column(p, row, i));

        *out_at<T>(p, b, d, tokens.first + t) = from_float<T>(p.use_silu ? silu(sum) : sum);
    }
}

// Token t of a tree, whose ancestors come before it; `parent` has -1 for token 0. The pool is read only.
template <typename T, typename S, typename Parent>
HIPCONV_INLINE void update_one_tree_token(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, RowState row, int32_t t,
                                          const Parent* parent) {
    const int32_t past = p.width - 1;
    const int64_t snapshots = intermediate_slot_of_row(p, b);
    float sum = bias_at(p, d);
    int32_t node = t;  // the token that tap i sees; -1 is the last column of the window, -2 the one before
    for (int32_t i = past; i >= 0; --i) {
        const float w = weight_at(p, d, i);
        const S seen = node >= 0 ? history_of<S>(*token_at<T>(p.x, b, d, node))
                                 : *state_at<S>(p, row.read_slot, d, window_column(p, row, past + node));
        sum += w * (i == past ? to_float(*token_at<T>(p.x, b, d, t)) : to_float(seen));
        if (snapshots >= 0 && t < p.intermediate_tokens && i > 0) *intermediate_at<S>(p, snapshots, t, d, i - 1) = seen;
        node = node >= 0 ? parent[node] : node - 1;
    }
    *out_at<T>(p, b, d, t) = from_float<T>(p.use_silu ? silu(sum) : sum);
}

// Parents from links, each of which must lead forward and within the row, or is ignored; tokens that no link reaches count as
// children of token 0.
template <typename Parent, typename Child, typename Sibling>
HIPCONV_INLINE void find_parents(Parent* parent, int32_t tokens, Child child, Sibling sibling) {
    for (int32_t t = 0; t < tokens; ++t) parent[t] = static_cast<Parent>(t == 0 ? -1 : 0);
    for (int32_t t = 0; t < tokens; ++t) {
        const int64_t first = child(t), next = sibling(t);
        if (first > t && first < tokens) parent[first] = static_cast<Parent>(t);
        if (t > 0 && next > t && next < tokens) parent[next] = parent[t];
    }
}

// The parent that the caller sees: token 0 of a tree has none, and shows 0 as in SGLang.
HIPCONV_INLINE void store_parent(const Indices& to, int64_t b, int32_t t, int32_t parent) {
    const int64_t at = b * to.row_stride + t * to.column_stride;
    if (to.wide)
        to.data.as<int64_t>()[at] = parent < 0 ? 0 : parent;
    else
        to.data.as<int32_t>()[at] = parent < 0 ? 0 : parent;
}

}  // namespace hipconv
