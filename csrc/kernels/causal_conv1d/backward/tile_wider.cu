// The channel-last backward for wide windows (tile_kernel.h), in a file of its own because two compile side by side.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

void causal_conv1d_bwd_tile_wider(const BwdTileCall& call, void* stream) {
    launch_bwd_tile<kBwdTileMaxWidth, kBwdTileSplit + 1>(call, static_cast<hipStream_t>(stream));
}

}  // namespace hipconv
