// The algorithm `depthwise_diagonal`: what its launcher hands to its kernel, and what both know of a block.
#pragma once

#include "conv2d/params.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kDiagonalWaves = 4, kDiagonalThreads = kDiagonalWaves * 32;
constexpr int kDiagonalPixels = 16, kDiagonalChannels = 8;  // of a matrix instruction, which takes two taps of a row
constexpr int kDiagonalOutPitch = 80;                       // bytes of LDS from a pixel's outputs to the next one's

// A kernel, by the rows of taps and the pairs of columns of taps that it has room for, and by the rows of x from one row of
// outputs to the next. Taps and sums take most of a wave's registers.
template <int kTapRows, int kTapPairs, int kStep>
struct DiagonalShape {
    static constexpr int kRows = (kTapRows + kStep - 1) / kStep;  // of outputs, that a row of x is part of
    static constexpr int kAtOnce = kStep == 1 ? 2 : 1;            // rows of outputs that begin between two barriers
    static constexpr int kLoads = kStep == 1 ? 2 : 3;             // vectors of a row of x, of a thread, at most
    static constexpr int kStages = kAtOnce == 2 ? 3 : 4;          // of LDS, each with the rows of x that these begin with
    // Registers of a lane for taps and for the sums of some groups of 16 pixels.
    static constexpr int registers(int groups) { return 2 * kTapRows * kTapPairs + 4 * kRows * groups; }
    static constexpr int kGroups = registers(4) <= 72 ? 4 : registers(2) <= 170 ? 2 : 1;              // of a wave
    static constexpr int kBlocks = registers(kGroups) <= 72 ? 4 : registers(kGroups) <= 112 ? 3 : 2;  // resident
};

// A block has the outputs of `block_pixels` columns, counted through all images, and of 8, 16 or 32 channels, down a segment of
// rows. Outputs whose rows see the same rows of x by a dilation are a class: they are `classes` rows apart.
struct DiagonalParams {
    Conv2dParams conv;
    int32_t pixels, block_pixels;      // columns of outputs, of all images and of a block
    int32_t chunks_log, x_chunks_log;  // vectors of 8 channels of a block, of outputs and of x: 1, 2 or 4
    int32_t channel_blocks, classes, segments, segment_rows;
    // Columns of x from the first tap to behind the last; those that pixels beside each other see beside stride_w for each; and
    // those of an image that are read, of which `lead` are padding in front of it.
    int32_t reach, run_tail, run_columns, lead;
    // Bytes of LDS: a column of x; columns that lie apart by the stride; a row of x; a stage; a row of outputs, which are there
    // from `out_at` to `mark_at`; and the mark.
    int32_t pitch, phase_bytes, row_bytes, stage_bytes, out_at, out_bytes, mark_at;
    // Bytes from one row of x to the next, and to the next of a class; from one row of outputs to the next of a class.
    int64_t row_pitch, next_row, class_row_pitch, to_residual;
    Divisor divide_by_channel_blocks, divide_by_units, divide_by_segments, divide_by_width, divide_by_multiplier;
    SmallDivisor divide_by_run_pixels, divide_by_run_columns, divide_by_stride;

    // The first of the eight channels of x that have a filter's.
    HIPCONV_INLINE int first_channel_of(int filter) const {
        return static_cast<int>(divide(filter, divide_by_multiplier)) / kDiagonalChannels * kDiagonalChannels;
    }
};

}  // namespace hipconv
