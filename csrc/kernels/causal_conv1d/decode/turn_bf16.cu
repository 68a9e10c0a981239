// Instances of the decode kernel "turn" for bf16.
#include <hip/hip_runtime.h>

#include "turn_kernel.h"

namespace hipconv {

template <>
void launch_turns<bf16>(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    launch_turn_widths<bf16>(p, stream);
}

}  // namespace hipconv
