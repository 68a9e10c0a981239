// Instances of the decode kernel "wave" for f16.
#include <hip/hip_runtime.h>

#include "wave_kernel.h"

namespace hipconv {

template <>
void launch_waves<f16>(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    launch_widths<f16>(p, stream);
}

}  // namespace hipconv
