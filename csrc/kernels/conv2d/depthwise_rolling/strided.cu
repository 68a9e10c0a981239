// The kernels of `depthwise_rolling` for rows of outputs whose rows of x are two to four apart.
#include "instances.h"

#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <typename T>
const std::vector<RollingKernels>& kernels_of() {
    static const std::vector<RollingKernels> kernels = {
        rolling_kernels<T, RollingShape<3, 2, 2, 9>>(),  rolling_kernels<T, RollingShape<5, 2, 2, 9>>(),
        rolling_kernels<T, RollingShape<7, 2, 2, 9>>(),  rolling_kernels<T, RollingShape<11, 2, 2, 17>>(),
        rolling_kernels<T, RollingShape<7, 3, 3, 11>>(), rolling_kernels<T, RollingShape<11, 3, 3, 17>>(),
        rolling_kernels<T, RollingShape<7, 4, 4, 17>>(), rolling_kernels<T, RollingShape<11, 4, 4, 17>>(),
    };
    return kernels;
}

}  // namespace

const std::vector<RollingKernels>& strided_rolling_kernels(DType dtype) {
    return with_rolling_type(dtype, [](auto like) -> const auto& { return kernels_of<decltype(like)>(); });
}

}  // namespace hipconv
