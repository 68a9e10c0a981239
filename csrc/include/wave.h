// The lanes of a wave wait for each other.
#pragma once

#include "arch.h"

namespace hipconv {

// What they have written to LDS is there for all of them, and what they read is read.
HIPCONV_INLINE void sync_wave() {
#if defined(HIPCONV_NVIDIA_DEVICE)
    __syncwarp();
#elif defined(HIPCONV_HOST)
    (void)__ballot(1);
#endif
}

}  // namespace hipconv
