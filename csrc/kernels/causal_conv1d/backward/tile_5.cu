// The channel-last backward kernel (tile_kernel.h) for widths 4 and 5.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_bwd_tile<5, 4>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
