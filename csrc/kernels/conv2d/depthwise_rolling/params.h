// The algorithm `depthwise_rolling`: what its launcher hands to its kernel, and what both know of a wave.
#pragma once

#include "conv2d/params.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kRollingStrips = 16;                              // of a wave: the rows of a matrix instruction
constexpr int kRollingColumns = kCopiesPastRegisters ? 8 : 16;  // of a strip's outputs: those of a matrix instruction
constexpr int kRollingThreads = 128;                            // of a block, whose waves have nothing in common

// Columns of x that the windows of a kernel with room for so many rows of taps see for an output, at most.
HIPCONV_INLINE constexpr int rolling_reach(int taps) { return taps <= 7 ? 9 : 17; }

// Rows of outputs whose x is under way, and the blocks that a unit has registers for, at least.
HIPCONV_INLINE constexpr int rolling_ahead(int taps, int stride, bool words) {
    return stride == 1 && words ? (taps <= 7 ? 4 : 2) : stride == 1 || words ? 2 : 1;
}
HIPCONV_INLINE constexpr int rolling_blocks(int taps, int stride, bool words) {
    if (!kCopiesPastRegisters) return taps <= 7 && stride == 1 ? 6 : 4;
    if (stride == 1) return taps == 3 && words ? 6 : taps <= 7 ? 4 : words ? 3 : 2;
    return taps > 7 ? 2 : taps <= 5 && words ? 4 : 3;
}

struct RollingParams {
    Conv2dParams conv;
    int32_t strips;        // of a channel, in all images
    int32_t tiles;         // strips beside each other in an image
    int32_t segments;      // strips below each other
    int32_t segment_rows;  // of outputs
    int32_t bundle;        // groups of 16 strips that waves beside each other have, of a filter: about those of an image
    int32_t waves;
    int32_t taps;                   // rows of them, that the kernel has room for
    bool has_words, has_out_words;  // pairs of columns of x, and of out, are words of memory
    int64_t to_residual;            // bytes from an output to what is added to it
    int32_t lead;  // columns from the begin of a window to its first tap: 1 where words of x begin in front of that
    Divisor divide_by_tiles, divide_by_segments, divide_by_bundle, divide_by_filters, divide_by_multiplier;
    SmallDivisor divide_by_columns;  // of a filter
};

}  // namespace hipconv
