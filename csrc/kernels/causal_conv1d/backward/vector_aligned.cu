// The channel-first backward kernel (vector.cu) for rows of whole vectors that have states or hold several
// sequences.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

void launch_bwd_aligned(const BwdVectorParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    launch_bwd_vector<BwdForm::aligned>(p, plan, grid, block, stream);
}

}  // namespace hipconv
