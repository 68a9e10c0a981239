// The channel-last backward kernel (tile_kernel.h) with thin lanes, for bf16.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_bwd_tile_thin_of<bf16>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
