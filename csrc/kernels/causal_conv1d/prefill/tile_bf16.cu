// The kernel `tile` for x of bfloat16.
#include <hip/hip_runtime.h>

#include "tile.h"

namespace hipconv {

template <>
void launch_tile<bf16>(const CausalConv1dVarlenParams& p, const TileShape& shape, const VarlenPlan& plan, int64_t runs,
                       int64_t begins, hipStream_t stream) {
    choose_tile<bf16>(p, shape, plan, runs, begins, stream);
}

}  // namespace hipconv
