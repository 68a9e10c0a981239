// The walking kernel for filters of 3 x 3 taps.
#include <hip/hip_runtime.h>

#include "walk.h"

namespace hipconv {

void depthwise_walk_3(const Conv2dParams& conv, void* stream) { launch_walk<3>(conv, stream); }

}  // namespace hipconv
