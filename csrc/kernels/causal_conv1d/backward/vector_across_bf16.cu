// The channel-first backward kernel (vector.cu) for rows whose channels are neighbours in x, and tokens in dout and dx, for
// bf16.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

HIPCONV_BWD_VECTOR_OF(bf16, across);

}  // namespace hipconv
