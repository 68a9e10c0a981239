// The decode kernel "wave": how a launch divides the rows and LDS, which its instances are told. The file is for files that
// include <hip/hip_runtime.h>.
#pragma once

#include "causal_conv1d/decode_row.h"
#include "grid.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kTeam = 32, kMostTeams = 8;
constexpr int kStageBytes = kCopiesPastRegisters ? 40 << 10 : 11 << 10;
constexpr int kMostRows = 80;       // of a block
constexpr int kFinders = 128;       // threads that look rows up
constexpr int kMostRowsAtOnce = 8;  // of a team
constexpr int kEnoughBytes = 2048;  // of a team's rows at a time
constexpr int kRoom = 4;            // tokens of a row that are in LDS at a time
constexpr int kLeastWidth = 2, kMostWidth = 8;
constexpr int kWholeWords = 192, kStripWords = 64;  // of a row that is one strip, and of a strip of others
constexpr int64_t kMostBlocks = 1 << 24;            // a grid's limit, that of AMD included

struct WavePlan {
    int32_t teams, rows, turns;  // of a block: teams, rows of a team at a time, and times
    int32_t strips;              // of a row
    Divisor strips_divisor;
    int32_t log_movers;             // of the lanes that move a row
    int32_t room;                   // tokens of a row that LDS has room for
    SmallDivisor words;             // of a strip's row of x
    int32_t step_rows, step_words;  // from a lane's word to its next one
    int32_t parts_at;               // bytes of weights and biases in LDS
    // In LDS, in bytes: of a row, to its tokens, and from one token to the next.
    int32_t row_bytes, tokens_at, token_bytes;
    bool two_places;           // LDS has room for the rows of two turns
    bool one_stretch;          // the row's tokens are neighbours
    bool fours, stores_fours;  // a channel's columns are one or two vectors of four, and leave as such
};

// A kernel's one parameter: members of others would be in registers from the start (see first_parameter).
struct WaveParams {
    CausalConv1dUpdateParams call;
    WavePlan plan;
};

// The weights of a word's channels and their biases are so many vectors of 16 bytes, an odd number, so that neighbouring lanes
// use different banks.
constexpr int taps_vectors(int width, int own) { return ((width + 1) * own + 3) / 4 | 1; }

// Instances, by the type of x.
template <typename T>
void launch_waves(const CausalConv1dUpdateParams& p, hipStream_t stream);
template <>
void launch_waves<float>(const CausalConv1dUpdateParams& p, hipStream_t stream);
template <>
void launch_waves<f16>(const CausalConv1dUpdateParams& p, hipStream_t stream);
template <>
void launch_waves<bf16>(const CausalConv1dUpdateParams& p, hipStream_t stream);

bool wave_plan(const CausalConv1dUpdateParams& p, int64_t resident_blocks, WavePlan& plan);

}  // namespace hipconv
