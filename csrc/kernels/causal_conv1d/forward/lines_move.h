// What the kernel "lines" does with memory: it brings x and states to LDS, and takes outputs away.
//
// Loads of a tile are all under way before the first of them is put into LDS. Vectors of channels come two tokens at a time in 16
// bits, so that a word of LDS is written at once.
#pragma once

#include "lines.h"
#include "causal_conv1d/states_formula.h"

namespace hipconv {

template <typename T>
constexpr int kVectorOf = 16 / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kWordElements = 4 / static_cast<int>(sizeof(T));
template <typename T>
using BitsOf = typename WordsOf<sizeof(T)>::type;

// What the threads of a block share.
template <typename T>
struct LineShare {
    const CausalConv1dInputs& in;
    const LinesPlan& plan;
    const LineTile& tile;
    int first_channel;
    char* lines;

    HIPCONV_INLINE char* at(int line, int n) const {
        return lines + line * plan.bytes + (kLineBefore + n) * static_cast<int>(sizeof(T));
    }
    HIPCONV_INLINE int channels_left(int c) const { return in.dim - first_channel - c; }
    // Where the tile's first row has the block's channel c, and the step from there to a place.
    HIPCONV_INLINE T* row(const Sequences& s, const LineTensor& how, int c) const {
        return reinterpret_cast<T*>(global_pointer<char>(s.data) + tile.first_row * how.row_step +
                                    int64_t{how.channel_step} * (first_channel + c));
    }
    // The place behind one, and the step to it.
    HIPCONV_INLINE int64_t go_on(const LineTensor& how, LinePlace* at) const {
        const bool wraps = at->t + 1 == plan.pitch - plan.head;
        at->row += wraps ? 1 : 0;
        at->t = wraps ? -plan.head : at->t + 1;
        at->is_token = at->t >= 0 && at->t < in.seqlen && tile.first_row + at->row < in.batch;
        return wraps ? how.wrap_step : int64_t{how.token_step};
    }
    HIPCONV_INLINE T* token(T* row, const LineTensor& how, LinePlace at) const {
        return reinterpret_cast<T*>(reinterpret_cast<char*>(row) + static_cast<uint32_t>(at.row) * how.row_step + int64_t{how.token_step} * at.t);
    }
};

// 16 bytes from the address of an element, as they were loaded: the words that hold them, and the bits before the first one.
// Nothing beyond these words is read, nor a word of which nothing is needed.
template <typename T>
struct LoadedVector {
    static constexpr bool kShifts = sizeof(T) == 2 && !kUnalignedVectors;
    static constexpr int kVector = kVectorOf<T>;
    Words4 words;
    uint32_t last, bits;

    HIPCONV_INLINE void load(const T* from, bool aligned) {
        if constexpr (kUnalignedVectors) {
            words = load_unaligned<Words4>(reinterpret_cast<const char*>(from));
        } else if (aligned) {
            words = *reinterpret_cast<const Words4*>(from);
        } else {
            const uint32_t bytes = kShifts ? static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 2 : 0;
            const uint32_t* const first = reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(from) - bytes);
#pragma unroll
            for (int k = 0; k < 4; ++k) set_word(words, k, first[k]);
            bits = 8 * bytes;
            if (kShifts && bytes != 0) last = *reinterpret_cast<const uint16_t*>(first + 4);
        }
    }
    HIPCONV_INLINE void load_part_of(const T* from, int count) { words = load_part<T, kVector>(from, 0, count); }

    HIPCONV_INLINE Words4 vector() const {
        if constexpr (!kShifts) return words;
        Words4 all{};
#pragma unroll
        for (int k = 0; k < 4; ++k) set_word(all, k, shifted_right(word(words, k), k < 3 ? word(words, k < 3 ? k + 1 : 3) : last, bits));
        return all;
    }
};

// ---- vectors of channels: an item is a vector of one or two neighbouring places -------------------------------------------

template <typename T>
struct ChannelItem {
    static constexpr int kPlaces = kWordElements<T>;
    LoadedVector<T> tokens[kPlaces];
};

