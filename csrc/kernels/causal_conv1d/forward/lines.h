// The plan of the kernel "lines": how tokens and channels become tiles of LDS, and how memory is moved to and from them.
//
// The rows of a call are one stream, one after another. A row takes `pitch` places of it: its initial state's, its tokens', and
// empty ones where vectors want places that are multiples of their size. A tile is some channels of a stretch of the stream,
// which may begin and end within rows. In LDS a channel is a line: 8 places before the stretch, and the stretch.
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/forward.h"
#include "device/vec.h"

namespace hipconv {

constexpr int kLineThreads = 256;
constexpr int kLineRun = 16;    // places of a thread
constexpr int kLineBefore = 8;  // places
constexpr int kTilePlaces = kLineThreads * kLineRun;
constexpr int kLeastLineBits = 2, kMostLineBits = 6;  // of the lines of a tile
constexpr int kMostPlaces = kTilePlaces >> kLeastLineBits;

// Tells how a tensor's memory is moved: in vectors of 16 bytes along channels or tokens, or an element a lane, where lanes
// lie along channels, along tokens, or along the tokens of a row and then the next channel's row. Where such rows follow one
// another in memory, they are moved in aligned vectors, which begin and end anywhere in rows.
enum class LineMoves : int32_t { channel_vectors, token_vectors, channels, tokens, rows, packed_rows };

// Tells how a tensor is moved; the steps are bytes. Vectors are `aligned` to 16 bytes, or to less: of channels, which out
// has in words then, or of tokens.
struct LineTensor {
    LineMoves moves;
    bool aligned;
    int32_t channel_step, token_step;
    int32_t granules;  // vectors that the packed rows of a batch row take at most
    uint32_t of_granules;
    int64_t row_step, wrap_step;  // from row to row; from a row's last place to the next one's first
};

struct LinesPlan {
    int32_t line_bits, place_bits;  // of a tile
    int32_t vector_bits;  // channels whose lines lie apart, so that threads that have a vector each store side by side
    int32_t bytes;        // from line to line: an odd number of vectors
    int32_t pitch, head;  // places of a row; places before its first token
    int32_t made;         // places from tile to tile: all of them, or those of whole rows
    uint32_t of_pitch, of_seqlen, of_past;  // reciprocals
    uint64_t of_long_pitch;                 // a reciprocal for more places; zero where the pitch is one
    bool channels_first;                    // blocks that are neighbours have neighbouring channels
    bool states_by_channel;                 // so lie the states
    uint32_t tiles, tiles_a_block;
    uint32_t blocks, channel_blocks;  // along the stream and the channels
    LineTensor x, out, states;
};

// A launch has one parameter, so that all of it can be read when it is needed (first_parameter_again).
struct LinesCall : CausalConv1dFwdParams {
    LinesPlan plan;
};

// i / d = i * reciprocal(d) >> 31, if i * d < 2^31.
inline uint32_t reciprocal_of(int64_t d) { return static_cast<uint32_t>(((int64_t{1} << 31) + d - 1) / d); }
HIPCONV_INLINE int quotient(int i, uint32_t reciprocal) {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(i)) * reciprocal >> 31);
}
// The same with 2^64, for any i and d > 1 of 32 bits.
inline uint64_t long_reciprocal_of(uint32_t d) { return d > 1 ? ~uint64_t{0} / d + 1 : 0; }
HIPCONV_INLINE uint32_t long_quotient(uint32_t i, uint64_t reciprocal) {
    const uint64_t lower = static_cast<uint64_t>(i) * static_cast<uint32_t>(reciprocal) >> 32;
    return static_cast<uint32_t>((static_cast<uint64_t>(i) * static_cast<uint32_t>(reciprocal >> 32) + lower) >> 32);
}

// A place of the stream: a token of a row (counted from the tile's first), unless it holds none.
struct LinePlace {
    int32_t row, t;
    bool is_token;
};

// A tile of the stream.
struct LineTile {
    int32_t first_row, skipped;  // the row of the stretch's first place, and the places of that row before it
    bool within;                 // all of its places, and those before it, are tokens of one row

    HIPCONV_INLINE LineTile(const CausalConv1dInputs& in, const LinesPlan& plan, uint32_t tile) {
        const uint32_t first = tile * static_cast<uint32_t>(plan.made);
        const uint32_t row = plan.of_long_pitch ? long_quotient(first, plan.of_long_pitch) : first;
        first_row = static_cast<int32_t>(row);
        skipped = static_cast<int32_t>(first - row * static_cast<uint32_t>(plan.pitch));
        within = skipped >= plan.head + kLineBefore && skipped - plan.head + (1 << plan.place_bits) <= in.seqlen;
    }

    // Place n of the stretch, from -kLineBefore on. What lies before the stretch's first row is nothing.
    HIPCONV_INLINE LinePlace place(const CausalConv1dInputs& in, const LinesPlan& plan, int n) const {
        const int from_row = skipped + n;
        if (within) return {0, from_row - plan.head, true};
        const int row = plan.of_pitch ? quotient(from_row < 0 ? 0 : from_row, plan.of_pitch) : from_row >= plan.pitch ? 1 : 0;
        const int t = from_row - row * plan.pitch - plan.head;
        return {row, t, t >= 0 && t < in.seqlen && first_row + row < in.batch};
    }
};

// The line of a channel of the block, and the channel of a line.
HIPCONV_INLINE int line_of_channel(const LinesPlan& plan, int c) {
    return (c & ((1 << plan.vector_bits) - 1)) << (plan.line_bits - plan.vector_bits) | c >> plan.vector_bits;
}
HIPCONV_INLINE int channel_of_line(const LinesPlan& plan, int line) {
    const int bits = plan.line_bits - plan.vector_bits;
    return (line & ((1 << bits) - 1)) << plan.vector_bits | line >> bits;
}

LinesPlan lines_plan(const CausalConv1dFwdParams& p);  // without blocks where the kernel does not serve

}  // namespace hipconv
