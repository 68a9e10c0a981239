// The channel-first backward kernel (vector.cu), any: rows that lie anywhere, hold several sequences, or have states.
#include "vector_kernel.h"

namespace hipconv {

void launch_bwd_any(const CausalConv1dBwdParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    launch_bwd_vector<false>(p, plan, grid, block, stream);
}

}  // namespace hipconv
