// The channel-first backward kernel (vector.cu) for rows with states, for bf16.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

HIPCONV_BWD_VECTOR_OF(bf16, any_with_states);

}  // namespace hipconv
