// This says how the backward kernel of few channels divides its work, and how tensors come to LDS.
#pragma once

#include "causal_conv1d/backward.h"
#include "device/arch.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kBwdRunsMaxWidth = 8;
constexpr int kBwdRunsMostChannels = 16;
constexpr int kBwdRunsThreads = 128;                                  // of a block
constexpr int kBwdRunsLds = (kCopiesPastRegisters ? 40 : 20) * 1024;  // bytes of a block, at most
constexpr int kBwdRunsUnit = 16;                                      // bytes that a lane moves at a time
constexpr int kBwdRunsChunk = 8;     // tokens that a thread does at a time: a run has whole chunks
constexpr int kBwdRunsLongest = 64;  // tokens of a run

// Blocks of a compute unit, by the registers that a width needs, or by AMD's LDS.
constexpr int bwd_runs_blocks(int width) { return !kHasPredicates ? 3 : width <= 4 ? 5 : 4; }

// Tells how a tensor's part of a tile lies in memory and in LDS; steps are bytes. A flat one comes to LDS as it lies in memory,
// gaps among its tokens included, in stretches: a stretch is what the tile has of a row, or, where tokens are neighbours, of a
// channel of a row. Elsewhere tokens come to LDS one behind the other, by pieces of elements or units.
//
// In LDS a stretch is cut into runs. Each begins as far behind a multiple of 16 bytes as the stretch does in memory, and has
// the unit in which it ends for itself, which the next one begins with, too: so a run's elements lie at one step from each
// other, and the runs of a wave begin in banks of their own.
struct BwdRunsTensor {
    int64_t row_memory, d_memory, t_memory;
    int32_t t_step;        // in LDS, from token to token
    int32_t run, gap;      // in LDS: a run's bytes, and what lies between it and the next one
    int32_t stretch_step;  // in LDS
    int32_t begin, head;   // in LDS: of all stretches, and in front of a stretch's first run, for the tokens before it
    int32_t stretches;     // of a row
    bool is_flat;
    bool is_aligned;  // its stretches begin at multiples of 16
    int32_t pieces;   // of a token, where it is not flat
    SmallDivisor units_of_stretch, units_of_run, of_pieces;
};

// These say what a call has.
enum BwdRunsFlags : uint32_t {
    kRunsSilu = 1,
    kRunsIds = 2,
    kRunsInitial = 4,
    kRunsGiveInitial = 8,
    kRunsFinal = 16,
    kRunsWholeRows = 32,     // tiles are some whole rows; else each is some runs of a row
    kRunsDxHasUnits = 64,    // dx lies as dout does, so that it goes back in units
    kRunsDxIsAligned = 128,  // no unit of it is shared by two runs
    kRunsIdsInQuads = 256,   // bwd_taps_of_quad serves the ids
};

// A thread has a run of tokens of a channel of each tile: neighbouring lanes are neighbouring channels, then runs, then rows.
struct BwdRunsPlan {
    BwdRunsTensor x, dout, dx;       // in LDS, dx lies where dout did
    int32_t run, runs, rows;         // tokens of a run; runs of a tile's row; rows of a tile
    int32_t taps_begin, taps_pitch;  // in LDS, where rows have ids
    int32_t lds_bytes;
    int32_t tiles, tiles_of_row, stages;  // of the call; where rows are not whole; of a block
    uint32_t blocks;                      // a block has a row of the workspace
    SmallDivisor of_runs, of_channels, of_run, of_tokens, of_taps;
    uint32_t flags;  // of BwdRunsFlags
};

struct BwdRunsCall {  // the kernel's parameter, which it reads again (device/arch.h) rather than keep it in registers
    CausalConv1dBwdParams p;
    BwdRunsPlan plan;
};

void launch_bwd_runs_f16(const BwdRunsCall& call, void* stream);
void launch_bwd_runs_bf16(const BwdRunsCall& call, void* stream);
void launch_bwd_runs_f32(const BwdRunsCall& call, void* stream);

}  // namespace hipconv
