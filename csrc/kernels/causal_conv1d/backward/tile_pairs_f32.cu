// The channel-last backward kernel (tile_kernel.h) with two channels a lane, for f32.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_bwd_tile_thin<float, false>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
