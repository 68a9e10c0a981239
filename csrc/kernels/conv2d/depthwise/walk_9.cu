// The walking kernel for filters of 9 x 9 taps.
#include <hip/hip_runtime.h>

#include "walk.h"

namespace hipconv {

void depthwise_walk_9(const Conv2dParams& conv, void* stream) { launch_walk<9>(conv, stream); }

}  // namespace hipconv
