// The backward kernel of few channels (runs_kernel.h) for bfloat16.
#include <hip/hip_runtime.h>

#include "runs_kernel.h"

namespace hipconv {

void launch_bwd_runs_bf16(const BwdRunsCall& call, void* stream) {
    launch_bwd_runs_of<bf16>(call, static_cast<hipStream_t>(stream));
}

}  // namespace hipconv
