// The kernels of `depthwise_diagonal`.
#include "instances.h"

#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <int kTapRows, int kTapPairs, int kStep>
constexpr DiagonalKernel diagonal_kernel() {
    using Shape = DiagonalShape<kTapRows, kTapPairs, kStep>;
    return {kTapRows,       kTapPairs,      kStep,
            Shape::kGroups, Shape::kBlocks, Shape::kAtOnce,
            Shape::kLoads,  Shape::kStages, launch_diagonal<kTapRows, kTapPairs, kStep>};
}

}  // namespace

const std::vector<DiagonalKernel>& diagonal_kernels() {
    static const std::vector<DiagonalKernel> kernels = {
        diagonal_kernel<7, 1, 1>(),  diagonal_kernel<11, 1, 1>(), diagonal_kernel<3, 2, 1>(),  diagonal_kernel<5, 3, 1>(),
        diagonal_kernel<7, 4, 1>(),  diagonal_kernel<9, 5, 1>(),  diagonal_kernel<11, 6, 1>(), diagonal_kernel<3, 2, 2>(),
        diagonal_kernel<5, 3, 2>(),  diagonal_kernel<7, 4, 2>(),  diagonal_kernel<11, 6, 2>(), diagonal_kernel<7, 4, 3>(),
        diagonal_kernel<11, 6, 3>(), diagonal_kernel<11, 6, 4>(),
    };
    return kernels;
}

}  // namespace hipconv
