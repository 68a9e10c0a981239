// The kernels of `depthwise_rolling`, of which a call runs one.
#pragma once

#include <vector>

#include "params.h"

namespace hipconv {

// The kernels of a shape, for pairs of columns that are words of memory or are not.
struct RollingKernels {
    int taps, step, window, reach;  // see RollingShape
    int blocks, blocks_of_words;    // resident
    void (*launch)(const RollingParams& p, void* stream);
};

// These are for both 16-bit types, or for one where each has kernels of its own.
const std::vector<RollingKernels>& unstrided_rolling_kernels(DType dtype);
const std::vector<RollingKernels>& strided_rolling_kernels(DType dtype);
// These are for f32 as TF32.
const std::vector<RollingKernels>& single_rolling_kernels();

}  // namespace hipconv
