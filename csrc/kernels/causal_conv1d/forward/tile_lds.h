// This is how the kernel "tile" by way of LDS (tile_lds_kernel.h) cuts tiles out of memory: its plan, and what moves tiles.
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/forward.h"
#include "lines.h"
#include "vector_parts.h"

namespace hipconv {

// A block's threads, and the longest run, in tokens: AMD's cards have less LDS for a block, and want more waves of it. Runs of
// even length meet in LDS banks, so that the longest is a power of two and one. The shortest one that is not a sequence is
// longer than any filter.
constexpr int lds_threads(int element_bytes) { return kHasPredicates ? 128 : 512 / element_bytes; }
constexpr int longest_lds_run(int element_bytes) { return !kHasPredicates ? 17 : element_bytes == 2 ? 65 : 33; }
constexpr int kShortestRun = 9;
constexpr int kTokensOfStart = 32;                                  // take as long as what a thread does before its first
constexpr int kRunBytes = lds_threads(2) * 2 * longest_lds_run(2);  // of a tile that all threads make
constexpr int kInBytes = kRunBytes * 5 / 4 / 16 * 16;               // with the tokens before, and with gaps
constexpr int kOutBytes = kHasPredicates ? kInBytes : kRunBytes * 9 / 8 / 16 * 16;
constexpr int kMostTokens = kHasPredicates ? 3200 : 1664;  // of a tile, each sequence's rounded up
constexpr int kMostLds = kInBytes + kOutBytes + kMostTokens + 272;
template <typename T>
constexpr int kTileThreadsOf = lds_threads(sizeof(T));
constexpr int lds_tile_blocks(int width) {  // that a multiprocessor has registers for
    if (!kHasPredicates) return 2;
    return width <= 4 ? 8 : width <= 6 ? 7 : 6;
}
static_assert(lds_threads(4) * 4 * longest_lds_run(4) <= kInBytes, "a tile of floats has room");

// Memory comes and goes in pieces: an inner axis, channels or tokens, along which elements are neighbours, and if nothing
// else lies in between, all of the other axis, and all sequences of a tile.
enum class LdsPieces : int32_t { lines, sequences, tiles };

// Tells how a tensor lies in memory and in LDS, and how threads share its pieces. Steps are bytes.
struct LdsTensor {
    LdsPieces pieces;
    bool along_tokens;  // is the inner axis
    bool has_edges;     // where vectors hold something else
    bool by_elements;   // because elements lie apart, or pieces are short
    int32_t channel_step, token_step, lds_channel_step, lds_token_step, lds_batch_step;
    int64_t batch_step;
    int32_t inner, lines;    // elements of a line; lines of a sequence in a tile
    int32_t lanes, at_once;  // for a piece; pieces at a time
    uint32_t of_inner, of_lines, of_lanes;
    // A thread may have some vectors of a piece. From a piece to the one that is `at_once` further on; where pieces are lines
    // of several sequences, by so many lines, and what is added where these pass the last one of a sequence.
    bool repeats, wraps;
    int32_t lines_on, lds_step, lds_wrap;
    int64_t step, wrap;
    int64_t reach_back, reach_on;  // from a tile's first element to the ends of its vectors

    HIPCONV_INLINE int line_step() const { return along_tokens ? channel_step : token_step; }
    HIPCONV_INLINE int lds_line_step() const { return along_tokens ? lds_channel_step : lds_token_step; }
    HIPCONV_INLINE int inner_step() const { return along_tokens ? token_step : channel_step; }
};

struct LdsPlan {
    int32_t channels, channels_on, runs;    // of a tile; from tile to tile; of a tile
    int32_t run, sequence_runs, sequences;  // tokens of a run; runs of a sequence in a tile; sequences of a tile
    int32_t at_once, rounds;                // sequences that threads make at a time, so many times
    int32_t tokens, tokens_on;              // of a sequence in a tile; from tile to tile
    bool tokens_first;                      // neighbouring threads have neighbouring runs, and not channels
    bool lies_apart;                        // lines do in LDS, though they do not in memory
    int32_t tap_groups;                     // of a sequence in a tile
    uint32_t of_channels, of_runs, of_run, of_sequence_runs, of_at_once, of_tap_groups;
    uint32_t blocks_a_sequence, all_blocks;  // along tokens and sequences
    uint64_t of_blocks;                      // the reciprocal of the first
    int64_t groups;                          // along channels
    LdsTensor x, out;
    int32_t results_at, differs_at;  // in LDS, in vectors
    int64_t states_on;               // from the initial state of a sequence to that of the next round's, in elements
    uint64_t x_begin, x_end;         // between which elements of x lie: addresses; of a plan that is kept, counted from x
};

// A launch has one parameter, so that all of it can be read when it is needed (first_parameter_again).
struct LdsCall : CausalConv1dFwdParams {
    LdsPlan plan;
};

// Launches the instance for a type and the call's width; `direct` ones read x past LDS. Each type has a file of its own.
template <typename T>
void launch_tile_lds(const LdsCall& call, dim3 grid, bool direct, int shared, hipStream_t stream);

// A vector of a piece in memory and in LDS. The piece's bytes are those from `begin` to `end`, counted from there.
struct LdsVector {
    char* memory;
    char* lds;
    int begin, end;
};

// A tile of a tensor.
struct LdsPart {
    static constexpr int kTogether = 4;  // vectors

