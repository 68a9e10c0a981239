// The kernel `staged` and the one that saves inputs for it in place share this: how a launch divides the work, and what a block
// finds out about the sequences of a tile.
//
// A tile has kTileTokens tokens, from a multiple of them on. The first outputs of a sequence, which may depend on its initial
// state, are made in one tile: where they lie in two, the later tile owns all of them, and the tile before ends early. So a
// slot is read and written by one block.
#pragma once

#include "causal_conv1d/prefill_schedule.h"
#include "thread.h"

namespace hipconv {

constexpr int kStagedThreads = 128;
constexpr int kTileTokens = 64;
constexpr int kMostTiles = 8;                 // of a stretch
constexpr int kHalo = 8;                      // tokens before a tile that LDS holds, too: more than any window reaches back
constexpr int kChannelLineBytes = 128;        // of a tile's channels, one token
constexpr int kUsualStagedWidth = 4;          // of models, which has an instance; the other widths share one
constexpr int kMostStagedWidth = kHalo;       // a window reaches width - 1 tokens back
constexpr int32_t kMostStagedSize = 1 << 30;  // so that sums of two tokens, or of two channels, are integers, too

constexpr int kWords = kTileTokens * kChannelLineBytes / 4 / kStagedThreads;  // of a tile that a thread moves
constexpr int kHaloWords = kHalo * kChannelLineBytes / 4 / kStagedThreads;

template <typename T>
struct StagedShape {
    static constexpr int kSize = static_cast<int>(sizeof(T));
    static constexpr int kChannels = kChannelLineBytes / kSize;
    static constexpr int kLanes = kChannels / 2;                                // a thread makes two channels
    static constexpr int kRun = 16 / kSize;                                     // tokens: a vector of a line of tokens
    static constexpr int kRuns = kTileTokens * kLanes / kStagedThreads / kRun;  // that a thread makes, one after another
    // A line of tokens is an odd number of vectors, so that lanes of different channels find theirs in different banks.
    static constexpr int kTokenLineBytes = (((kHalo + kTileTokens) * kSize + 15) / 16 | 1) * 16;
    static constexpr int kTokenLines = kTokenLineBytes * kChannels, kChannelLines = (kHalo + kTileTokens) * kChannelLineBytes;
    static constexpr int kVectors = (kTokenLines > kChannelLines ? kTokenLines : kChannelLines) / 16;
};

// Tells where a tile's elements are in LDS, in bytes.
template <typename T>
struct TileLayout {
    bool tokens_inner;

    HIPCONV_INLINE uint32_t line_bytes() const { return tokens_inner ? StagedShape<T>::kTokenLineBytes : kChannelLineBytes; }
    HIPCONV_INLINE uint32_t channel_step() const { return tokens_inner ? StagedShape<T>::kTokenLineBytes : sizeof(T); }
    HIPCONV_INLINE uint32_t token_step() const { return tokens_inner ? sizeof(T) : kChannelLineBytes; }
    // The lanes that share a line of a tile, with a vector or a word each, and a line of its halo; in powers of two.
    HIPCONV_INLINE int log2_lanes(bool vectors) const { return (tokens_inner && sizeof(T) == 4 ? 6 : 5) - (vectors ? 2 : 0); }
    HIPCONV_INLINE int log2_halo_lanes() const { return tokens_inner ? (sizeof(T) == 4 ? 3 : 2) : 5; }
};

// Two channels of a tile in LDS: neighbours where a line is channels; if a line is tokens, lines half a tile apart, as lanes
// that are neighbours find these in different banks.
template <typename T>
struct ChannelPair {
    int first, second;

    HIPCONV_INLINE ChannelPair(int lane, bool tokens_inner)
        : first(tokens_inner ? lane : 2 * lane), second(tokens_inner ? lane + StagedShape<T>::kLanes : 2 * lane + 1) {}
};

// Lines of x, or of outputs, have one of these forms in memory.
enum class LineForm : int32_t {
    vectors,  // whole vectors of 16 bytes begin where lines begin
    words,    // every line begins with a whole word
    shifted,  // some lines, of 16-bit elements, begin in the middle of a word
    elements  // a line's elements are not neighbours
};

// A block walks through a stretch of `tiles` tiles, for the channels of one tile. `tokens_inner` says whether a line of a tile,
// in memory and in LDS, is tokens of a channel; if not, it is channels of a token.
struct StagedPlan {
    uint32_t tiles, stretches;
    int32_t log2_tokens;  // of a stretch
    bool x_tokens_inner, out_tokens_inner;
    LineForm x_form, out_form;
    bool plain_indices;
    bool state_pairs;      // the window's columns, of 16 bits, are words of two neighbours
    bool starts_in_pairs;  // of channels of 16 bits, by rows of lanes
    StateForm state_form;  // of these: words of two channels of a column, or of two channels' columns
    // In place, a block's neighbour may have overwritten inputs, so they were saved: kHalo tokens before each stretch but the
    // first (laid out like x), and those before the end of the sequence that lives across its beginning.
    char *halos, *lasts;   // null where the outputs have memory of their own
    int32_t saved_tokens;  // of these kHalo, the last ones
    int32_t saved_dim;     // dim, rounded up to whole vectors

