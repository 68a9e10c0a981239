// The algorithm `fma_direct`: what its launcher hands to its kernels, and what both know of a block.
#pragma once

#include "conv2d/params.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kQuad = 4;                // filters of a thread
constexpr int kFmaDirectColumns = 8;    // of outputs, of a thread
constexpr int kFmaDirectThreads = 256;  // of a block, at most
// Bytes of LDS of a block, at most (NVIDIA's smaller cards have 99 KB for one), and of a compute unit.
constexpr int kFmaDirectLds = kCopiesPastRegisters ? 96 * 1024 : 32 * 1024;
constexpr int kFmaDirectUnitLds = kCopiesPastRegisters ? 224 * 1024 : 64 * 1024;

// The four filters of a thread see this of a column of x.
enum class QuadSees : int32_t {
    one_channel,    // of their group, all of them
    four_channels,  // beside each other, each its own
    any_channels,   // each that of its own group
};

struct FmaDirectParams {
    Conv2dParams conv;  // rows and columns exchanged, if the window slides down columns
    QuadSees sees;
    int32_t group_channels, group_filters;
    int32_t apart_h, apart_w;     // rows and columns of outputs from one of a grid to its next one
    int32_t step_h, step_w;       // rows and columns of x of a grid, from those of an output to those of the next one
    int32_t quads, groups, rows;  // lanes of a block along filters, columns and rows of outputs
    int32_t quad_blocks;          // blocks along filters
    int32_t tiles;                // of a row of a grid
    int32_t segments, segment_rows;
    int32_t units, unit_bytes;   // of a column of x, that are brought to LDS; an element where there are no vectors
    int32_t splits;              // of the rows that are brought at once: as many threads bring rows of one unit
    bool across;                 // x has its channels beside each other
    int32_t columns, ring_rows;  // of x, that a block has in LDS
    int32_t column_bytes, row_bytes;
    int32_t filter_pitch, filters_bytes, lds_bytes;  // of LDS, which begins with the filters: vectors, bytes
    bool out_by_quads, residual_by_quads, out_by_rows;
    int64_t to_residual;  // bytes from an output to what is added to it, if by quads
    uint32_t blocks;
    SmallDivisor divide_by_quads, divide_by_rows;                      // lanes
    SmallDivisor divide_by_row, divide_by_inner;                       // units of a row of x, and those that lanes lie along
    SmallDivisor divide_by_products, divide_by_taps, divide_by_width;  // of a filter
    Divisor divide_by_quad_blocks, divide_by_tiles, divide_by_apart_w, divide_by_segments, divide_by_apart_h;
    Divisor divide_by_group_filters;
};

}  // namespace hipconv