    const LdsTensor& how;
    char* memory;  // that of the tile's first token, those before a run included
    char* lds;
    int inner, lines, sequences;  // that it has
    int size;                     // bytes of an element

    HIPCONV_INLINE int pieces() const {
        return how.pieces == LdsPieces::lines       ? (sequences > 1 ? how.lines * sequences : lines)
               : how.pieces == LdsPieces::sequences ? sequences
                                                    : 1;
    }
    HIPCONV_INLINE int piece_bytes() const {
        int bytes = inner * size;
        if (how.pieces != LdsPieces::lines) bytes += (lines - 1) * how.lds_line_step();
        return how.pieces == LdsPieces::tiles ? bytes + (sequences - 1) * how.lds_batch_step : bytes;
    }
    HIPCONV_INLINE int line_of(int number) const {
        return how.pieces != LdsPieces::lines ? 0
               : sequences > 1                ? number - quotient(number, how.of_lines) * how.lines
                                              : number;
    }
    // The aligned vector `at` bytes from the one in which a piece begins: the piece at `from`, which has `place` in LDS.
    static HIPCONV_INLINE LdsVector vector_of(char* from, char* place, int at, int bytes) {
        at -= static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
        return {from + at, place + at, -at, bytes - at};
    }
    // The first vector of a piece.
    HIPCONV_INLINE LdsVector first_vector(int number, int bytes) const {
        const int s = how.pieces != LdsPieces::lines ? number : sequences > 1 ? quotient(number, how.of_lines) : 0;
        const int line = how.pieces == LdsPieces::lines ? number - s * how.lines : 0;
        return vector_of(memory + int64_t{line} * how.line_step() + s * how.batch_step,
                         lds + line * how.lds_line_step() + s * how.lds_batch_step, 0, bytes);
    }
    // Calls f(vector) for the vectors of this thread, or only for those that lie in a piece as a whole. Mostly a piece has no
    // more of them than a block has threads: then a thread has one of it at most, and its walk has few instructions.
    // Some of them go together, by f.some(vectors, there), if it is there to be called.
    template <int kThreads, bool kOnlyWhole, bool kSomeTogether, typename F>
    HIPCONV_INLINE void for_vectors(F f) const {
        const int thread = static_cast<int>(threadIdx.x), row = quotient(thread, how.of_lanes), lane = thread - row * how.lanes;
        const int end = pieces(), bytes = piece_bytes(), begin = lane * 16;
        const int at_end = kOnlyWhole ? bytes - 15 : bytes;
        if (row >= how.at_once || row >= end || at_end <= 0) return;
        const LdsVector first = first_vector(row, 0);
        char *from = first.memory + first.begin, *place = first.lds + first.begin;
        if (how.repeats) {  // then all threads have vectors of one piece
            constexpr int kStep = kThreads * 16;
            int line = line_of(row);
            for (int number = row; number < end; number += how.at_once) {
                int at = begin - static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
                if (kOnlyWhole && at < 0) at += kStep;
                char *own = from + at, *lds_own = place + at;
                int left = line < lines ? at_end - at : 0;
                const auto vector = [&](int k) -> LdsVector {
                    const int own_at = at_end - left + k * kStep;
                    return {own + k * kStep, lds_own + k * kStep, -own_at, bytes - own_at};
                };
                const auto go_on = [&](int count) {
                    own += count * kStep;
                    lds_own += count * kStep;
                    left -= count * kStep;
                };
                if constexpr (kSomeTogether) {
#pragma unroll 1
                    while (left > (kTogether - 1) * kStep) {
                        const LdsVector vectors[kTogether] = {vector(0), vector(1), vector(2), vector(3)};
                        f.some(vectors, {true, true, true, true});
                        go_on(kTogether);
                    }
                }
#pragma unroll 1
                while (left > 0) {
                    f(vector(0));
                    go_on(1);
                }
                from += how.step;
                place += how.lds_step;
                line += how.lines_on;
                if (line < how.lines) continue;
                line -= how.lines;
                from += how.wrap;
                place += how.lds_wrap;
            }
            return;
        }
        // A piece that begins so many bytes behind a boundary, from `least` on and up to `most`, has this lane's vector.
        const int least = begin - at_end + 1, most = kOnlyWhole && lane == 0 ? 0 : 15;
        if (least > most) return;
        from += begin;
        place += begin;
        const auto has_vector = [&] {
            const int back = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
            return kOnlyWhole ? static_cast<uint32_t>(back - least) <= static_cast<uint32_t>(most - least) : back >= least;
        };
        const auto vector = [&]() -> LdsVector {
            const int back = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15), at = begin - back;
            return {from - back, place - back, -at, bytes - at};
        };
        const auto go_on = [&] {
            from += how.step;
            place += how.lds_step;
        };
        int number = row, line = line_of(row);
        if (how.wraps) {
            for (; number < end; number += how.at_once) {
                if (line < lines && has_vector()) f(vector());
                go_on();
                line += how.lines_on;
                if (line < how.lines) continue;
                line -= how.lines;
                from += how.wrap;
                place += how.lds_wrap;
            }
            return;
        }
        if (line >= lines) return;  // nor has it any other
        if constexpr (kSomeTogether) {
            for (const int last = end - (kTogether - 1) * how.at_once; number < last; number += kTogether * how.at_once) {
                LdsVector vectors[kTogether];
                bool there[kTogether];
#pragma unroll
                for (int k = 0; k < kTogether; ++k) {
                    vectors[k] = vector();
                    vectors[k].memory = global_pointer<char>(reinterpret_cast<uintptr_t>(from) & ~uintptr_t{15});  // shorter
                    there[k] = has_vector();
                    go_on();
                }
                f.some(vectors, there);
            }
        }
        for (; number < end; number += how.at_once) {
            if (has_vector()) f(vector());
            go_on();
        }
    }
    // Calls f(vector) for the first and last vectors of pieces that hold something else, too. A thread has whole pieces.
    template <int kThreads, typename F>
    HIPCONV_INLINE void for_edges(F f) const {
        const int all = pieces(), bytes = piece_bytes();
        for (int number = static_cast<int>(threadIdx.x); number < all; number += kThreads) {
            if (line_of(number) >= lines) continue;
            const LdsVector v = first_vector(number, bytes);
            if (v.begin > 0 || v.end < 16) f(v);
            const int last = v.end & ~15;
            if (last > 0 && last < v.end) f(LdsVector{v.memory + last, v.lds + last, -last, v.end - last});
        }
    }
    // Tells whether all vectors lie between two addresses, were the tile a whole one.
    HIPCONV_INLINE bool lies_between(uint64_t begin, uint64_t end) const {
        const uint64_t own = reinterpret_cast<uint64_t>(memory);
        return own - how.reach_back >= begin && own + how.reach_on <= end;
    }
    // Calls f(memory, lds) for the elements of this thread.
    template <typename T, int kThreads, typename F>
    HIPCONV_INLINE void for_elements(F f) const {
        const int all = pieces() * how.inner;
        for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
            const int number = quotient(i, how.of_inner), e = i - number * how.inner;
            const LdsVector first = first_vector(number, 0);
            if (e < inner && line_of(number) < lines)
                f(global_address<T>(first.memory + first.begin + int64_t{e} * how.inner_step()),
                  reinterpret_cast<T*>(first.lds + first.begin) + e);
        }
    }
};

