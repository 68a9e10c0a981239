// Instances of the decode kernel "turn" for f16.
#include <hip/hip_runtime.h>

#include "turn_kernel.h"

namespace hipconv {

template <>
void launch_turns<f16>(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    launch_turn_widths<f16>(p, stream);
}

}  // namespace hipconv
