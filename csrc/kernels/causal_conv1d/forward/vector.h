// The two channel-first kernels "vector" divide their work in the same way. One is for whole rows (vector.cu), the other for
// any rows (vector_any.cu).
#pragma once

#include "kernels.h"
#include "launch/taper.h"

namespace hipconv {

constexpr int kVectorThreads = 128;

// This plan says how a launch divides the work. A block is blockDim.x vectors of tokens by blockDim.y channels. The items of a
// channel are the stretches of blockDim.x vectors of each of its sequences, one sequence after another; a thread makes its
// vector of some of them.
struct VectorPlan {
    Taper taper;                 // rows are groups of blockDim.y channels
    uint32_t stretches;          // of a sequence
    int32_t stretch_tokens;      // of one stretch
    int32_t sequence_tokens;     // of all stretches of a sequence: its length rounded up
    int64_t x_batch, out_batch;  // bytes from sequence to sequence
    uint32_t x_row, out_row;     // bytes from channel to channel
    // any rows:
    bool on_boundaries;           // vectors lie on out's 16-byte boundaries; if not, they count from the row's start
    uint64_t x_begin, x_end;      // the addresses between which x may be read in whole vectors
    uint64_t ids_begin, ids_end;  // the same of the sequence ids
    // The granules around a vector and its halo lie in the vector's own row if it begins no later.
    int32_t last_inner_x, last_inner_ids;
};

// This launches the kernel for any rows.
void launch_vector_any(const CausalConv1dFwdParams& params, const VectorPlan& plan, dim3 grid, dim3 block, bool early,
                       hipStream_t stream);

}  // namespace hipconv
