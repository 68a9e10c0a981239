// The instances for f16 of the kernel that makes tokens by rows of lanes.
#include <hip/hip_runtime.h>

#include "rows_kernel.h"

namespace hipconv {

template void launch_rows<f16>(const StagedCall&, void*);

}  // namespace hipconv
