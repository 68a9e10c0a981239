// The launcher hands these to the depthwise kernel.
#pragma once

#include "../../conv2d/gemm/gemm.h"
#include "../common/frames.h"

namespace hipconv {

// The vectors of 16 bytes by which a thread reads x: of channels, of the columns of a row, or none.
enum class DepthwiseForm { channels, columns, elements };

constexpr int kDepthwiseThreads = 256;
constexpr int kDepthwiseFloats = 4096;  // of filters, in LDS: four blocks fit on a compute unit
constexpr int kDepthwiseHalo = 3;       // columns to each side of its own that a thread of vectors of columns sees

// A thread makes so many columns of a unit: of so many filters.
HIPCONV_INLINE constexpr int depthwise_filters(DepthwiseForm form) { return form == DepthwiseForm::channels ? 8 : 1; }
HIPCONV_INLINE constexpr int depthwise_columns(DepthwiseForm form) { return form == DepthwiseForm::columns ? 8 : 4; }

struct DepthwiseVolumeParams {
    Conv3dParams conv;
    int32_t multiplier;          // filters of a channel
    int32_t units, block_units;  // in all, of a block
    int32_t parts;               // blocks that have all units
    int32_t tiles;               // of a row of the result: of a thread's columns
    int64_t places;              // tiles of all rows, frames and samples, less than 2^31
    Divisor divide_by_tiles, divide_by_height, divide_by_frames;
};

}  // namespace hipconv
