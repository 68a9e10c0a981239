// The instances of `few_filters`.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <int kGroups, int kPieces>
void launch_16bit(const FewFiltersParams& p, unsigned blocks, int lds_bytes, void* stream) {
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16)
            return launch_few_filters_instance<bf16, kGroups, kPieces>(p, blocks, lds_bytes, stream);
    }
    launch_few_filters_instance<f16, kGroups, kPieces>(p, blocks, lds_bytes, stream);
}

}  // namespace

void launch_few_filters(const FewFiltersParams& p, int groups, int pieces, unsigned blocks, int lds_bytes, void* stream) {
    if (groups == 2) return (pieces == 1 ? launch_16bit<2, 1> : launch_16bit<2, 2>)(p, blocks, lds_bytes, stream);
    if (pieces == 1) return launch_16bit<1, 1>(p, blocks, lds_bytes, stream);
    (pieces == 2 ? launch_16bit<1, 2> : launch_16bit<1, 4>)(p, blocks, lds_bytes, stream);
}

}  // namespace hipconv
