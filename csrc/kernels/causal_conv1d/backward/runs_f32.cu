// The backward kernel of few channels (runs_kernel.h) for float32.
#include <hip/hip_runtime.h>

#include "runs_kernel.h"

namespace hipconv {

void launch_bwd_runs_f32(const BwdRunsCall& call, void* stream) {
    launch_bwd_runs_of<float>(call, static_cast<hipStream_t>(stream));
}

}  // namespace hipconv
