// The channel-first backward kernel (vector.cu) for rows with states, and for rows of f32 that are not plain: the instances for
// f32.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

void launch_bwd_any_with_states(const BwdVectorParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block,
                                hipStream_t stream) {
    launch_bwd_vector<BwdForm::any_with_states>(p, plan, grid, block, stream);
}

}  // namespace hipconv
