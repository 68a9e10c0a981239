// The channel-last backward kernel (tile_kernel.h) with two channels a lane that lie anywhere, for f16.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_bwd_tile_thin<f16, true>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
