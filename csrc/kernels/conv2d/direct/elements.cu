// The instances of `direct` that read x element by element.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_direct_elements(const DirectParams& p, unsigned blocks, int threads, int shared_bytes, void* stream) {
    launch_direct<false>(p, blocks, threads, shared_bytes, stream);
}

}  // namespace hipconv