template <typename T>
HIPCONV_INLINE ChannelItem<T> load_channels(const LineShare<T>& share, T* row, int left, int n) {
    ChannelItem<T> item{};
    LinePlace place = share.tile.place(share.in, share.plan, n);
    const char* at = reinterpret_cast<const char*>(share.token(row, share.plan.x, place));
#pragma unroll
    for (int k = 0; k < ChannelItem<T>::kPlaces; ++k) {
        if (k > 0) at += share.go_on(share.plan.x, &place);
        if (!place.is_token || left <= 0) continue;
        const T* const from = reinterpret_cast<const T*>(at);
        if (left >= kVectorOf<T>)
            item.tokens[k].load(from, share.plan.x.aligned);
        else
            item.tokens[k].load_part_of(from, left);
    }
    return item;
}

template <typename T>
HIPCONV_INLINE void put_channels(const LineShare<T>& share, int c, int n, const ChannelItem<T>& item) {
    Words4 vectors[ChannelItem<T>::kPlaces];
#pragma unroll
    for (int k = 0; k < ChannelItem<T>::kPlaces; ++k) vectors[k] = item.tokens[k].vector();
#pragma unroll
    for (int i = 0; i < kVectorOf<T>; ++i) {
        char* const to = share.at((i << (share.plan.line_bits - share.plan.vector_bits)) + (c >> share.plan.vector_bits), n);
        uint32_t both = word(vectors[0], sizeof(T) == 4 ? i : i / 2);
        if constexpr (sizeof(T) == 2) {
            const uint32_t next = word(vectors[ChannelItem<T>::kPlaces - 1], i / 2);
            both = i % 2 ? upper_halves(both, next) : lower_halves(both, next);
        }
        *reinterpret_cast<uint32_t*>(to) = both;
    }
}

template <typename T>
HIPCONV_INLINE void bring_channel_vectors(const LineShare<T>& share) {
    constexpr int kVector = kVectorOf<T>, kPlaces = kWordElements<T>, kRounds = kTilePlaces / kLineThreads / kVector / kPlaces;
    const int bits = share.plan.line_bits - share.plan.vector_bits, thread = static_cast<int>(threadIdx.x);
    const int c = (thread & ((1 << bits) - 1)) * kVector, first = thread >> bits, step = kLineThreads >> bits;
    T* const row = share.row(share.in.x, share.plan.x, c);
    const int left = share.channels_left(c);
    ChannelItem<T> own[kRounds], before{};
#pragma unroll
    for (int k = 0; k < kRounds; ++k) own[k] = load_channels<T>(share, row, left, (first + k * step) * kPlaces);
    const int n = (first + 1) * -kPlaces;  // the places before the stretch, the nearest first
    const bool has_before = n + kPlaces > 1 - share.in.width && n >= -kLineBefore;
    if (has_before) before = load_channels<T>(share, row, left, n);
#pragma unroll
    for (int k = 0; k < kRounds; ++k) put_channels<T>(share, c, (first + k * step) * kPlaces, own[k]);
    if (has_before) put_channels<T>(share, c, n, before);
}

