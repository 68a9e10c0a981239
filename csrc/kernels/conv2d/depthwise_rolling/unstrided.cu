// The kernels of `depthwise_rolling` for rows of outputs whose rows of x are neighbours, but for dilation.
#include "instances.h"

#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <typename T>
const std::vector<RollingKernels>& kernels_of() {
    static const std::vector<RollingKernels> kernels = {
        rolling_kernels<T, RollingShape<3, 1, 1, 9>>(),   rolling_kernels<T, RollingShape<5, 1, 1, 9>>(),
        rolling_kernels<T, RollingShape<7, 1, 1, 9>>(),   rolling_kernels<T, RollingShape<7, 1, 2, 17>>(),
        rolling_kernels<T, RollingShape<11, 1, 1, 17>>(),
    };
    return kernels;
}

}  // namespace

const std::vector<RollingKernels>& unstrided_rolling_kernels(DType dtype) {
    return with_rolling_type(dtype, [](auto like) -> const auto& { return kernels_of<decltype(like)>(); });
}

}  // namespace hipconv
