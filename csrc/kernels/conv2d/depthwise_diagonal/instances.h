// The kernels of `depthwise_diagonal`, of which a call runs one.
#pragma once

#include <vector>

#include "params.h"

namespace hipconv {

struct DiagonalKernel {
    int rows, pairs, step, groups, blocks, at_once, loads, stages;  // see DiagonalShape
    void (*launch)(const DiagonalParams& p, unsigned blocks, int lds_bytes, void* stream);
};

const std::vector<DiagonalKernel>& unstrided_diagonal_kernels();
const std::vector<DiagonalKernel>& strided_diagonal_kernels();

}  // namespace hipconv
