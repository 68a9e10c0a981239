// The walking kernel for filters of 5 x 5 taps.
#include <hip/hip_runtime.h>

#include "walk.h"

namespace hipconv {

void depthwise_walk_5(const Conv2dParams& conv, void* stream) { launch_walk<5>(conv, stream); }

}  // namespace hipconv
