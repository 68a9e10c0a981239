// The kernels of `depthwise_diagonal` for rows of outputs whose rows of x are neighbours, but for dilation.
#include "instances.h"

#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

const std::vector<DiagonalKernel>& unstrided_diagonal_kernels() {
    static const std::vector<DiagonalKernel> kernels = {
        diagonal_kernel<7, 1, 1>(), diagonal_kernel<11, 1, 1>(), diagonal_kernel<3, 2, 1>(),  diagonal_kernel<5, 3, 1>(),
        diagonal_kernel<7, 4, 1>(), diagonal_kernel<9, 5, 1>(),  diagonal_kernel<11, 6, 1>(),
    };
    return kernels;
}

}  // namespace hipconv
