// The algorithm `depthwise_rolling`: what its launcher hands to its kernel, and what both know of a wave.
#pragma once

#include "conv2d/params.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kRollingStrips = 16;                              // of a wave: the rows of a matrix instruction
constexpr int kRollingColumns = kCopiesPastRegisters ? 8 : 16;  // of a strip's outputs: those of a matrix instruction
constexpr int kRollingThreads = 128;                            // of a block, whose waves have nothing in common

// A kernel, by the rows of taps that it has room for, the rows of x from one row of outputs to the next, and the stride along
// rows and the columns of x from an output's first tap to behind its last whose windows it has room for. Where kWords says so,
// pairs of columns of x are words of memory; of f32 (kIsSingle) a column is one.
template <int kTapRows, int kRowStep, int kColumnStep, int kMostReach, bool kIsSingle = false>
struct RollingShape {
    static constexpr bool kSingle = kIsSingle;
    static constexpr int kTaps = kTapRows, kStep = kRowStep, kStride = kColumnStep, kReach = kMostReach;
    static constexpr int kWindow = (kRollingColumns - 1) * kStride + kReach;  // columns of x that a strip's outputs see
    static constexpr int kRows = (kTaps + kStep - 1) / kStep;                 // of outputs, that a row of x is part of
    static constexpr bool kInPlace = kStep > 2;  // rows of x are asked for as soon as the row that has their registers is used

    // Rows of outputs whose x is under way, and the blocks that a unit has registers for, at least.
    static HIPCONV_INLINE constexpr int ahead(bool words) {
        if (kSingle) return kStep == 1 && kWindow <= 16 ? 2 : 1;
        if (kStep == 1 && words) return kWindow <= kRollingColumns + 8 ? 4 : 2;
        return (kStep == 1 && kStride == 1) || (kStep <= 2 && words) ? 2 : 1;
    }
    static HIPCONV_INLINE constexpr int blocks(bool words) {
        if (!kCopiesPastRegisters) return kStep > 2 ? 2 : kTaps <= 7 && kStep == 1 ? 6 : 4;
        if (kSingle) return kTaps > 9 ? 2 : kStep > 1 || kWindow > 16 || kTaps > 7 ? 3 : 4;
        if (kStep > 2) return 2 + (kTaps <= 7 && words) + (kStep == 3 && (kTaps <= 7 || words));
        if (kStep == 1 && kStride > 1 && !words) return 3;
        if (kStep == 1) return kTaps == 3 && words ? 6 : kTaps <= 7 ? 4 : words ? 3 : 2;
        return kTaps > 7 ? 2 : kTaps <= 5 && words ? 4 : 3;
    }
};

// Elements from an image, a channel and a row to the next one; of filters from a filter, a row and a column of taps. 32 bits
// make a third of the instructions of 64.
struct RollingStrides {
    int32_t image, channel, row;

    HIPCONV_INLINE int64_t at(int of_image, int of_channel, int of_row) const {
        return int64_t{of_image} * image + int64_t{of_channel} * channel + int64_t{of_row} * row;
    }
};

struct RollingParams {
    Conv2dParams conv;
    RollingStrides x, out, weight;
    int32_t strips;        // of a channel, in all images
    int32_t classes;       // rows of outputs that are so many apart see the same rows of x by a dilation, and are a class
    int32_t tiles;         // strips beside each other in an image
    int32_t segments;      // strips below each other, of a class
    int32_t segment_rows;  // of outputs of a class
    int32_t bundle;        // groups of 16 strips that waves beside each other have, of a filter: about those of an image
    int32_t waves;
    bool has_words, has_out_words;  // pairs of columns of x, and of out, are words of memory (of f32 x has words always)
    int64_t to_residual;            // bytes from an output to what is added to it
    int32_t lead;  // columns from the begin of a window to its first tap: 1 where words of x begin in front of that
    Divisor divide_by_tiles, divide_by_classes, divide_by_segments, divide_by_bundle, divide_by_filters, divide_by_multiplier,
        divide_by_dilation;
    SmallDivisor divide_by_columns;  // of a filter
};

}  // namespace hipconv