    bool by_rows;               // of lanes along tokens: rows_kernel.h
    int32_t channels_of_block;  // there
    bool alike;                 // rows of x and of the outputs begin equally far from a boundary of 16 bytes
    uint64_t x_begin, x_end;    // the addresses between which x may be read in whole vectors
};

// The kernel's parameter. Its members are read where they are needed: together they would fill a wave's scalar registers (AMD).
struct StagedCall {
    CausalConv1dVarlenParams params;
    StagedPlan plan;
};

constexpr uint32_t kBlocksAtOnce = 1024;  // about as many as a large card has at a time

// Tells whether a block may load its inputs before the launch that saves inputs (save.cu) has ended: so may the first blocks
// behind it, which would only wait. That launch changes no input, and lets the next one begin only when all that came before
// is done. The block's loads go past the first cache, and it calls wait_for_kernel_before() before it touches anything else.
__device__ __forceinline__ bool loads_early(const StagedCall& call) {
    if constexpr (!kHasPredicates) return false;
    return first_parameter_again(call).plan.halos &&
           (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x < kBlocksAtOnce;
}

// A block begins with this: it has a stretch, or finds that it comes after the last one. Where it `waits`, all that came before
// is done then.
__device__ __forceinline__ bool begin_stretch(const StagedCall& call, uint32_t& stretch, bool waits) {
    stretch = blockIdx.z * gridDim.y + blockIdx.y;
    if (stretch >= first_parameter_again(call).plan.stretches) return false;
    let_next_kernel_begin();
    if (waits) wait_for_kernel_before();
    return true;
}

HIPCONV_INLINE EitherIndices indices_of(const StagedCall& call) {
    return EitherIndices{first_parameter_again(call.params), first_parameter_again(call).plan.plain_indices};
}

// The most tokens that a window reaches back, in the instance that serves the width.
inline int most_past(const CausalConv1dVarlenParams& p) {
    return (p.width == kUsualStagedWidth ? p.width : kMostStagedWidth) - 1;
}

// Saves inputs before `staged` overwrites them.
void save_inputs(const CausalConv1dVarlenParams& p, const StagedPlan& plan, void* stream);
void save_inputs_of_rows(const StagedCall& call, void* stream);

// This is what a block knows of a tile's tokens. Bits count from its first token.
struct TileTokens {
    uint64_t live;                    // tokens of live sequences
    int32_t first, end;               // tokens that this tile owns; `first` may lie before the tile
    int32_t sequence, sequences_end;  // whose first outputs it makes
    bool has_runs;                    // some outputs are not among the first ones
};

HIPCONV_INLINE uint64_t lowest_bits_of_64(int32_t count) {
    return count <= 0 ? 0 : count < 64 ? (uint64_t{1} << count) - 1 : ~uint64_t{0};
}

// This counts the sequences that begin at a token or before. All lanes of a wave look at one sequence each, and find the same.
__device__ __forceinline__ int32_t sequences_begun(const EitherIndices& indices, int32_t token, int lane) {
    int32_t base = 0, span = indices.p.sequences;  // the last one that has begun, if any has, is one of these
    const auto begun = [&](int64_t b) {
        return __popcll(__ballot(b < indices.p.sequences && indices.start(static_cast<int32_t>(b)) <= token));
    };
    while (span > kWaveSize) {
        span = (span + kWaveSize) / (kWaveSize + 1);
        base += begun(base + (lane + int64_t{1}) * span) * span;
    }
    return base + begun(int64_t{base} + lane);
}

// The tile at `begin`, which owns tokens from `first` on and the starts of sequences from `sequence` on. A wave finds it; all
// of its lanes return it.
__device__ __forceinline__ TileTokens tile_tokens(const EitherIndices& indices, int32_t begin, int32_t first, int32_t sequence,
                                                  int lane) {
    const int32_t sequences = indices.p.sequences, past = indices.p.width - 1, next = begin + kTileTokens;
    TileTokens tile{0, first, next < indices.p.tokens ? next : indices.p.tokens, sequence, 0, false};
    int32_t base = sequence > 0 ? sequence - 1 : 0;  // the one before may go on here
    int count;
    do {
        const int32_t b = base + lane;
        int32_t start = 0;
        bool has_begun = false, crosses = false;
        if (b < sequences) {
            start = indices.start(b);
            const int32_t end = indices.start(b + 1);
            has_begun = start < next;
            if (has_begun && end > begin && indices.is_live(b)) {
                tile.live |= lowest_bits_of_64(end - begin) & ~lowest_bits_of_64(start - begin);
                crosses = end > next && start + past > next;
                tile.has_runs |= end - start > past;
            }
        }
        count = __popcll(__ballot(has_begun));
        tile.sequences_end = base + count;
        if (__ballot(crosses) != 0) {  // its first outputs lie in two tiles; it is the last one that has begun
            const int32_t at = __shfl(start, count - 1);
            if (at > next - past && at < next) tile.end = at;
            --tile.sequences_end;
        }
        base += kWaveSize;
    } while (count == kWaveSize);

    tile.has_runs = __ballot(tile.has_runs) != 0;
    if (__ballot(tile.live == ~uint64_t{0}) != 0) {
        tile.live = ~uint64_t{0};
    } else {
        uint32_t halves[] = {static_cast<uint32_t>(tile.live), static_cast<uint32_t>(tile.live >> 32)};
        for (int other = 1; other < kWaveSize; other *= 2) {
            halves[0] |= __shfl_xor(halves[0], other);
            halves[1] |= __shfl_xor(halves[1], other);
        }
        tile.live = halves[0] | static_cast<uint64_t>(halves[1]) << 32;
    }
    return tile;
}

// The first tile of a stretch.
__device__ __forceinline__ TileTokens first_tile(const EitherIndices& indices, int32_t begin, int lane) {
    int32_t first = begin, sequence = sequences_begun(indices, begin - 1, lane);
    if (sequence > 0) {
        const int32_t start = indices.start(sequence - 1), end = indices.start(sequence);
        if (end > begin && start < begin && start + indices.p.width - 1 > begin && indices.is_live(sequence - 1)) {
            first = start;
            --sequence;
        }
    }
    return tile_tokens(indices, begin, first, sequence, lane);
}

}  // namespace hipconv
