// The walking kernel for filters of 11 x 11 taps.
#include <hip/hip_runtime.h>

#include "walk.h"

namespace hipconv {

void depthwise_walk_11(const Conv2dParams& conv, void* stream) { launch_walk<11>(conv, stream); }

}  // namespace hipconv
