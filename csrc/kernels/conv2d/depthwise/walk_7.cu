// The walking kernel for filters of 7 x 7 taps.
#include <hip/hip_runtime.h>

#include "walk.h"

namespace hipconv {

void depthwise_walk_7(const Conv2dParams& conv, void* stream) { launch_walk<7>(conv, stream); }

}  // namespace hipconv
