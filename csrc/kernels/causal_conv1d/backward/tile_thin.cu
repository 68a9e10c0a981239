// The channel-last backward kernel (tile_kernel.h) with thin lanes: the instances for f32.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

void launch_bwd_tile_thin(const BwdTileCall& call, hipStream_t stream) {
    with_dtype(call.p.in.dtype, [&](auto type) { launch_bwd_tile_thin_of<decltype(type)>(call, stream); });
}

}  // namespace hipconv
