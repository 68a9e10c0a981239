// Whole vectors of memory, to the lines of LDS and back (lines_move.h).
//
// Loads of a tile are all under way before the first of them is put into LDS. Vectors of channels come two tokens at a time in
// 16 bits, so that a word of LDS is written at once.
#pragma once

#include "lines_share.h"

namespace hipconv {

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
                    set_word(vector, j,
                             u ? upper_halves(words[2 * j], words[2 * j + 1]) : lower_halves(words[2 * j], words[2 * j + 1]));
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

// ---- vectors of tokens, which lie in vectors of places -----------------------------------------------------------------

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

}  // namespace hipconv
