// This file finds which sequence a packed token belongs to, where that sequence starts and ends, and which slots of the pool it
// reads and writes. All of this is read on the device, at every launch: lengths may change between two replays of a graph.
//
// Whatever the indices hold, nothing here leads outside the tensors: starts are clamped to the tokens, slots are checked.
#pragma once

#include "causal_conv1d/prefill.h"

namespace hipconv {

constexpr int32_t kNoSlot = -1;

struct PackedSequence {
    int32_t number;      // -1: dead tokens, those of no sequence or of padding; for them, the pool is not touched
    int32_t begin, end;  // tokens
    int32_t read_slot;   // kNoSlot: no initial state
    int32_t write_slot;  // kNoSlot: the final state is not kept
};

HIPCONV_INLINE int32_t clamp_token(const CausalConv1dVarlenParams& p, int64_t token) {
    return static_cast<int32_t>(token < 0 ? 0 : token < p.tokens ? token : p.tokens);
}

HIPCONV_INLINE bool is_slot(const CausalConv1dVarlenParams& p, int64_t index) {
    return index >= 0 && index < p.slots && index != p.pad_slot && index != p.null_block;
}

// The entry of a block table, or the one entry where there is no table; -1 for a column outside the table.
HIPCONV_INLINE int64_t table_entry(const IndexArray& table, int32_t sequence, int64_t column) {
    if (!table.data) return sequence;
    return column >= 0 && column < table.columns ? load_index(table, sequence, column) : -1;
}

// The slots that a sequence reads and writes.
struct SequenceSlots {
    int64_t read, write;
    bool live;  // false: padding
};

HIPCONV_INLINE SequenceSlots sequence_slots(const CausalConv1dVarlenParams& p, int32_t number) {
    SequenceSlots s;
    const int64_t first = p.initial_state_idx.data ? load_index(p.initial_state_idx, number) : 0;
    const int64_t last = p.block_idx_last.data ? load_index(p.block_idx_last, number) : 0;
    s.write = table_entry(p.cache_indices, number, last);
    s.read = p.cache_indices_in.data ? table_entry(p.cache_indices_in, number, first)
             : first == last         ? s.write
                                     : table_entry(p.cache_indices, number, first);
    // A sequence is padding by the slot that it reads (as in vLLM), or by a slot to write that does not exist. The null block
    // may stand for a final state that nobody wants.
    s.live = is_slot(p, s.read) && (is_slot(p, s.write) || (s.write == p.null_block && s.write != kNoNumber));
    return s;
}

// These indices read starts, slots and flags from index tensors of any kind.
struct AnyIndices {
    const CausalConv1dVarlenParams& p;

    HIPCONV_INLINE int32_t start(int32_t b) const { return clamp_token(p, load_index(p.query_start_loc, b)); }
    HIPCONV_INLINE SequenceSlots slots(int32_t b) const { return sequence_slots(p, b); }
    HIPCONV_INLINE bool is_live(int32_t b) const { return slots(b).live; }
    HIPCONV_INLINE bool continues(int32_t b) const {
        return p.has_initial_state.data && load_index(p.has_initial_state, b) != 0;
    }
};

// These indices are those that servers mostly pass: int32 starts and slots and bool flags, packed, no block table. A kernel
// that waits for nothing else gains by knowing this.
struct PlainIndices {
    const CausalConv1dVarlenParams& p;

    static bool fit(const CausalConv1dVarlenParams& p) {
        const auto packed = [](const IndexArray& array, int bytes) {
            return array.data && array.bytes == bytes && array.row_stride == 1 && (bytes == 1 || array.is_signed);
        };
        return packed(p.query_start_loc, 4) && packed(p.cache_indices, 4) &&
               (!p.has_initial_state.data || packed(p.has_initial_state, 1)) && !p.cache_indices_in.data &&
               !p.initial_state_idx.data && !p.block_idx_last.data && !p.block_idx_first.data;
    }
    HIPCONV_INLINE int32_t start(int32_t b) const {
        const int32_t token = global_pointer<const int32_t>(p.query_start_loc.data)[b];
        return token < 0 ? 0 : token < p.tokens ? token : p.tokens;
    }
    HIPCONV_INLINE SequenceSlots slots(int32_t b) const {
        const int32_t slot = global_pointer<const int32_t>(p.cache_indices.data)[b];
        return {slot, slot, slot >= 0 && slot < p.slots && slot != p.pad_slot && slot != p.null_block};
    }
    HIPCONV_INLINE bool is_live(int32_t b) const { return slots(b).live; }
    HIPCONV_INLINE bool continues(int32_t b) const {
        return p.has_initial_state.data && global_pointer<const uint8_t>(p.has_initial_state.data)[b] != 0;
    }

