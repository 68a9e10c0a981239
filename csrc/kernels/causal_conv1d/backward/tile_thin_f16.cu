// The channel-last backward kernel (tile_kernel.h) with thin lanes, for f16.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_bwd_tile_thin_of<f16>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
