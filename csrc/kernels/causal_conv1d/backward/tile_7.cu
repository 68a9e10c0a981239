// The channel-last backward kernel (tile_kernel.h) for width 7.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_bwd_tile<7, 7>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