template <typename T>
HIPCONV_INLINE void take_channel_vectors(const LineShare<T>& share, const Sequences& out) {
    constexpr int kVector = kVectorOf<T>, kPlaces = kWordElements<T>, kRounds = kTilePlaces / kLineThreads / kVector / kPlaces;
    const int bits = share.plan.line_bits - share.plan.vector_bits, thread = static_cast<int>(threadIdx.x);
    const int c = (thread & ((1 << bits) - 1)) * kVector, first = thread >> bits, step = kLineThreads >> bits;
    const int left = share.channels_left(c);
    T* const row = share.row(out, share.plan.out, c);
    if (left <= 0) return;
#pragma unroll
    for (int k = 0; k < kRounds; ++k) {
        const int n = (first + k * step) * kPlaces;
        uint32_t words[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i)
            words[i] = *reinterpret_cast<const uint32_t*>(share.at((i << bits) + (c >> share.plan.vector_bits), n));
        LinePlace place = share.tile.place(share.in, share.plan, n);
        char* at = reinterpret_cast<char*>(share.token(row, share.plan.out, place));
#pragma unroll
        for (int u = 0; u < kPlaces; ++u) {
            if (u > 0) at += share.go_on(share.plan.out, &place);
            if (!place.is_token || n + u >= share.plan.made) continue;
            Words4 vector{};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (sizeof(T) == 4)
                    set_word(vector, j, words[j]);
                else
                    set_word(vector, j, u ? upper_halves(words[2 * j], words[2 * j + 1])
                                          : lower_halves(words[2 * j], words[2 * j + 1]));
            }
            T* const to = reinterpret_cast<T*>(at);
            if (left < kVector) {
                store_part<T, kVector>(to, 0, left, vector);
            } else if (share.plan.out.aligned) {
                *reinterpret_cast<Words4*>(to) = vector;
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j) reinterpret_cast<uint32_t*>(to)[j] = word(vector, j);
            }
        }
    }
}

// ---- vectors of tokens, which lie in vectors of places -----------------------------------------------------------------------

template <typename T>
HIPCONV_INLINE LoadedVector<T> load_tokens(const LineShare<T>& share, const T* from, int c, LinePlace place) {
    LoadedVector<T> loaded{};
    if (!place.is_token || share.channels_left(c) <= 0) return loaded;
    if (place.t + kVectorOf<T> <= share.in.seqlen)
        loaded.load(from, share.plan.x.aligned);
    else
        loaded.load_part_of(from, share.in.seqlen - place.t);
    return loaded;
}

template <typename T>
HIPCONV_INLINE void bring_token_vectors(const LineShare<T>& share) {
    constexpr int kVector = kVectorOf<T>, kVectorBits = sizeof(T) == 2 ? 3 : 2, kRounds = kLineRun / kVector;
    constexpr int kBefore = kLineBefore / kVector;
    const int bits = share.plan.place_bits - kVectorBits, thread = static_cast<int>(threadIdx.x);
    const int n = (thread & ((1 << bits) - 1)) * kVector, first = thread >> bits, step = kLineThreads >> bits;
    const LinePlace place = share.tile.place(share.in, share.plan, n);
    T* const from = share.token(share.row(share.in.x, share.plan.x, first), share.plan.x, place);
    const int64_t from_step = int64_t{share.plan.x.channel_step} * step / static_cast<int>(sizeof(T));
    LoadedVector<T> own[kRounds], before{};
#pragma unroll
    for (int k = 0; k < kRounds; ++k) own[k] = load_tokens<T>(share, from + k * from_step, first + k * step, place);
    const int line = thread / kBefore, behind = (thread % kBefore + 1) * -kVector;
    const bool has_before = line < 1 << share.plan.line_bits;
    if (has_before) {
        const LinePlace at = share.tile.place(share.in, share.plan, behind);
        before = load_tokens<T>(share, share.token(share.row(share.in.x, share.plan.x, line), share.plan.x, at), line, at);
    }
#pragma unroll
    for (int k = 0; k < kRounds; ++k)
        *reinterpret_cast<Words4*>(share.at(line_of_channel(share.plan, first + k * step), n)) = own[k].vector();
    if (has_before) *reinterpret_cast<Words4*>(share.at(line_of_channel(share.plan, line), behind)) = before.vector();
}

