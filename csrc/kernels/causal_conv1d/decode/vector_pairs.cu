// The decode of several tokens in vectors of channels (vector_kernel.h), for rows whose channels come in pairs.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

void launch_vectors_of_pairs(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const PairGrid grid = pair_grid(p);
    with_instance<kMostWidth>(p.dtype, p.width, [&](auto type, auto width) {
        HIPCONV_LAUNCH(true,
                       (causal_conv1d_update_vectors<decltype(type), decltype(type), decltype(width)::value, kOwnVectors, 2>),
                       grid.blocks, grid.block, 0, stream, vector_params(p));
    });
    check_launch("causal_conv1d_update");
}

}  // namespace hipconv
