// The algorithm `depthwise_banded`: what its launcher hands to its kernel.
#pragma once

#include "conv2d/params.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kBandedThreads = 128;
constexpr int kBandedBlocks = 4;                                          // of a compute unit, by registers
constexpr int kBandedLds = kCopiesPastRegisters ? 96 * 1024 : 16 * 1024;  // bytes of a block, at most
constexpr int kBandedBuffers = kCopiesPastRegisters ? 2 : 1;              // of a wave, for planes of x
constexpr int kMostStepImages = 4;
constexpr int kBandedDown = 2;      // atoms of 16 rows of outputs, whose sums a wave has at once
constexpr int kBandedColumns = 32;  // of outputs, whose sums a wave has at once

struct BandedParams {
    Conv2dParams conv;
    int32_t multiplier;  // filters of a channel of x

    // A wave has a filter, a strip of rows of outputs, and so many images, step_images in each step.
    int32_t waves;  // of all blocks
    int32_t strips, strip_rows, wave_images, step_images;
    Divisor divide_by_filters, divide_by_strips;
    // With it, the first of two atoms down has even rows of outputs, the other one odd rows: then all rows of x that it sees
    // with a tap begin at even places of LDS, or all at odd ones. Without it, all rows do.
    bool interleaves;
    bool has_two;                     // atoms down
    bool keeps_rows;                  // in LDS, from step to step
    bool out_by_pairs;                // whether columns of outputs begin at even elements of LDS
    bool x_has_edges, out_has_edges;  // runs of planes that are no whole vectors
    SmallDivisor divide_by_rows;      // those that an atom, or two, have of an image

    // A plane of x in LDS, in elements: all, rows, and the place of the first row's first column, but for what its address in
    // memory exceeds a multiple of 16 bytes. Vectors: that an image's plane has at most.
    int32_t plane, patch_rows, origin;
    SmallDivisor divide_by_vectors;

    int32_t out_plane;  // elements of a plane of outputs in LDS
    SmallDivisor divide_by_out_vectors;

    int32_t band;                          // words of a filter's row in LDS: see stage_band
    int32_t planes_at, outputs_at, bytes;  // of a wave's LDS: in front of planes of x, of outputs, and of the next wave's
};

}  // namespace hipconv
