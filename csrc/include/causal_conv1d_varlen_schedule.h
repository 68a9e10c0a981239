// Who is who among packed tokens: which sequence a token belongs to, where that begins and ends, which slots of the pool it reads and
// writes. Read on the device, at every launch: lengths may change between two replays of a graph.
//
// Whatever the indices hold, nothing here leads outside the tensors: starts are clamped to the tokens, slots are checked.
#pragma once

#include "causal_conv1d_varlen.h"

namespace hipconv {

constexpr int32_t kNoSlot = -1;

struct PackedSequence {
    int32_t number;      // -1: the tokens of no sequence
    int32_t begin, end;  // tokens
    int32_t read_slot;   // kNoSlot: no initial state
    int32_t write_slot;  // kNoSlot: the final state is not kept
    bool live;           // false: padding, its outputs are dead and the pool is not touched
};

HIPCONV_INLINE int32_t clamp_token(const CausalConv1dVarlenParams& p, int64_t token) {
    return static_cast<int32_t>(token < 0 ? 0 : token < p.tokens ? token : p.tokens);
}

HIPCONV_INLINE bool is_slot(const CausalConv1dVarlenParams& p, int64_t index) {
    return index >= 0 && index < p.slots && !(p.has_pad_slot && index == p.pad_slot) &&
           !(p.has_null_block && index == p.null_block);
}

// The entry of a block table, or the one entry; -1 beside the table. (The pool's slots are fewer than 2^31.)
HIPCONV_INLINE int64_t table_entry(const IndexArray& table, int32_t sequence, int64_t column) {
    if (!table.data) return sequence;
    return column >= 0 && column < table.columns ? load_index(table, sequence, column) : -1;
}

HIPCONV_INLINE PackedSequence packed_sequence(const CausalConv1dVarlenParams& p, int32_t number) {
    PackedSequence s;
    s.number = number;
    s.begin = clamp_token(p, load_index(p.query_start_loc, number));
    s.end = clamp_token(p, load_index(p.query_start_loc, number + 1));
    const IndexArray& in = p.cache_indices_in.data ? p.cache_indices_in : p.cache_indices;
    const int64_t read = table_entry(in, number, p.initial_state_idx.data ? load_index(p.initial_state_idx, number) : 0);
    const int64_t write = table_entry(p.cache_indices, number, p.block_idx_last.data ? load_index(p.block_idx_last, number) : 0);
    // Padding is told by the slot that is read (as in vLLM), and by one to write that does not exist. The null block may stand for
    // a final state that nobody wants.
    s.live = is_slot(p, read) && (is_slot(p, write) || (p.has_null_block && write == p.null_block));
    const bool reads = s.live && p.has_initial_state.data && load_index(p.has_initial_state, number) != 0;
    s.read_slot = reads ? static_cast<int32_t>(read) : kNoSlot;
    s.write_slot = s.live && is_slot(p, write) ? static_cast<int32_t>(write) : kNoSlot;
    return s;
}

// The sequence of a token: the last that begins at it or before. For tokens before the first sequence and after the last, a dead one.
HIPCONV_INLINE PackedSequence sequence_of_token(const CausalConv1dVarlenParams& p, int32_t token) {
    int32_t last = -1, after = p.sequences + 1;  // query_start_loc[last] <= token < query_start_loc[after]
    while (after - last > 1) {
        const int32_t middle = last + (after - last) / 2;
        if (load_index(p.query_start_loc, middle) <= token)
            last = middle;
        else
            after = middle;
    }
    if (last >= 0 && last < p.sequences) return packed_sequence(p, last);
    PackedSequence none{};
    none.number = -1;
    none.begin = last < 0 ? 0 : clamp_token(p, load_index(p.query_start_loc, p.sequences));
    none.end = last < 0 ? clamp_token(p, load_index(p.query_start_loc, 0)) : p.tokens;
    none.read_slot = none.write_slot = kNoSlot;
    return none;
}

// ---- states to write -------------------------------------------------------------------------------------------------

// A state goes into `slot`: the inputs up to `position`, counted from the sequence's first token.
struct StateToWrite {
    int32_t slot, position;
};

// Besides the final state, prefix caching keeps one for each block boundary that the sequence crosses before its end.
HIPCONV_INLINE int32_t states_to_write(const CausalConv1dVarlenParams& p, const PackedSequence& s) {
    if (!p.block_idx_first.data) return 1;
    const int64_t crossed = load_index(p.block_idx_last, s.number) - load_index(p.block_idx_first, s.number);
    const int64_t most = (s.end - s.begin) / p.block_size + 1;
    return 1 + static_cast<int32_t>(crossed < 0 ? 0 : crossed < most ? crossed : most);
}

// Number 0 is the final state; number n the n-th boundary before the end.
HIPCONV_INLINE StateToWrite state_to_write(const CausalConv1dVarlenParams& p, const PackedSequence& s, int32_t n) {
    const int64_t length = s.end - s.begin;
    if (n == 0) return {s.write_slot, static_cast<int32_t>(length)};
    int64_t beyond = (load_index(p.num_computed_tokens, s.number) + length) % p.block_size;
    if (beyond <= 0) beyond += p.block_size;  // the end itself is the final state's
    const int64_t position = length - beyond - (n - 1) * p.block_size;
    const int64_t index = table_entry(p.cache_indices, s.number, load_index(p.block_idx_last, s.number) - n);
    if (position <= 0 || !is_slot(p, index)) return {kNoSlot, 0};
    return {static_cast<int32_t>(index), static_cast<int32_t>(position)};
}

}  // namespace hipconv