// These bring vectors to LDS, and take them away.
struct BringVectors {
    HIPCONV_INLINE void operator()(const LdsVector& v) const {
        if constexpr (kCopiesPastRegisters)
            copy_later(reinterpret_cast<Words4*>(v.lds), v.memory, false);
        else
            *reinterpret_cast<Words4*>(v.lds) = *global_address<const Words4>(v.memory);
    }
    template <int kCount>
    HIPCONV_INLINE void some(const LdsVector (&vectors)[kCount], const bool (&there)[kCount]) const {
        if constexpr (kCopiesPastRegisters) {
#pragma unroll
            for (int k = 0; k < kCount; ++k)
                copy_later_if(there[k], reinterpret_cast<Words4*>(vectors[k].lds), vectors[k].memory);
        } else {
            Words4 words[kCount];
#pragma unroll
            for (int k = 0; k < kCount; ++k)
                if (there[k]) words[k] = *global_address<const Words4>(vectors[k].memory);
#pragma unroll
            for (int k = 0; k < kCount; ++k)
                if (there[k]) *reinterpret_cast<Words4*>(vectors[k].lds) = words[k];
        }
    }
};
struct TakeVectors {
    HIPCONV_INLINE void operator()(const LdsVector& v) const {
        *global_address<Words4>(v.memory) = *reinterpret_cast<const Words4*>(v.lds);
    }
    template <int kCount>
    HIPCONV_INLINE void some(const LdsVector (&vectors)[kCount], const bool (&there)[kCount]) const {
        Words4 words[kCount];
#pragma unroll
        for (int k = 0; k < kCount; ++k)
            if (there[k]) words[k] = *reinterpret_cast<const Words4*>(vectors[k].lds);
#pragma unroll
        for (int k = 0; k < kCount; ++k)
            if (there[k]) *global_address<Words4>(vectors[k].memory) = words[k];
    }
};

