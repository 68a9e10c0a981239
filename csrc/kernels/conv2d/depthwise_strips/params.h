// The algorithm `depthwise_strips`: what its launcher hands to its kernel, and what both know of a block.
#pragma once

#include "conv2d/params.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kMostStrips = 16;                                // of a block: the rows of a matrix instruction
constexpr int kStripColumns = kCopiesPastRegisters ? 8 : 16;   // of outputs: the columns of a matrix instruction
constexpr int kStripsMostTaps = 9;                             // between the first and the last column of a filter's row
constexpr int kStripsTapPitch = 12;                            // elements of a row of taps in LDS, zeros at its ends among them
constexpr int kStripsBehind = kCopiesPastRegisters ? 16 : 32;  // columns of LDS that windows of the last strip reach behind it
constexpr int kStripsLds = (kCopiesPastRegisters ? 224 : 64) * 1024;  // bytes of a block, at most

// A block, by the rows of taps that its kernel has room for and by its stride. Bands and sums take most of
// a wave's registers.
template <int kTaps, int kStride>
struct StripsShape {
    static constexpr int kRows = (kTaps + kStride - 1) / kStride;  // of outputs, that a row of x, or a pair, is part of
    static constexpr int kPairs = kCopiesPastRegisters && kTaps * kStride < 14 ? 2 : 1;  // of channels, of a wave
    static constexpr int kWaves = 8;
    static constexpr int kChannels = kWaves * kPairs * 2;
    static constexpr int kChunks = kChannels / 8;         // vectors of 16 bytes, of a column
    static constexpr int kPitch = (kChunks + 1) * 16;     // bytes from one column to the next in LDS
    static constexpr int kOwn = kStripColumns * kStride;  // columns from one strip's first to the next's
    static constexpr int kOutRows = kCopiesPastRegisters && kStride == 1 ? 2 : 1;  // of a step
    static constexpr int kInRows = kOutRows * kStride;
    static constexpr int kStages = kCopiesPastRegisters ? 3 : 2;
    static constexpr int kTapsAhead =
        (kTaps * kStripsMostTaps * kChannels + kWaves * kWaveSize - 1) / (kWaves * kWaveSize);  // of a thread
    static constexpr int kFilters = 2 * kChannels * kTaps * kStripsTapPitch;  // elements of LDS: see StripsFilters
    // Vectors of a row of x, of a thread.
    static constexpr int kLoads = !kCopiesPastRegisters ? 3 : (kStride == 1 ? 2 : 3) * kPairs;
};

struct StripsParams {
    Conv2dParams conv;
    int32_t strips;        // of all images
    int32_t tiles;         // strips beside each other in an image
    int32_t segments;      // strips below each other
    int32_t segment_rows;  // of outputs
    int32_t block_strips, channel_blocks;
    Divisor divide_by_tiles, divide_by_segments, divide_by_channel_blocks;
    SmallDivisor divide_by_run, divide_by_taps, divide_by_columns;  // columns of strips beside each other; of a filter
    int32_t run_tail;  // columns of x that strips beside each other see together, beside kOwn for each
    // Bytes of LDS: a row of x, a stage; the places of outputs, of which there are two, of filters and of a mark.
    int32_t row_bytes, stage_bytes, out_at, out_bytes, filters_at, mark_at;
};

}  // namespace hipconv