    // A sequence on its way, as memory holds it.
    struct Asked {
        int32_t begin, end, slot, continues;
    };
    HIPCONV_INLINE Asked ask(int32_t b) const {
        const int32_t* const starts = global_pointer<const int32_t>(p.query_start_loc.data);
        const int32_t slot = global_pointer<const int32_t>(p.cache_indices.data)[b];
        const int32_t continues = p.has_initial_state.data ? global_pointer<const uint8_t>(p.has_initial_state.data)[b] : 0;
        return {starts[b], starts[b + 1], slot, continues};
    }
    HIPCONV_INLINE PackedSequence sequence(const Asked& asked, int32_t b) const {
        const bool is_live = is_slot(p, asked.slot);
        return {is_live ? b : -1, clamp_token(p, asked.begin), clamp_token(p, asked.end),
                asked.continues ? asked.slot : kNoSlot, is_live ? asked.slot : kNoSlot};
    }
};

template <typename Indices>
HIPCONV_INLINE PackedSequence packed_sequence(const Indices& indices, int32_t number) {
    PackedSequence s;
    s.begin = indices.start(number);
    s.end = indices.start(number + 1);
    const bool continues = indices.continues(number);
    const SequenceSlots slots = indices.slots(number);
    s.number = slots.live ? number : -1;
    s.read_slot = continues ? static_cast<int32_t>(slots.read) : kNoSlot;
    s.write_slot = is_slot(indices.p, slots.write) ? static_cast<int32_t>(slots.write) : kNoSlot;
    return s;
}

HIPCONV_INLINE PackedSequence packed_sequence(const CausalConv1dVarlenParams& p, int32_t number) {
    return packed_sequence(AnyIndices{p}, number);
}

// The indices that a launch found, plain or not, told apart at run time.
struct EitherIndices {
    const CausalConv1dVarlenParams& p;
    bool plain;

    HIPCONV_INLINE int32_t start(int32_t b) const { return plain ? PlainIndices{p}.start(b) : AnyIndices{p}.start(b); }
    HIPCONV_INLINE bool is_live(int32_t b) const { return plain ? PlainIndices{p}.is_live(b) : AnyIndices{p}.is_live(b); }
    HIPCONV_INLINE PackedSequence sequence(int32_t b) const {
        return plain ? packed_sequence(PlainIndices{p}, b) : packed_sequence(AnyIndices{p}, b);
    }
};

// The last sequence that begins at a token or before, of those whose starts (and the last one's end) `start_of` gives; -1 if
// none does.
template <typename StartOf>
HIPCONV_INLINE int32_t last_begun(const StartOf& start_of, int32_t sequences, int32_t token) {
    int32_t last = -1, after = sequences + 1;  // start_of(last) <= token < start_of(after)
    while (after - last > 1) {
        const int32_t middle = last + (after - last) / 2;
        if (start_of(middle) <= token)
            last = middle;
        else
            after = middle;
    }
    return last;
}

// The sequence that `last_begun` found, in full, or the dead tokens before the first sequence or after the last.
HIPCONV_INLINE PackedSequence sequence_or_none(const CausalConv1dVarlenParams& p, int32_t last) {
    if (last >= 0 && last < p.sequences) return packed_sequence(p, last);
    const int32_t boundary = clamp_token(p, load_index(p.query_start_loc, last < 0 ? 0 : p.sequences));
    return {-1, last < 0 ? 0 : boundary, last < 0 ? boundary : p.tokens, kNoSlot, kNoSlot};
}

// Besides the final state, prefix caching keeps one for each block boundary that a sequence crosses before its end.
struct Boundaries {
    int32_t count;        // at most
    int32_t last;         // the last one, in tokens from the sequence's first
    int32_t last_column;  // the final state's column of the block table; the boundaries' ones are those before it
};

HIPCONV_INLINE Boundaries boundaries_of(const CausalConv1dVarlenParams& p, const PackedSequence& s) {
    if (!p.block_idx_first.data) return {0, 0, 0};
    const int64_t length = s.end - s.begin, last_column = load_index(p.block_idx_last, s.number);
    int64_t beyond = (load_index(p.num_computed_tokens, s.number) + length) % p.block_size;
    if (beyond <= 0) beyond += p.block_size;  // the end itself is the final state's
    const int64_t crossed = last_column - load_index(p.block_idx_first, s.number), most = length / p.block_size + 1;
    return {static_cast<int32_t>(crossed < 0      ? 0
                                 : crossed < most ? crossed
                                                  : most),
            static_cast<int32_t>(length - beyond),
            static_cast<int32_t>(last_column < p.cache_indices.columns ? last_column : -1)};
}

// A state goes into `slot`: the inputs up to `position`, counted from the sequence's first token.
struct StateToWrite {
    int32_t slot, position;
};

// The state at the n-th boundary before the end, with n from 1 to `count`.
HIPCONV_INLINE StateToWrite boundary_state(const CausalConv1dVarlenParams& p, const PackedSequence& s, const Boundaries& b,
                                           int32_t n) {
    const int64_t position = b.last - int64_t{n - 1} * p.block_size;
    const int64_t index = table_entry(p.cache_indices, s.number, b.last_column - n);
    if (position <= 0 || !is_slot(p, index)) return {kNoSlot, 0};
    return {static_cast<int32_t>(index), static_cast<int32_t>(position)};
}

// State number 0 is the final state; number n, at most `count`, is the one at the n-th boundary before the end.
HIPCONV_INLINE StateToWrite state_to_write(const CausalConv1dVarlenParams& p, const PackedSequence& s, const Boundaries& b,
                                           int32_t n) {
    return n == 0 ? StateToWrite{s.write_slot, s.end - s.begin} : boundary_state(p, s, b, n);
}

}  // namespace hipconv
