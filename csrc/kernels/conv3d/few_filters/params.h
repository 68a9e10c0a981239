// conv3d of few filters on matrix cores, at the speed of memory: each element of x is read once, into registers.
//
// The taps of a frame's rows and columns stand side by side in the filter dimension: 3 x 3 taps of 3 filters are 27 of the 32
// columns of a product whose rows are pixels of x, its halo included. Sum [pixel][filter, tap] belongs to the output that sees
// the pixel by this tap, so that the outputs are sums along diagonals, which a block adds in LDS.
//
// A block has a square of pixels and walks through the frames. A frame that has come serves the taps of time at once: sums of
// as many frames of the result as there are taps of time are under way, in registers.
#pragma once

#include "../common/filters.h"
#include "../common/frame_gemm.h"

namespace hipconv {

constexpr int kFewThreads = 256, kFewSide = 16;   // a thread for each pixel of the square
constexpr int kFewColumns = 32;                   // filters times taps of a frame
constexpr int kFewFrames = 3;                     // taps of time
constexpr int kFewSteps = 4, kFewStepChunks = 4;  // 16-byte chunks of channels: so many steps of so many
constexpr int kFewMostFilters = 8;                // each thread stores those of its pixel one by one
constexpr int kFewStrip = 16;                     // squares side by side, whose rows follow each other
constexpr int kFewPitch = kFewThreads + 4;        // floats from a column of the sums to the next, without bank conflicts

// LDS: the filters of all taps, as lanes read them, and the sums of a frame.
constexpr int kFewFilterBytes = kFewFrames * kFewColumns * kFewSteps * kFewStepChunks * 16;
constexpr int kFewSumBytes = kFewColumns * kFewPitch * 4;
constexpr int kFewBytes = kFewFilterBytes + kFewSumBytes + kFewMostFilters * 4;  // and the bias

struct FewFiltersParams {
    Conv3dParams conv;
    Conv2dParams frame;             // for the epilogue, without the bias
    bool saves;                     // the walk meets all frames of the next cache, and writes them
    int32_t frames_of_sample;       // in out
    int32_t walk, walks;            // frames of the result that a block makes; blocks that share a sample's frames
    int32_t across, down;           // squares of a frame
    int32_t tiles;                  // squares of all walks of all samples
    int32_t out_rows, out_columns;  // of a square without its halo
    int32_t taps;                   // of a frame
    int32_t chunks, steps;          // of a tap's channels
    const void* filters;
    int64_t filter_stride, tap_bytes;
};

}  // namespace hipconv
