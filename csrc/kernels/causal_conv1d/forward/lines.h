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

// How a tensor's memory is moved: in vectors of 16 bytes along channels or tokens, or an element a lane, where lanes lie along
// channels, along tokens, or along the tokens of a row and then the next channel's row.
enum class LineMoves : int32_t { channel_vectors, token_vectors, channels, tokens, rows };

HIPCONV_INLINE bool moves_vectors(LineMoves moves) {
    return moves == LineMoves::channel_vectors || moves == LineMoves::token_vectors;
}

// Vectors are `aligned` to 16 bytes, or to less: of channels, which out has in words then, or of tokens.
struct LineTensor {
    LineMoves moves;
    bool aligned;
};

struct LinesPlan {
    int32_t line_bits, place_bits;  // of a tile
    int32_t vector_bits;            // channels whose lines lie apart, so that threads that have a vector each store side by side
    int32_t bytes;                  // from line to line: an odd number of vectors
    int32_t pitch, head;            // places of a row; places before its first token
    int32_t made;                   // places from tile to tile: all of them, or those of whole rows
    uint32_t of_pitch, of_seqlen, of_past;  // reciprocals
    bool channels_first;                    // blocks that are neighbours have neighbouring channels
    bool states_by_channel;                 // so lie the states
    uint32_t tiles, channel_blocks, all_blocks;
    LineTensor x, out;
};

// i / d = i * reciprocal(d) >> 31, if i * d < 2^31.
inline uint32_t reciprocal_of(int64_t d) { return static_cast<uint32_t>(((int64_t{1} << 31) + d - 1) / d); }
HIPCONV_INLINE int quotient(int i, uint32_t reciprocal) {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(i)) * reciprocal >> 31);
}

// A place of the stream: a token of a row, unless it holds none.
struct LinePlace {
    int32_t b, t;
    bool is_token;
};

// A block's tile.
struct LineTile {
    int32_t first_row, skipped;  // the row of the stretch's first place, and the places of that row before it
    int32_t first_channel;

    HIPCONV_INLINE LineTile(const LinesPlan& plan, uint32_t block) {
        const uint32_t inner_blocks = plan.channels_first ? plan.channel_blocks : plan.tiles, outer = block / inner_blocks;
        const uint32_t inner = block - outer * inner_blocks, tile = plan.channels_first ? outer : inner;
        const uint32_t first = tile * static_cast<uint32_t>(plan.made);
        first_row = static_cast<int32_t>(first / static_cast<uint32_t>(plan.pitch));
        skipped = static_cast<int32_t>(first - static_cast<uint32_t>(first_row) * static_cast<uint32_t>(plan.pitch));
        first_channel = static_cast<int32_t>(plan.channels_first ? inner : outer) << plan.line_bits;
    }

    // Place n of the stretch, from -kLineBefore on. What lies before the stretch's first row is nothing.
    HIPCONV_INLINE LinePlace place(const CausalConv1dInputs& in, const LinesPlan& plan, int n) const {
        const int from_row = skipped + n;
        const int rows = plan.of_pitch ? quotient(from_row < 0 ? 0 : from_row, plan.of_pitch) : from_row >= plan.pitch ? 1 : 0;
        const int b = first_row + rows, t = from_row - rows * plan.pitch - plan.head;
        return {b, t, t >= 0 && t < in.seqlen && b < in.batch};
    }
};

// The line of a channel of the tile, and the channel of a line.
HIPCONV_INLINE int line_of_channel(const LinesPlan& plan, int c) {
    return (c & ((1 << plan.vector_bits) - 1)) << (plan.line_bits - plan.vector_bits) | c >> plan.vector_bits;
}
HIPCONV_INLINE int channel_of_line(const LinesPlan& plan, int line) {
    const int bits = plan.line_bits - plan.vector_bits;
    return (line & ((1 << bits) - 1)) << plan.vector_bits | line >> bits;
}

LinesPlan lines_plan(const CausalConv1dFwdParams& p);  // without blocks where the kernel does not serve

}  // namespace hipconv
