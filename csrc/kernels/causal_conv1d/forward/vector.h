// The two channel-first kernels "vector": one is for plain rows (vector.cu), the other for any rows (vector_any_kernel.h).
#pragma once

#include "kernels.h"
#include "launch/taper.h"

namespace hipconv {

constexpr int kVectorThreads = 128;

// These say where rows that are not whole vectors begin and end.
struct RowEdges {
    uint32_t boundary;        // 15 where vectors lie on boundaries of 16 bytes of out, 0 where they count from the row's start
    uint32_t full_end;        // a vector that begins on a boundary is full if it begins before this token
    uint64_t x_begin, x_end;  // the addresses between which x may be read in whole vectors
};

// The plan says how a launch for plain rows divides the work. A block is blockDim.x vectors of tokens by blockDim.y channels.
// The items of a channel are the stretches of blockDim.x vectors of each of its sequences, one sequence after another; a thread
// makes its vector of some of them.
struct VectorPlan {
    Taper taper;                 // rows are groups of blockDim.y channels
    uint32_t stretches;          // of a sequence
    int32_t stretch_tokens;      // of one stretch
    int32_t sequence_tokens;     // of all stretches of a sequence: its length rounded up
    int64_t x_batch, out_batch;  // bytes from sequence to sequence
    uint32_t x_row, out_row;     // bytes from channel to channel
    RowEdges edges;
};

// This one says how a launch for any rows does. A block is blockDim.x vectors of tokens by blockDim.y rows. Its items are
// groups of blockDim.y neighbouring rows: channels of one sequence or, without ids, of one sequence after another. A thread
// makes the same vector of each of its rows.
struct VectorAnyPlan {
    Taper taper;               // rows are stretches; with ids, those of each sequence
    uint32_t stretches;        // of a row
    uint32_t rows;             // that a stretch has
    int32_t channels_on;       // from a thread's row to its next one, besides whole sequences
    int64_t x_on, out_on;      // the same in bytes, whole sequences included
    int64_t x_wrap, out_wrap;  // what is added where the channels pass the last
    RowEdges edges;
    int32_t last_inner_x;  // the granules around a vector and its halo lie in its own row if it begins no later
};

// Tells whether every row of x lies in its 16 bytes as the same row of out does.
inline bool rows_lie_alike(const CausalConv1dFwdParams& p) {
    const int tokens = 16 / element_bytes(p.dtype);
    return reinterpret_cast<uintptr_t>(p.x.data) % 16 == reinterpret_cast<uintptr_t>(p.out.data) % 16 &&
           (p.x.dim_stride - p.out.dim_stride) % tokens == 0 && (p.x.batch_stride - p.out.batch_stride) % tokens == 0;
}

// A block's threads: `lanes` vectors of one row by `rows` rows. So many stretches cover a row.
struct Division {
    int lanes, rows;
    int64_t stretches;
    bool on_boundaries;
};
Division division_of(const CausalConv1dFwdParams& params, int64_t most_rows);
RowEdges edges_of(const CausalConv1dFwdParams& params, bool on_boundaries);

inline dim3 vector_grid(const Taper& taper) {
    const unsigned blocks = taper.blocks;
    return blocks <= kGridLimit ? dim3(blocks, 1, 1) : grid_of(kGridLimit, (blocks + kGridLimit - 1) / kGridLimit);
}

// Tells whether a launch begins while the one before it ends. An H200 gained 0.4 us with 256 blocks, which find room beside
// those of the launch before, and gained with 2048; with 1024 it lost 0.2 us.
inline bool begins_early(const Taper& taper) { return taper.blocks <= 512 || taper.blocks >= 2048; }

bool causal_conv1d_vector_any_serves(const CausalConv1dFwdParams& params);
void causal_conv1d_vector_any(const CausalConv1dFwdParams& params, hipStream_t stream);

}  // namespace hipconv
