// The instances of `pointwise`.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <int kPieces, bool kWords>
void launch_16bit(const PointwiseParams& p, unsigned blocks, int lds_bytes, void* stream) {
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16) return launch_pointwise_instance<bf16, kPieces, kWords>(p, blocks, lds_bytes, stream);
    }
    launch_pointwise_instance<f16, kPieces, kWords>(p, blocks, lds_bytes, stream);
}

}  // namespace

void launch_pointwise(const PointwiseParams& p, int pieces, unsigned blocks, int lds_bytes, void* stream) {
    if (!p.by_vectors) return (pieces == 1 ? launch_16bit<1, true> : launch_16bit<2, true>)(p, blocks, lds_bytes, stream);
    if (pieces == 1) return launch_16bit<1, false>(p, blocks, lds_bytes, stream);
    if (pieces == 2) return launch_16bit<2, false>(p, blocks, lds_bytes, stream);
    if (pieces == 3) return launch_16bit<3, false>(p, blocks, lds_bytes, stream);
    if (pieces == 4) return launch_16bit<4, false>(p, blocks, lds_bytes, stream);
    launch_16bit<8, false>(p, blocks, lds_bytes, stream);
}

}  // namespace hipconv
