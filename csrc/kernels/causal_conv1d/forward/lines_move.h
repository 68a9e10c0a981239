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
    char* lines;

    HIPCONV_INLINE char* at(int line, int n) const {
        return lines + line * plan.bytes + (kLineBefore + n) * static_cast<int>(sizeof(T));
    }
    HIPCONV_INLINE int channels_left(int c) const { return in.dim - tile.first_channel - c; }
    HIPCONV_INLINE T* address(const Sequences& s, int c, LinePlace at) const {
        return global_pointer<T>(s.data) + at.b * s.batch_stride + (tile.first_channel + c) * s.dim_stride +
               at.t * s.seqlen_stride;
    }
};

// This loads 16 bytes from the address of an element. Nothing beyond the words that hold them is read, nor a word behind them of
// which they need nothing.
template <typename T>
HIPCONV_INLINE Words4 load_anywhere(const T* from, bool aligned) {
    if (aligned) return *reinterpret_cast<const Words4*>(from);
    if constexpr (kUnalignedVectors) {
        return load_unaligned<Words4>(reinterpret_cast<const char*>(from));
    } else {
        const uint32_t bytes = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 2;
        const uint32_t* const words = reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(from) - bytes);
        uint32_t five[5] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) five[k] = words[k];
        if (sizeof(T) == 2 && bytes != 0) five[4] = *reinterpret_cast<const uint16_t*>(words + 4);
        Words4 all{};
#pragma unroll
        for (int k = 0; k < 4; ++k) set_word(all, k, sizeof(T) == 2 ? shifted_right(five[k], five[k + 1], 8 * bytes) : five[k]);
        return all;
    }
}

// ---- vectors of channels: an item is a vector of one or two neighbouring places -------------------------------------------

template <typename T>
struct ChannelItem {
    static constexpr int kPlaces = kWordElements<T>;
    Words4 tokens[kPlaces];
};

template <typename T>
HIPCONV_INLINE ChannelItem<T> load_channels(const LineShare<T>& share, int c, int n) {
    constexpr int kVector = kVectorOf<T>;
    ChannelItem<T> item{};
    const int left = share.channels_left(c);
#pragma unroll
    for (int k = 0; k < ChannelItem<T>::kPlaces; ++k) {
        const LinePlace place = share.tile.place(share.in, share.plan, n + k);
        if (!place.is_token || left <= 0) continue;
        const T* const from = share.address(share.in.x, c, place);
        item.tokens[k] = left >= kVector ? load_anywhere<T>(from, share.plan.x.aligned) : load_part<T, kVector>(from, 0, left);
    }
    return item;
}

template <typename T>
HIPCONV_INLINE void put_channels(const LineShare<T>& share, int c, int n, const ChannelItem<T>& item) {
#pragma unroll
    for (int i = 0; i < kVectorOf<T>; ++i) {
        char* const to = share.at((i << (share.plan.line_bits - share.plan.vector_bits)) + (c >> share.plan.vector_bits), n);
        uint32_t both = word(item.tokens[0], sizeof(T) == 4 ? i : i / 2);
        if constexpr (sizeof(T) == 2) {
            const uint32_t next = word(item.tokens[1], i / 2);
            both = i % 2 ? both >> 16 | (next & 0xffff0000u) : (both & 0xffffu) | next << 16;
        }
        *reinterpret_cast<uint32_t*>(to) = both;
    }
}

