// The channel-last backward kernel (tile_kernel.h) for width 6.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_bwd_tile<6, 6>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
