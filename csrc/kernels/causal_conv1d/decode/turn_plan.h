// The decode kernel "turn": how a launch divides the rows, which its instances are told. The file is for files that include
// <hip/hip_runtime.h>.
#pragma once

#include "causal_conv1d/decode_row.h"
#include "grid.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kTurnLanes = 256;                     // of a block
constexpr int kTurnRows = 128;                      // of a block
constexpr int kTurnRoom = 4;                        // tokens of a row that a lane asks for at once
constexpr int kWholeStrip = 192, kUsualStrip = 64;  // words of a row that is one strip, and of a strip of others
constexpr int kLeastTurnWidth = 2, kMostTurnWidth = 8;
constexpr int64_t kMostTurnBlocks = 1 << 24;  // a grid's limit, that of AMD included
// Vectors of LDS for the slots of a block's rows.
constexpr int kTurnStage = kCopiesPastRegisters ? kTurnLanes * 4 + 64 : kTurnLanes * 9 / 4;
// Rows that a lane works on at a time: of few bytes, two, because one would leave memory waiting for requests.
template <int kWidth>
constexpr int kTurnSets = kWidth <= 3 ? 2 : 1;

// A slot has columns of whole rows; or a channel's columns side by side: those of the window alone, or any number.
enum class SlotForm { rows, window, packed };

struct TurnPlan {
    int32_t rows, turns;  // of a block: rows at a time, of each set, and times
    int32_t strips;       // of a row
    Divisor strips_divisor;
    SmallDivisor lanes;   // of a row
    int32_t row_vectors;  // of LDS, for a packed slot
    bool window;          // a packed slot has just the columns of the window, in vectors
    bool fours;           // a channel's columns are one or two vectors of four
};

// A kernel's one parameter: members of others would be in registers from the start (see first_parameter).
struct TurnParams {
    CausalConv1dUpdateParams call;
    TurnPlan plan;
};

// Instances, by the type of x.
template <typename T>
void launch_turns(const CausalConv1dUpdateParams& p, hipStream_t stream);
template <>
void launch_turns<float>(const CausalConv1dUpdateParams& p, hipStream_t stream);
template <>
void launch_turns<f16>(const CausalConv1dUpdateParams& p, hipStream_t stream);
template <>
void launch_turns<bf16>(const CausalConv1dUpdateParams& p, hipStream_t stream);

SlotForm turn_form(const CausalConv1dUpdateParams& p);
// A lane has `sets` rows at a time, a block up to `most_lanes`, the card `resident` blocks.
TurnPlan turn_plan(const CausalConv1dUpdateParams& p, int sets, int most_lanes, int64_t resident);

}  // namespace hipconv
