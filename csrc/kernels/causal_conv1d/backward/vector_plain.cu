// The channel-first backward kernel (vector.cu) for plain rows (vector_walk.h).
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

void launch_bwd_plain(const BwdVectorParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    launch_bwd_vector<BwdForm::plain>(p, plan, grid, block, stream);
}

}  // namespace hipconv
