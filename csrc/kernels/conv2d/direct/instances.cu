// The instances of `direct`.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <int kStripAtoms>
void launch_16bit(const DirectParams& p, DirectLaunch of, void* stream) {
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16) return launch_direct_instance<bf16, kStripAtoms>(p, of, stream);
    }
    launch_direct_instance<f16, kStripAtoms>(p, of, stream);
}

}  // namespace

void launch_direct(const DirectParams& p, DirectLaunch of, void* stream) {
    (p.strip_filters == kAtomFilters ? launch_16bit<1> : launch_16bit<2>)(p, of, stream);
}

}  // namespace hipconv