template <typename T>
HIPCONV_INLINE void bring_channel_vectors(const LineShare<T>& share) {
    constexpr int kVector = kVectorOf<T>, kPlaces = kWordElements<T>, kRounds = kTilePlaces / kLineThreads / kVector / kPlaces;
    const int bits = share.plan.line_bits - share.plan.vector_bits, thread = static_cast<int>(threadIdx.x);
    const int c = (thread & ((1 << bits) - 1)) * kVector, first = thread >> bits, step = kLineThreads >> bits;
    ChannelItem<T> own[kRounds], before{};
#pragma unroll
    for (int k = 0; k < kRounds; ++k) own[k] = load_channels<T>(share, c, (first + k * step) * kPlaces);
    const int n = (first + 1) * -kPlaces;  // the places before the stretch, the nearest first
    const bool has_before = n + kPlaces > 1 - share.in.width && n >= -kLineBefore;
    if (has_before) before = load_channels<T>(share, c, n);
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
    if (left <= 0) return;
#pragma unroll
    for (int k = 0; k < kRounds; ++k) {
        const int n = (first + k * step) * kPlaces;
        uint32_t words[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i)
            words[i] = *reinterpret_cast<const uint32_t*>(share.at((i << bits) + (c >> share.plan.vector_bits), n));
#pragma unroll
        for (int u = 0; u < kPlaces; ++u) {
            const LinePlace place = share.tile.place(share.in, share.plan, n + u);
            if (!place.is_token || n + u >= share.plan.made) continue;
            Words4 vector{};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (sizeof(T) == 4)
                    set_word(vector, j, words[j]);
                else
                    set_word(vector, j, u ? words[2 * j] >> 16 | (words[2 * j + 1] & 0xffff0000u)
                                          : (words[2 * j] & 0xffffu) | words[2 * j + 1] << 16);
            }
            T* const to = share.address(out, c, place);
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
HIPCONV_INLINE Words4 load_tokens(const LineShare<T>& share, int c, int n) {
    constexpr int kVector = kVectorOf<T>;
    const LinePlace place = share.tile.place(share.in, share.plan, n);
    if (!place.is_token || share.channels_left(c) <= 0) return Words4{};
    const T* const from = share.address(share.in.x, c, place);
    return place.t + kVector <= share.in.seqlen ? load_anywhere<T>(from, share.plan.x.aligned)
                                                : load_part<T, kVector>(from, 0, share.in.seqlen - place.t);
}

template <typename T>
HIPCONV_INLINE void bring_token_vectors(const LineShare<T>& share) {
    constexpr int kVector = kVectorOf<T>, kVectorBits = sizeof(T) == 2 ? 3 : 2, kRounds = kLineRun / kVector;
    constexpr int kBefore = kLineBefore / kVector;
    const int bits = share.plan.place_bits - kVectorBits, thread = static_cast<int>(threadIdx.x);
    const int n = (thread & ((1 << bits) - 1)) * kVector, first = thread >> bits, step = kLineThreads >> bits;
    Words4 own[kRounds], before{};
#pragma unroll
    for (int k = 0; k < kRounds; ++k) own[k] = load_tokens<T>(share, first + k * step, n);
    const int line = thread / kBefore, behind = (thread % kBefore + 1) * -kVector;
    const bool has_before = line < 1 << share.plan.line_bits;
    if (has_before) before = load_tokens<T>(share, line, behind);
#pragma unroll
    for (int k = 0; k < kRounds; ++k)
        *reinterpret_cast<Words4*>(share.at(line_of_channel(share.plan, first + k * step), n)) = own[k];
    if (has_before) *reinterpret_cast<Words4*>(share.at(line_of_channel(share.plan, line), behind)) = before;
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
#pragma unroll
    for (int k = 0; k < kRounds; ++k) {
        const int c = first + k * step;
        if (share.channels_left(c) <= 0) continue;
        T* const to = share.address(out, c, place);
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

// This calls move(c, n) for channels and places of the tile, an element at a time and lanes side by side along memory, and
// move.of_row(c, r, t) where they lie along rows.
template <typename T, typename Element, typename OfRow>
HIPCONV_INLINE void for_elements(const LineShare<T>& share, LineMoves moves, Element element, OfRow of_row) {
    const LinesPlan& plan = share.plan;
    const int thread = static_cast<int>(threadIdx.x), lines = 1 << plan.line_bits;
    if (moves == LineMoves::rows) {
        const int all = plan.made / plan.pitch * share.in.seqlen << plan.line_bits;
        for (int i = thread; i < all; i += kLineThreads) {
            const int rest = quotient(i, plan.of_seqlen), t = i - rest * share.in.seqlen;
            of_row(rest & (lines - 1), rest >> plan.line_bits, t);
        }
    } else if (moves == LineMoves::channels) {
        for (int i = thread; i < kTilePlaces; i += kLineThreads) element(i & (lines - 1), i >> plan.line_bits);
    } else {
        for (int i = thread; i < kTilePlaces; i += kLineThreads)
            element(i >> plan.place_bits, i & ((1 << plan.place_bits) - 1));
    }
}

template <typename T>
HIPCONV_INLINE void bring_elements(const LineShare<T>& share) {
    const auto bring = [&](int c, int n, LinePlace place) {
        if (!place.is_token || share.channels_left(c) <= 0) return;
        *reinterpret_cast<T*>(share.at(line_of_channel(share.plan, c), n)) = *share.address(share.in.x, c, place);
    };
    const auto element = [&](int c, int n) { bring(c, n, share.tile.place(share.in, share.plan, n)); };
    const auto of_row = [&](int c, int r, int t) {
        const int b = share.tile.first_row + r;
        bring(c, r * share.plan.pitch + share.plan.head + t, {b, t, b < share.in.batch});
    };
    for_elements<T>(share, share.plan.x.moves, element, of_row);
    if (share.tile.skipped > 0) {
        for (int i = static_cast<int>(threadIdx.x); i < kLineBefore << share.plan.line_bits; i += kLineThreads)
            element(i / kLineBefore, i % kLineBefore - kLineBefore);
    }
}

template <typename T>
HIPCONV_INLINE void take_elements(const LineShare<T>& share, const Sequences& out) {
    const auto take = [&](int c, int n, LinePlace place) {
        if (!place.is_token || share.channels_left(c) <= 0) return;
        *share.address(out, c, place) = *reinterpret_cast<const T*>(share.at(line_of_channel(share.plan, c), n));
    };
    const auto element = [&](int c, int n) {
        if (n < share.plan.made) take(c, n, share.tile.place(share.in, share.plan, n));
    };
    const auto of_row = [&](int c, int r, int t) {
        const int b = share.tile.first_row + r;
        take(c, r * share.plan.pitch + share.plan.head + t, {b, t, b < share.in.batch});
    };
    for_elements<T>(share, share.plan.out.moves, element, of_row);
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
        const int n = row * plan.pitch + plan.head - past + column - share.tile.skipped, b = share.tile.first_row + row;
        if (n < -kLineBefore || n >= places || b >= share.in.batch || share.channels_left(c) <= 0) continue;
        *reinterpret_cast<T*>(share.at(line_of_channel(plan, c), n)) = *share.address(states, c, {b, column, true});
    }
}

}  // namespace hipconv
