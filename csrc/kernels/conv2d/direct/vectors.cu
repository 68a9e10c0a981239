// The instances of `direct` that read x by vectors of channels.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

void launch_direct_vectors(const DirectParams& p, unsigned blocks, int threads, int shared_bytes, void* stream) {
    launch_direct<true>(p, blocks, threads, shared_bytes, stream);
}

}  // namespace hipconv
