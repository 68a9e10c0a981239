// The kernels of `depthwise_rolling` for f32, which is multiplied as TF32.
#include "instances.h"

#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <int kTaps, int kStep, int kStride, int kReach>
RollingKernels single_kernels() {
    return rolling_kernels<tf32, RollingShape<kTaps, kStep, kStride, kReach, true>>();
}

}  // namespace

const std::vector<RollingKernels>& single_rolling_kernels() {
    static const std::vector<RollingKernels> kernels = {
        single_kernels<3, 1, 1, 9>(),   single_kernels<5, 1, 1, 9>(),   single_kernels<7, 1, 1, 9>(),
        single_kernels<9, 1, 1, 9>(),   single_kernels<3, 1, 1, 17>(),  single_kernels<7, 1, 1, 17>(),
        single_kernels<11, 1, 1, 17>(), single_kernels<3, 2, 2, 10>(),  single_kernels<5, 2, 2, 10>(),
        single_kernels<7, 2, 2, 10>(),  single_kernels<11, 2, 2, 17>(),
    };
    return kernels;
}

}  // namespace hipconv