// Where out's vectors are not those of the places, a lane stores the aligned vector that begins among its places, and the row's
// first or last tokens one by one.
template <typename T>
HIPCONV_INLINE void take_token_vectors(const LineShare<T>& share, const Sequences& out) {
    constexpr int kVector = kVectorOf<T>, kVectorBits = sizeof(T) == 2 ? 3 : 2, kRounds = kLineRun / kVector;
    const int bits = share.plan.place_bits - kVectorBits, thread = static_cast<int>(threadIdx.x);
    const int n = (thread & ((1 << bits) - 1)) * kVector, first = thread >> bits, step = kLineThreads >> bits;
    const LinePlace place = share.tile.place(share.in, share.plan, n);
    if (!place.is_token || n >= share.plan.made) return;
    const int to_end = share.in.seqlen - place.t, to_edge = share.plan.made - n;
    const int left = to_end < to_edge ? to_end : to_edge;  // tokens of the row in the tile, from n on
    T* const first_to = share.token(share.row(out, share.plan.out, first), share.plan.out, place);
    const int64_t to_step = int64_t{share.plan.out.channel_step} * step / static_cast<int>(sizeof(T));
#pragma unroll
    for (int k = 0; k < kRounds; ++k) {
        const int c = first + k * step;
        if (share.channels_left(c) <= 0) continue;
        T* const to = first_to + k * to_step;
        const char* const from = share.at(line_of_channel(share.plan, c), n);
        if (share.plan.out.aligned) {
            const Words4 vector = *reinterpret_cast<const Words4*>(from);
            if (left >= kVector)
                *reinterpret_cast<Words4*>(to) = vector;
            else
                store_part<T, kVector>(to, 0, left, vector);
            continue;
        }
        const auto store_some = [&](int begin, int end) {
#pragma unroll 1
            for (int i = begin; i < end; ++i) to[i] = reinterpret_cast<const T*>(from)[i];
        };
        const int skipped = static_cast<int>(-reinterpret_cast<uintptr_t>(to) % 16 / sizeof(T));
        if (place.t == 0 || n == 0) store_some(0, skipped < left ? skipped : left);
        if (skipped + kVector <= left) {
            const uint32_t* const words = reinterpret_cast<const uint32_t*>(from) + skipped / kWordElements<T>;
            Words4 vector{};
#pragma unroll
            for (int j = 0; j < 4; ++j)
                set_word(vector, j, sizeof(T) == 2 ? shifted_right(words[j], words[j + 1], skipped % 2 * 16) : words[j]);
            *reinterpret_cast<Words4*>(to + skipped) = vector;
        } else {
            store_some(skipped, left);
        }
    }
}

// ---- elements ------------------------------------------------------------------------------------------------------------

// This calls move(memory, lds) for the elements of a tile: where memory has it, and where LDS has. Lanes lie along memory.
template <typename T, typename Move>
HIPCONV_INLINE void for_elements(const LineShare<T>& share, const Sequences& s, const LineTensor& how, Move move) {
    const LinesPlan& plan = share.plan;
    const int thread = static_cast<int>(threadIdx.x), lines = 1 << plan.line_bits, places = 1 << plan.place_bits;
    if (how.moves == LineMoves::rows) {
        const int all = plan.made / plan.pitch * share.in.seqlen << plan.line_bits;
        for (int i = thread; i < all; i += kLineThreads) {
            const int rest = quotient(i, plan.of_seqlen), c = rest & (lines - 1);
            const LinePlace place{rest >> plan.line_bits, i - rest * share.in.seqlen, true};
            if (share.tile.first_row + place.row >= share.in.batch || share.channels_left(c) <= 0) continue;
            move(share.token(share.row(s, how, c), how, place),
                 share.at(line_of_channel(plan, c), place.row * plan.pitch + plan.head + place.t));
        }
    } else if (how.moves == LineMoves::channels) {
        const int c = thread & (lines - 1);
        T* const row = share.row(s, how, c);
        char* const line = share.at(line_of_channel(plan, c), 0);
        if (share.channels_left(c) <= 0) return;
        for (int n = thread >> plan.line_bits; n < plan.made; n += kLineThreads >> plan.line_bits) {
            const LinePlace place = share.tile.place(share.in, plan, n);
            if (place.is_token) move(share.token(row, how, place), line + n * static_cast<int>(sizeof(T)));
        }
    } else {
        const int bits = plan.place_bits < 8 ? plan.place_bits : 8, step = kLineThreads >> bits;
        for (int n = thread & ((1 << bits) - 1); n < plan.made; n += places < kLineThreads ? places : kLineThreads) {
            const LinePlace place = share.tile.place(share.in, plan, n);
            if (!place.is_token) continue;
            const int first = thread >> bits, left = share.channels_left(0), end = left < lines ? left : lines;
            char* at = reinterpret_cast<char*>(share.token(share.row(s, how, first), how, place));
            for (int c = first; c < end; c += step, at += int64_t{how.channel_step} * step)
                move(reinterpret_cast<T*>(at), share.at(line_of_channel(plan, c), n));
        }
    }
}

