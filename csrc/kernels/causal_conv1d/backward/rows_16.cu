// The backward kernel of short rows ("rows", rows_kernel.h): its instances for 16-bit types.
#include <hip/hip_runtime.h>

#include "rows_kernel.h"

namespace hipconv {

void launch_bwd_rows_16(const BwdRowsCall& call, hipStream_t stream) {
    if (call.p.in.dtype == DType::f16)
        launch_bwd_rows_of<f16>(call, stream);
    else
        launch_bwd_rows_of<bf16>(call, stream);
}

}  // namespace hipconv
