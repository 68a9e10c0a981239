// The channel-first backward kernel (vector.cu), plain: rows that are one sequence each, without states, and which lie at the
// same place of 16-byte vectors in x, dout and dx.
#include "vector_kernel.h"

namespace hipconv {

void launch_bwd_plain(const CausalConv1dBwdParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    launch_bwd_vector<true>(p, plan, grid, block, stream);
}

}  // namespace hipconv
