// The kernel `tile` for x of float32.
#include <hip/hip_runtime.h>

#include "tile.h"

namespace hipconv {

template <>
void launch_tile<float>(const CausalConv1dVarlenParams& p, const TileShape& shape, const VarlenPlan& plan, int64_t runs,
                        int64_t begins, hipStream_t stream) {
    choose_tile<float>(p, shape, plan, runs, begins, stream);
}

}  // namespace hipconv
