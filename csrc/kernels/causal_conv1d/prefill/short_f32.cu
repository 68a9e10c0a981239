// The instances for f32 of the kernel that makes short sequences.
#include <hip/hip_runtime.h>

#include "short_kernel.h"

namespace hipconv {

template void launch_short_instance<float>(const ShortCall&, bool, bool, dim3, hipStream_t);

}  // namespace hipconv
