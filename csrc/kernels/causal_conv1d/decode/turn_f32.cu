// Instances of the decode kernel "turn" for float32.
#include <hip/hip_runtime.h>

#include "turn_kernel.h"

namespace hipconv {

template <>
void launch_turns<float>(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    launch_turn_widths<float>(p, stream);
}

}  // namespace hipconv
