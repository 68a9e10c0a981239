// The kernels of `depthwise_diagonal` for rows of outputs whose rows of x are two to four apart.
#include "instances.h"

#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

const std::vector<DiagonalKernel>& strided_diagonal_kernels() {
    static const std::vector<DiagonalKernel> kernels = {
        diagonal_kernel<3, 2, 2>(), diagonal_kernel<5, 3, 2>(),  diagonal_kernel<7, 4, 2>(),  diagonal_kernel<11, 6, 2>(),
        diagonal_kernel<7, 4, 3>(), diagonal_kernel<11, 6, 3>(), diagonal_kernel<11, 6, 4>(),
    };
    return kernels;
}

}  // namespace hipconv
