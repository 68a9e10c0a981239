// These complete the causal conv1d forward for host memory of rows that continue from a state, end in one, or hold packed
// sequences. The kernels serve such rows themselves, so the outputs need nothing more, and final states are copies.
#include "causal_conv1d/forward_formula.h"
#include "forward.h"
#include "serial.h"

namespace hipconv {

void causal_conv1d_mend(const CausalConv1dFwdParams& p, void* stream) { causal_conv1d_openmp(p, nullptr, stream); }

void causal_conv1d_final_states(const CausalConv1dFwdParams& p, void* /*stream*/) {
    const auto write = [&](auto type) {
        const int64_t rows = int64_t{p.batch} * p.dim;
#pragma omp parallel for schedule(static) if (rows >= kSerialBelow)
        for (int64_t row = 0; row < rows; ++row) causal_conv1d_one_final_state<decltype(type)>(p, row / p.dim, row % p.dim);
    };
    if (p.dtype == kF64)
        write(double{});
    else
        with_dtype(p.dtype, write);
}

}  // namespace hipconv
