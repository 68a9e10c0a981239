// The algorithm `wave_gemm`: what its launcher hands to its kernels.
#pragma once

#include "../gemm/gemm.h"
#include "matrix/small_mma.h"

namespace hipconv {

constexpr int kWaveGemmThreads = 256;  // of a block, or twice as many for long sums
constexpr int kWaveGemmMostThreads = 2 * kWaveGemmThreads;
constexpr int kWaveGemmPixels = 16;                   // of a wave
constexpr int kWaveGemmFilters = 32;                  // of a block
constexpr int kWaveGemmPitch = kWaveGemmFilters + 4;  // floats of a pixel's sums in LDS: no bank conflicts
constexpr int kWaveGemmChunk = 8;                     // elements
constexpr int kWaveGemmMostProducts = 2048;           // of an output, where operands are read element by element
constexpr int kWaveGemmMostEntries = kWaveGemmMostProducts + 4 * kWaveGemmChunk;

// This says how a lane reads a chunk of 8 products' factors:
//   vectors    16 bytes of neighbouring channels
//   words      4 bytes at a time: neighbouring channels, in pairs
//   planes     of x one by one, its channels at equal distances; of the filters 16 bytes of neighbouring channels
//   elements   one by one, from anywhere
enum class WaveGemmRead : int32_t { vectors, words, planes, elements };

struct WaveGemmParams {
    Conv2dParams conv;
    WaveGemmRead read;

    int32_t pixels;          // of all images
    int32_t filter_blocks;   // blocks of the same pixels
    int32_t group_blocks;    // of which so many are of a group
    int32_t group_filters;   // conv.in_channels are those of a group
    int64_t group_distance;  // in x, from a group to the next
    int32_t log2_groups;     // groups of waves: each shares the sums of 16 pixels
    int32_t chunks;          // of a whole sum
    int32_t tap_chunks;      // of a tap; 0 where operands are read element by element
    bool channels_first;     // of those, the taps of a channel follow each other
    bool pads;               // a tap may lie outside the image
    Divisor divide_by_image, divide_by_row, divide_by_filter_blocks, divide_by_group_blocks, divide_by_tap_chunks,
        divide_by_taps_across, divide_by_inner;

    // This says how out is stored.
    bool along_filters;
    bool vector_stores;  // eight elements along filters are aligned, in out and in the residual
};

// Launches the instance of a way to read.
void launch_wave_gemm(const WaveGemmParams& params, unsigned blocks, unsigned threads, void* stream);

}  // namespace hipconv
