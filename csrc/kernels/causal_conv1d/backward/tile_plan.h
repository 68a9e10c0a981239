// This says how a launch of the channel-last backward divides its work.
#pragma once

#include "causal_conv1d/backward.h"
#include "device/arch.h"

namespace hipconv {

constexpr int kBwdTileMaxWidth = 8;
constexpr int kBwdTileThreads = 128;
constexpr int kBwdTileLanes = 32;    // the most lanes that a block is wide
constexpr int kBwdTileRows = 32;     // the most rows that a block has
constexpr int kBwdTileMaxRun = 128;  // tokens
constexpr int kBwdTileMinRun = 8;
constexpr int kBwdTileTapBytes = 2048;  // for the taps of the tokens of a block's runs
// A run has words of four tokens' taps from a multiple of four on, and zeros behind, so that eight tokens may be looked at.
HIPCONV_INLINE constexpr int bwd_tile_tap_words(int tokens) { return (tokens + 17) / 4; }
constexpr int kBwdTileTapWords = kBwdTileTapBytes / 4 + 5 * kBwdTileRows;

// Tells whether x and dout come to a lane through LDS; elsewhere a lane loads the tokens ahead into registers.
constexpr bool kBwdStages = kCopiesPastRegisters;

// The channels of a lane: eight bytes, or, where rings and loads ahead share the registers, what width 8 has registers for.
// Two of them where lanes are thin: that costs registers, not LDS, and vectors of them are aligned in most tensors.
HIPCONV_INLINE constexpr int bwd_tile_channels(int element_bytes, int width, bool thin) {
    return thin || (!kBwdStages && width > 4) ? 2 : 8 / element_bytes;
}

// The tokens that the mainloop does at a time: whole turns of a ring of the width.
HIPCONV_INLINE constexpr int bwd_tile_block(int width, bool thin) {
    if (thin) return width <= 2 ? 8 : width == 3 ? 6 : width == 4 ? 8 : width;
    return width <= 2 ? 4 : width;
}

// Blocks of a compute unit, by the registers that a width needs. (AMD's compiler overlaps more tokens.)
HIPCONV_INLINE constexpr int bwd_tile_blocks(int width, bool aligned) {
    if (!kHasPredicates) return width <= 1 ? 4 : 2;
    const int blocks = width <= 1 ? 6 : width <= 3 ? 5 : width <= 5 ? 4 : width <= 7 || aligned ? 3 : 2;
    return aligned || width % 2 == 0 || width == 7 ? blocks : blocks - 1;
}

// The same of thin lanes. Halves, each in a register, need some more.
HIPCONV_INLINE constexpr int bwd_tile_thin_blocks(int width, int element_bytes, bool halves) {
    if (element_bytes == 4) return width <= 1 ? 5 : width <= 3 || width == 5 ? 4 : 3;
    const int blocks = width <= 3 ? 5 : width <= 6 ? 4 : 3;
    return halves && (width <= 4 || width == 6) ? blocks - 1 : blocks;
}

// Tells whether thin lanes look at taps alone in blocks that see no state. (Pairs of two taps were no faster.)
HIPCONV_INLINE constexpr bool bwd_tile_sees_blocks(int width, bool halves) { return width >= (halves ? 2 : 3); }

// A block is blockDim.x lanes by blockDim.y rows; a row is one run of tokens. Where a sequence has fewer runs than the block
// has rows, the block takes several sequences. Short sequences that follow each other in memory are one row, in which the bytes
// of the taps end them.
struct BwdTilePlan {
    int run;                     // tokens
    uint32_t log2_runs_a_block;  // of one sequence
    uint32_t sequences_a_block, blocks_a_sequence;
    uint32_t blocks;                     // of all sequences: the rows of the workspace
    uint32_t period;                     // the tokens of each sequence where all lie in one row, else 0
    int64_t x_step, dout_step, dx_step;  // bytes from token to token
    uint32_t log2_channels;              // of a block
    uint32_t flags;                      // of BwdTileFlags
};

// These say what a call has.
enum BwdTileFlags : uint32_t {
    kBwdSilu = 1,
    kBwdTaps = 2,  // bytes say which taps count
    kBwdInitial = 4,
    kBwdGivesInitial = 8,
    kBwdFinal = 16,
    kBwdPacked = 32,      // load_packed serves weight and bias
    kBwdAllRowsEnd = 64,  // rows of all sequences may end where the tensor does
    // Every thin lane's channels of x, dout and dx are an aligned vector.
    kBwdXHasVectors = 128,
    kBwdDoutHasVectors = 256,
    kBwdDxHasVectors = 512,
    kBwdIdsInQuads = 1024,  // bwd_taps_of_quad serves
};

struct BwdTileCall {  // the kernel's parameter, which it reads again (device/arch.h) rather than keep it in registers
    CausalConv1dBwdParams p;
    BwdTilePlan plan;
    int64_t groups;        // blocks along the channels
    unsigned lanes, rows;  // of a block
    bool thin;             // lanes have two channels, where others have more
    bool has_pairs;        // every pair of channels is an aligned vector
    bool aligned;          // every vector of every token lies at a multiple of its size
};

}  // namespace hipconv
