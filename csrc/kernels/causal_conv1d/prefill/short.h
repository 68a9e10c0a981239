// Packed calls of mostly short sequences go this way instead of by `tile` or `words`: one launch makes short
// sequences whole, and the starts of all others (short_kernel.h). It also writes down where others have tokens, for the next
// launch, which makes the runs of these: most of its blocks end at once.
#pragma once

#include "launch/division.h"
#include "thread.h"

namespace hipconv {

// Sequences of up to so many tokens are short. Any longer one has the first token of a cell.
constexpr int32_t kShortTokens = 16, kCellTokens = kShortTokens + 1;

constexpr int kShortThreads = 256;
constexpr int kShortFound = 256;  // sequences that a block looks up
static_assert(kShortThreads <= kShortFound, "a block has no more rows than it looks up");

// This says how the launch divides the work. A lane has a word of channels, or two, in rows of lanes; a row of lanes makes one
// sequence after another.
struct ShortPlan {
    SmallDivisor lanes;                       // of a row
    int32_t rows, rounds;                     // of a block; sequences of a row
    uint32_t blocks;                          // of sequences; blocks that save halos come after these
    int32_t further;                          // tokens that all lanes of a row ask for ahead at once
    int64_t further_step;                     // bytes
    int32_t begun_tokens;                     // that are made of longer sequences
    int32_t halo_tokens;                      // before a block of runs
    int32_t run_tokens, halos_to_save;        // of a block of runs; tokens
    uint32_t x_step, slot_step, column_step;  // bytes
    char* states;                             // the first column of the first slot's window
    bool rows_in_waves;                       // a row lies in one wave
    bool rows_in_vectors;                     // the columns of two channels lie in an aligned vector
    bool rows_in_words;                       // they begin and end in whole words
    bool begun_by_token;
    char *halos, *begun;  // as VarlenPlan has them
    uint8_t* long_cells;
};

struct ShortCall {
    CausalConv1dVarlenParams params;
    ShortPlan plan;
};

// The number of blocks of a compute unit, by registers. `words`: all but rows of columns lies in aligned words.
constexpr int short_blocks(int width, bool words) { return width <= 3 && words ? 4 : width <= 5 ? 3 : 2; }

// Lanes have two words each where windows are of one column.
constexpr int kItemsOfTwo = 2;

// Tells whether a call that `tile` or `words` serves has mostly short sequences, of `mean` tokens or fewer in the mean, and
// `enough` elements, unless a tile is forced.
bool are_short(const CausalConv1dVarlenParams& p, const VarlenTile& tile, int32_t mean, int64_t enough);

int64_t short_workspace(const CausalConv1dVarlenParams& p, bool in_place);
void launch_short(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place, void* workspace, void* stream);

template <typename T>
void launch_short_instance(const ShortCall& call, bool state_rows, bool words, dim3 grid, hipStream_t stream);
extern template void launch_short_instance<float>(const ShortCall&, bool, bool, dim3, hipStream_t);
extern template void launch_short_instance<f16>(const ShortCall&, bool, bool, dim3, hipStream_t);
extern template void launch_short_instance<bf16>(const ShortCall&, bool, bool, dim3, hipStream_t);

}  // namespace hipconv
