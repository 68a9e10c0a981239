// The kernel of packed sequences (tile_kernel.h) for bf16.
#include <hip/hip_runtime.h>

#include "tile_kernel.h"

namespace hipconv {

template void launch_varlen_tile<bf16>(const CausalConv1dVarlenParams&, const VarlenPlan&, int, dim3, dim3, hipStream_t);

}  // namespace hipconv
