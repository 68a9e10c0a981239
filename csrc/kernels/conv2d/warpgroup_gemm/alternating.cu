// The instance of the warpgroup GEMM whose warpgroups make tiles in turns, for many sums that are short: the planes of
// Winograd's algorithms.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_warpgroup_gemm_alternating(const WarpgroupGemmParams& p, int units, void* stream) {
    launch_warpgroup_instance<f16, 128, 128, true, true>(p, units, stream);
}

}  // namespace hipconv
