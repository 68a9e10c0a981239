// The channel-first backward kernels divide their work in this way: a thread walks through the steps of one channel, from the
// last to the first.
#pragma once

#include "causal_conv1d/backward.h"
#include "launch/taper.h"

namespace hipconv {

constexpr int kBwdVectorThreads = 128;
constexpr int kBwdVectorLanes = 32;          // the most lanes of a row: a shuffle reaches no further on any card
constexpr int kBwdRaggedLanes = 8;           // the same of ragged rows, whose ends cost most: more steps have none
constexpr uint32_t kBwdVectorLog2Steps = 5;  // of the longest walk
constexpr int kPackedWidth = 4;              // whole rows of packed sequences have a kernel of their own at this width only

template <typename T>
constexpr int kBwdTokens = 16 / static_cast<int>(sizeof(T));  // of a thread, at a time

// This plan says how a launch divides the work. A block is blockDim.x lanes by blockDim.y channels. The items of a channel are
// the steps of its sequences, one sequence after another; a thread does a piece of them, from the last to the first.
struct BwdVectorPlan {
    Taper taper;  // rows are groups of blockDim.y channels
    uint32_t steps_of_row;
    int32_t stretch, last_stretch;          // tokens of a step, and those of a row before its last step
    int64_t back;                           // bytes of a step
    int64_t x_batch, dout_batch, dx_batch;  // bytes from sequence to sequence
    // from a step before a row to the last one of the sequence before
    int64_t x_batch_back, dout_batch_back, dx_batch_back, bits_batch_back;
    // ragged rows: vectors lie on x's 16-byte boundaries; if not, they count from the row's start
    bool on_boundaries;
};

// The walk of a thread: its channel, and the step that it begins with.
struct BwdVectorWalk {
    int64_t d;
    bool has_channel;  // lanes that have none do the last one's work again: shuffles are for whole waves
    int32_t b, step;
    bool ends_row;  // nothing comes after that step
    int next_lane;  // of the wave: the row's next one, and after the last its first
};

HIPCONV_INLINE BwdVectorWalk bwd_vector_walk(const CausalConv1dInputs& in, const BwdVectorPlan& plan, const Piece& piece) {
    BwdVectorWalk walk;
    walk.d = static_cast<int64_t>(piece.row) * blockDim.y + threadIdx.y;
    walk.has_channel = walk.d < in.dim;
    if (!walk.has_channel) walk.d = in.dim - 1;
    const uint32_t last = piece.first + static_cast<uint32_t>(piece.count) - 1;
    const uint32_t b = last / plan.steps_of_row;
    walk.b = static_cast<int32_t>(b);
    walk.step = static_cast<int32_t>(last - b * plan.steps_of_row);
    walk.ends_row = walk.step + 1 == static_cast<int32_t>(plan.steps_of_row);
    const uint32_t lane = (threadIdx.y * blockDim.x + threadIdx.x) % kWaveSize;
    walk.next_lane = static_cast<int>((lane & ~(blockDim.x - 1)) | ((lane + 1) & (blockDim.x - 1)));
    return walk;
}

// The row of the workspace that a walk leaves its sums in, from its channel on.
HIPCONV_INLINE float* bwd_vector_partials(const CausalConv1dBwdParams& p, const Piece& piece, int width, int64_t d) {
    return static_cast<float*>(p.partials) + static_cast<int64_t>(piece.number) * (width + 1) * p.in.dim + d;
}

// These launch the two kernels, each of which has a file of its own.
void launch_bwd_whole(const CausalConv1dBwdParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block,
                      hipStream_t stream);
void launch_bwd_ragged(const CausalConv1dBwdParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block,
                       hipStream_t stream);

}  // namespace hipconv
