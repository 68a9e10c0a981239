// The backward kernel of whole rows (whole.cu) divides its work in this way: a thread walks through the steps of one channel,
// from the last to the first.
#pragma once

#include "causal_conv1d/backward.h"
#include "launch/taper.h"

namespace hipconv {

// The widths that it is compiled for, which models have, are 2 to this.
constexpr int kMaxBwdWholeWidth = 4;
constexpr bool bwd_whole_has_width(int width) { return width >= 2 && width <= kMaxBwdWholeWidth; }

// Blocks of a compute unit. This was measured on an H200, where many threads are worth more than registers. AMD's compiler is
// asked for five waves a SIMD.
constexpr int kBwdWholeBlocks = kHasPredicates ? 8 : 10;

template <typename T>
constexpr int kBwdWholeTokens = 16 / static_cast<int>(sizeof(T));  // of a lane, at a time

// The plan says how a launch divides the work. A block is blockDim.x lanes by blockDim.y channels. The items of a channel are
// the steps of its sequences, one sequence after another; a thread does a piece of them, from the last to the first.
struct BwdWholePlan {
    Taper taper;  // rows are groups of blockDim.y channels
    uint32_t steps_of_row;
    int32_t stretch, last_stretch;                         // tokens of a step, and those of a row before its last step
    int64_t back;                                          // bytes of a step
    int64_t x_batch, dout_batch, dx_batch;                 // bytes from sequence to sequence
    int64_t x_batch_back, dout_batch_back, dx_batch_back;  // from a step before a row to the last one of the sequence before
};

// The walk of a thread: its channel, and the step that it begins with.
struct BwdWholeWalk {
    int64_t d;
    bool has_channel;  // lanes that have none do the last one's work again: shuffles are for whole waves
    int32_t b, step;
    bool ends_row;  // nothing comes after that step
    int next_lane;  // of the wave: the row's next one, and after the last its first
};

HIPCONV_INLINE BwdWholeWalk bwd_whole_walk(const CausalConv1dInputs& in, const BwdWholePlan& plan, const Piece& piece) {
    BwdWholeWalk walk;
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

void launch_bwd_whole(const CausalConv1dBwdParams& params, const BwdWholePlan& plan, dim3 grid, dim3 block, hipStream_t stream);

}  // namespace hipconv
