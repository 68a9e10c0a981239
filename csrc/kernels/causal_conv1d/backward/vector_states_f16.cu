// The channel-first backward kernel (vector.cu) for rows with states, for f16.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

template void launch_bwd_vector_of<f16, BwdForm::any_with_states>(const BwdVectorParams&, const BwdVectorPlan&, dim3, dim3,
                                                                  hipStream_t);

}  // namespace hipconv
