// Instances of the decode kernel "wave" for float32.
#include <hip/hip_runtime.h>

#include "wave_kernel.h"

namespace hipconv {

template <>
void launch_waves<float>(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    launch_widths<float>(p, stream);
}

}  // namespace hipconv
