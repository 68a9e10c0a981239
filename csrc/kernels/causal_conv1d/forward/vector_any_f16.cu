// The channel-first forward kernel for any rows (vector_any_kernel.h), for f16.
#include <hip/hip_runtime.h>

#include "vector_any_kernel.h"

namespace hipconv {

template void launch_vector_any<f16>(const CausalConv1dFwdParams&, const VectorAnyPlan&, dim3, dim3, bool, hipStream_t);

}  // namespace hipconv
