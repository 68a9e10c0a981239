// The algorithm `depthwise_tile`: what its launcher hands to its kernel, and what both know of a block.
#pragma once

#include "../common/image_strides.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kTileThreads = 256;
constexpr int kTileBlocks = kCopiesPastRegisters ? 4 : 3;               // of a compute unit
constexpr int kTileLds = kCopiesPastRegisters ? 64 * 1024 : 21 * 1024;  // bytes of a block, at most: on AMD's cards of each
constexpr int kTileRows = 8;                                            // of outputs, of a thread
constexpr int kTileTaps = 11;  // of a column of a filter, whose window of x a thread has in registers at once

// A block makes `block_rows` x `block_columns` outputs of each of the filters of some channels. Channels are planes, counted
// through all images, unless they are the densest of x (`across`): then a block has channels of one image.
//
// Outputs of a thread lie `apart` from each other, so that the rows of x that their taps see are `step` rows apart or as
// they are of another phase. A column of x lies in LDS by phases of rows: y / step + y % step * phase_rows.
struct DepthwiseTileParams {
    Conv2dParams conv;
    ImageStrides x, weight, out, residual;
    bool across;
    int32_t apart, step, tap_phases;                // of rows; tap r sees rows of the same phase as tap r + tap_phases
    int32_t block_channels, block_filters;          // of a block
    int32_t block_rows, block_columns, row_groups;  // of outputs; groups of rows that are made at once, of a column
    int32_t channels;                               // of all
    int32_t channel_blocks, row_blocks, column_blocks;
    uint32_t blocks;
    int32_t in_rows, in_columns;                   // of x, that a block sees
    int32_t staged, parts, part_rows, part_lines;  // columns of all channels; parts of these, each a thread's turn; their rows
    // Words of LDS from one phase of rows of a column to the next; from a column of x to the next one of the same phase, from a
    // channel to the next, from the column that an output begins with to the next output's. Columns of a phase.
    int32_t phase_rows, column_words, channel_words, next_column, phase_columns;
    int32_t next_tap, next_tap_wraps;           // words from the column that a tap sees to the next one's, and where phases end
    int32_t tap_phase_step, tap_phase_columns;  // columns of x of a tap beyond the one before, modulo the phases; of phases
    int32_t tap_pitch, filter_pitch, filters_at;  // floats: of the taps of a column, of a phase; of a filter; in front of all
    SmallDivisor divide_by_staged, divide_by_inner, divide_by_column_phases, divide_by_taps, divide_by_width;
    SmallDivisor divide_by_tap_phases, divide_by_block_columns, divide_by_block_filters, divide_by_apart, divide_by_multiplier;
    Divisor divide_by_channels, divide_by_filters, divide_by_channel_blocks, divide_by_row_blocks, divide_by_column_blocks;
};

}  // namespace hipconv