template <typename T>
HIPCONV_INLINE void bring_elements(const LineShare<T>& share) {
    const auto bring = [](const T* from, char* to) { *reinterpret_cast<T*>(to) = *from; };
    for_elements<T>(share, share.in.x, share.plan.x, bring);
    if (share.tile.skipped == 0) return;
    for (int i = static_cast<int>(threadIdx.x); i < kLineBefore << share.plan.line_bits; i += kLineThreads) {
        const int c = i / kLineBefore, n = i % kLineBefore - kLineBefore;
        const LinePlace place = share.tile.place(share.in, share.plan, n);
        if (place.is_token && share.channels_left(c) > 0)
            bring(share.token(share.row(share.in.x, share.plan.x, c), share.plan.x, place),
                  share.at(line_of_channel(share.plan, c), n));
    }
}

template <typename T>
HIPCONV_INLINE void take_elements(const LineShare<T>& share, const Sequences& out) {
    for_elements<T>(share, out, share.plan.out, [](T* to, const char* from) { *to = *reinterpret_cast<const T*>(from); });
}

// ---- all -----------------------------------------------------------------------------------------------------------------

template <typename T>
HIPCONV_INLINE void bring_x(const LineShare<T>& share) {
    if (share.plan.x.moves == LineMoves::channel_vectors)
        bring_channel_vectors<T>(share);
    else if (share.plan.x.moves == LineMoves::token_vectors)
        bring_token_vectors<T>(share);
    else
        bring_elements<T>(share);
}

template <typename T>
HIPCONV_INLINE void take_out(const LineShare<T>& share, const Sequences& out) {
    if (share.plan.out.moves == LineMoves::channel_vectors)
        take_channel_vectors<T>(share, out);
    else if (share.plan.out.moves == LineMoves::token_vectors)
        take_token_vectors<T>(share, out);
    else
        take_elements<T>(share, out);
}

// This brings the states of the rows that begin in the tile or in the places before it.
template <typename T>
HIPCONV_INLINE void bring_states(const LineShare<T>& share) {
    const LinesPlan& plan = share.plan;
    const Sequences& states = share.in.initial_states;
    const int past = share.in.width - 1, lines = 1 << plan.line_bits, places = 1 << plan.place_bits;
    const int in_reach = share.tile.skipped + places - 1;
    const int rows = (plan.of_pitch ? quotient(in_reach, plan.of_pitch) : in_reach >= plan.pitch ? 1 : 0) + 1;
    const int all = rows * past << plan.line_bits;
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kLineThreads) {
        const int rest = plan.states_by_channel ? i >> plan.line_bits : quotient(i, plan.of_past);
        const int c = plan.states_by_channel ? i & (lines - 1) : rest & (lines - 1);
        const int row = plan.states_by_channel ? quotient(rest, plan.of_past) : rest >> plan.line_bits;
        const int column = (plan.states_by_channel ? rest : i) - (plan.states_by_channel ? row : rest) * past;
        const int n = row * plan.pitch + plan.head - past + column - share.tile.skipped;
        if (n < -kLineBefore || n >= places || share.tile.first_row + row >= share.in.batch || share.channels_left(c) <= 0)
            continue;
        *reinterpret_cast<T*>(share.at(line_of_channel(plan, c), n)) =
            *share.token(share.row(states, plan.states, c), plan.states, {row, column, true});
    }
}

}  // namespace hipconv