// Brings x to LDS. Vectors that reach out of x's memory come in elements.
template <typename T>
HIPCONV_INLINE void bring_tile(const LdsPart& part, uint64_t x_begin, uint64_t x_end) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr BringVectors bring;
    if (part.how.by_elements) {
        part.for_elements<T, kTileThreadsOf<T>>([](const T* memory, T* lds) { *lds = *memory; });
        return;
    }
    if (part.lies_between(x_begin, x_end)) {
        part.for_vectors<kTileThreadsOf<T>, false, true>(bring);
    } else {
        part.for_vectors<kTileThreadsOf<T>, false, false>([&](const LdsVector& v) {
            const uint64_t from = reinterpret_cast<uint64_t>(v.memory);
            if (from >= x_begin && from + 16 <= x_end) return bring(v);
#pragma unroll 1
            for (int byte = v.begin > 0 ? v.begin : 0; byte < 16 && byte < v.end; byte += kSize)
                *reinterpret_cast<T*>(v.lds + byte) = *global_address<const T>(v.memory + byte);
        });
    }
    if constexpr (kCopiesPastRegisters) close_copies();
}

// Takes the bytes of a vector from `begin` to `end` away, in the widest words that they have.
template <typename T>
HIPCONV_INLINE void take_part_of_vector(const LdsVector& v, int begin, int end) {
    const auto take = [&](auto word) {
        using Word = decltype(word);
        *global_address<Word>(v.memory + begin) = *reinterpret_cast<const Word*>(v.lds + begin);
        begin += static_cast<int>(sizeof(Word));
    };
    if (sizeof(T) == 2 && begin % 4 != 0) take(uint16_t{});
    if (begin % 8 != 0 && begin + 4 <= end) take(uint32_t{});
    if (begin + 8 <= end) take(Words2{});
    if (begin + 4 <= end) take(uint32_t{});
    if (sizeof(T) == 2 && begin < end) take(uint16_t{});
}

// Takes outputs away; of a piece's first or last vectors, which hold something else, only where they are at an end of a row.
template <typename T>
HIPCONV_INLINE void take_tile(const LdsPart& part, bool has_first, bool has_last) {
    if (part.how.by_elements) {
        part.for_elements<T, kTileThreadsOf<T>>([](T* memory, const T* lds) { *memory = *lds; });
        return;
    }
    part.for_vectors<kTileThreadsOf<T>, true, true>(TakeVectors{});
    if (!part.how.has_edges || !(has_first || has_last)) return;
    part.for_edges<kTileThreadsOf<T>>([&](const LdsVector& v) {
        const bool is_first = v.begin > 0;
        if (is_first ? has_first : has_last) take_part_of_vector<T>(v, is_first ? v.begin : 0, v.end < 16 ? v.end : 16);
    });
}

}  // namespace hipconv
