// The lanes of a wave wait for each other.
#pragma once

#include "device/arch.h"

namespace hipconv {

// What they have written to LDS is there for all of them, and what they read is read.
HIPCONV_INLINE void sync_wave() {
#if defined(HIPCONV_NVIDIA_DEVICE)
    __syncwarp();
#elif defined(HIPCONV_AMD_DEVICE)
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
#elif defined(HIPCONV_HOST)
    (void)__ballot(1);
#endif
}

}  // namespace hipconv
