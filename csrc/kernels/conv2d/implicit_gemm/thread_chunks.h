// The chunks of an operand's tile that each thread of a block loads.
#pragma once

#include "matrix/mma.h"

namespace hipconv {

// A thread loads chunk `chunk` of rows first_row, first_row + kThreads / 8, … of a tile. Lanes lie along a row's chunks, or,
// where neighbouring pixels are neighbours in memory, along rows.
struct ChunkOfThread {
    int first_row, chunk;
};

template <int kThreads>
HIPCONV_INLINE ChunkOfThread chunk_of_thread(int thread, bool lanes_along_rows) {
    constexpr int kRows = kThreads / kTileChunks;
    if (lanes_along_rows) return {thread % kRows, thread / kRows};
    return {thread / kTileChunks, thread % kTileChunks};
}

}  // namespace hipconv
