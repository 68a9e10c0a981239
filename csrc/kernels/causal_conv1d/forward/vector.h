// The two channel-first kernels "vector": one is for whole rows (vector.cu), the other for any rows (vector_any.cu).
#pragma once

#include "kernels.h"
#include "launch/taper.h"

namespace hipconv {

constexpr int kVectorThreads = 128;

// This plan says how a launch for whole rows divides the work. A block is blockDim.x vectors of tokens by blockDim.y channels.
// The items of a channel are the stretches of blockDim.x vectors of each of its sequences, one sequence after another; a thread
// makes its vector of some of them.
struct VectorPlan {
    Taper taper;                 // rows are groups of blockDim.y channels
    uint32_t stretches;          // of a sequence
    int32_t stretch_tokens;      // of one stretch
    int32_t sequence_tokens;     // of all stretches of a sequence: its length rounded up
    int64_t x_batch, out_batch;  // bytes from sequence to sequence
    uint32_t x_row, out_row;     // bytes from channel to channel
};

// This one says how a launch for any rows does. A block is blockDim.x vectors of tokens by blockDim.y rows. Its items are groups
// of blockDim.y neighbouring rows: channels of one sequence or, without ids, of one sequence after another. A thread makes the
// same vector of each of its rows.
struct VectorAnyPlan {
    Taper taper;               // rows are stretches; with ids, those of each sequence
    uint32_t stretches;        // of a row
    uint32_t rows;             // that a stretch has
    int32_t channels_on;       // from a thread's row to its next one, besides whole sequences
    int64_t x_on, out_on;      // the same in bytes, whole sequences included
    int64_t x_wrap, out_wrap;  // what is added where the channels pass the last
    uint32_t boundary;         // 15 where vectors lie on boundaries of 16 bytes of out, 0 where they count from the row's start
    uint32_t full_end;         // a vector that begins on a boundary is full if it begins before this token
    uint64_t x_begin, x_end;   // the addresses between which x may be read in whole vectors
    int32_t last_inner_x;      // the granules around a vector and its halo lie in its own row if it begins no later
};

// Tells whether all rows of a tensor begin on a 16-byte boundary.
inline bool begins_are_aligned(const Sequences& s, DType dtype) {
    const int tokens = 16 / element_bytes(dtype);
    return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
}

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
