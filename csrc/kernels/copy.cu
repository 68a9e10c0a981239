// A plain copy: each thread copies one 16-byte vector, and a block has 256 threads; more vectors a thread are slower.
#include <hip/hip_runtime.h>

#include "copy/copy.h"
#include "device/arch.h"
#include "device/vec.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kCopyThreads = 256;

__global__ void HIPCONV_LAUNCH_BOUNDS(kCopyThreads, 8) copy_vectors(Words4* to, const Words4* from, int64_t count) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) to[i] = from[i];
}

void copy(void* to, const void* from, int64_t bytes, void* stream) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(Words4));
    if (count == 0) return;
    const int64_t blocks = (count + kCopyThreads - 1) / kCopyThreads;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 23) ? blocks : 1 << 23), 1, 1);
    hipLaunchKernelGGL(copy_vectors, grid, dim3(kCopyThreads, 1, 1), 0, static_cast<hipStream_t>(stream),
                       static_cast<Words4*>(to), static_cast<const Words4*>(from), count);
    check_launch("copy");
}

}  // namespace hipconv
