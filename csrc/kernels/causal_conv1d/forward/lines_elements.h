// Elements of memory, and vectors that begin and end anywhere in short rows, to the lines of LDS and back (lines_move.h).
#pragma once

#include "lines_share.h"

namespace hipconv {

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

// This calls move(row, e, count, cursor) for the vectors of packed rows: the vector is that of elements e and on of the `count`
// that the block has of a batch row; where e is negative or the end is past count, it has only a part of it. The cursor goes
// through the places of its elements.
template <typename T>
struct RowCursor {
    const LineShare<T>& share;
    int c, t, first_place;
    char* at;

    HIPCONV_INLINE void go_on() {
        at += sizeof(T);
        if (++t < share.in.seqlen) return;
        t = 0;
        at = share.at(line_of_channel(share.plan, ++c), first_place);
    }
};

template <typename T, typename Move>
HIPCONV_INLINE void for_packed_rows(const LineShare<T>& share, const Sequences& s, const LineTensor& how, Move move) {
    constexpr int kVector = kVectorOf<T>;
    const LinesPlan& plan = share.plan;
    const int all = plan.made / plan.pitch * how.granules, seqlen = share.in.seqlen;
    const int channels = share.channels_left(0) >> plan.line_bits ? 1 << plan.line_bits : share.channels_left(0);
    T* const first = share.row(s, how, 0);
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kLineThreads) {
        const int r = quotient(i, how.of_granules);
        T* const row = share.token(first, how, {r, 0, true});
        const int e = (i - r * how.granules) * kVector - static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
        const int count = channels * seqlen;
        if (share.tile.first_row + r >= share.in.batch || e >= count) continue;
        const int c = quotient(e + kVector * seqlen, plan.of_seqlen) - kVector, place = r * plan.pitch + plan.head;
        const int t = e - c * seqlen;
        move(row, e, count, RowCursor<T>{share, c, t, place, share.at(line_of_channel(plan, c), place + t)});
    }
}

template <typename T>
HIPCONV_INLINE void bring_packed_rows(const LineShare<T>& share) {
    constexpr int kVector = kVectorOf<T>;
    for_packed_rows<T>(share, share.in.x, share.plan.x, [](const T* row, int e, int count, RowCursor<T> cursor) {
        const bool whole = e >= 0 && e + kVector <= count;
        const Words4 vector = whole ? *reinterpret_cast<const Words4*>(row + e) : load_part<T, kVector>(row, e, count);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            if (i > 0) cursor.go_on();
            const uint32_t bits = word(vector, i / kWordElements<T>) >> (i % kWordElements<T> * 16);
            if (whole || (e + i >= 0 && e + i < count)) *reinterpret_cast<BitsOf<T>*>(cursor.at) = static_cast<BitsOf<T>>(bits);
        }
    });
}

template <typename T>
HIPCONV_INLINE void take_packed_rows(const LineShare<T>& share, const Sequences& out) {
    constexpr int kVector = kVectorOf<T>;
    for_packed_rows<T>(share, out, share.plan.out, [](T* row, int e, int count, RowCursor<T> cursor) {
        const bool whole = e >= 0 && e + kVector <= count;
        Words4 vector{};
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            if (i > 0) cursor.go_on();
            uint32_t bits = 0;
            if (whole || (e + i >= 0 && e + i < count)) bits = *reinterpret_cast<const BitsOf<T>*>(cursor.at);
            const int w = i / kWordElements<T>;
            set_word(vector, w, i % kWordElements<T> ? word(vector, w) | bits << 16 : bits);
        }
        if (whole)
            *reinterpret_cast<Words4*>(row + e) = vector;
        else
            store_part<T, kVector>(row, e, count, vector);
    });
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

}  // namespace hipconv
