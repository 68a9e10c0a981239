// This says how the backward kernel of short rows divides its work, and how tensors come to LDS.
#pragma once

#include "causal_conv1d/backward.h"
#include "device/arch.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kBwdRowsMaxWidth = 8;
constexpr int kBwdRowsThreads = 128;    // of a block, at most
constexpr int kBwdRowsLds = 16 * 1024;  // bytes of a block, at most
constexpr int kBwdRowsUnit = 16;        // bytes that a lane moves at a time
constexpr int kBwdRowsMostTokens = 8;

// Blocks of a compute unit, by the registers that a width needs, or by AMD's LDS.
constexpr int bwd_rows_blocks(int width) { return !kHasPredicates || width > 4 ? 4 : 5; }

// Tells how a tensor's part of a stage lies in memory and in LDS; steps are bytes. A flat one comes to LDS as it lies in
// memory, gaps among its elements included, in stretches: a stretch is the block's channels of a row, or, where rows follow
// each other, of all rows of the stage. In LDS a stretch begins as far behind a multiple of 16 bytes as in memory. Elsewhere
// each thread moves its own row, element by element.
struct BwdRowsTensor {
    int64_t d_memory, t_memory, row_memory;
    int32_t d_step, t_step, row_step;  // in LDS
    int32_t begin;                     // in LDS
    bool is_flat, rows_follow;
    bool has_gaps;       // among the elements of a flat stretch: of dx, elements go back one by one
    bool tokens_inside;  // channels are further apart than tokens
};

// These say what a call has.
enum BwdRowsFlags : uint32_t {
    kRowsSilu = 1,
    kRowsIds = 2,
    kRowsInitial = 4,
    kRowsGiveInitial = 8,
    kRowsFinal = 16,
    kRowsDxIsFlat = 32,
};

// A thread has a channel and, of each stage, `turns` rows. A block is `channels` by `rows` threads.
struct BwdRowsPlan {
    BwdRowsTensor x, dout, dx;  // dx may lie where dout does; unless it is flat, it is stored where it is made
    int32_t taps_begin;         // in LDS, where rows have ids
    int32_t channels, rows, turns;
    int32_t stages, all_stages;  // of a block; of the batch
    uint32_t groups, pieces;     // blocks along the channels and the batch: a piece has a row of the workspace
    int32_t lds_bytes;
    SmallDivisor of_row, of_line;  // a row's elements and those of its inner order, where dx has gaps
    uint32_t flags;                // of BwdRowsFlags
};

struct BwdRowsCall {  // the kernel's parameter, which it reads again (device/arch.h) rather than keep it in registers
    CausalConv1dBwdParams p;
    BwdRowsPlan plan;
};

}  // namespace hipconv
