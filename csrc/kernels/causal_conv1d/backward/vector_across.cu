// The channel-first backward kernel (vector.cu) for rows whose channels are neighbours in x, and tokens in dout and dx: the
// instances for f32.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

void launch_bwd_across(const BwdVectorParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    launch_bwd_vector<BwdForm::across>(p, plan, grid, block, stream);
}

}  // namespace hipconv
