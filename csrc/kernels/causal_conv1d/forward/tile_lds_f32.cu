// The kernel "tile" by way of LDS (tile_lds_kernel.h), for f32.
#include <hip/hip_runtime.h>

#include "tile_lds_kernel.h"

namespace hipconv {

template void launch_tile_lds<float>(const LdsCall&, dim3, bool, int, hipStream_t);

}  // namespace hipconv
