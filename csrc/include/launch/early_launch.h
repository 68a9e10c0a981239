// Kernels that begin while the one before them in the stream ends (sm_90 and later): their blocks take what is free of the card, get
// ready, and wait. Elsewhere they follow each other as always.
//
// A kernel that is launched early waits in all threads before it touches memory, even if it needs nothing of the one before: the
// one behind it counts on both being done.
#pragma once

#include "device/arch.h"

namespace hipconv {

HIPCONV_INLINE void let_next_kernel_begin() {
#if defined(HIPCONV_HAS_EARLY_LAUNCHES)
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

HIPCONV_INLINE void wait_for_kernel_before() {
#if defined(HIPCONV_HAS_EARLY_LAUNCHES)
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace hipconv

// hipLaunchKernelGGL; with `early` set, as above.
#if defined(HIPCONV_NVIDIA)
#define HIPCONV_LAUNCH(early, kernel, grid, block, shared_bytes, stream, ...) \
    ::hipconv::compat::launch(early, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)
#else
#define HIPCONV_LAUNCH(early, kernel, grid, block, shared_bytes, stream, ...) \
    do {                                                                        \
        (void)(early);                                                          \
        hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, __VA_ARGS__); \
    } while (false)
#endif
