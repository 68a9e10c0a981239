// This completes the causal conv1d forward for host memory of rows that continue from a state, end in one, or hold packed
// sequences: it makes the outputs that differ from those of plain rows, and final states, by the formula. It serves any width and
// any strides; f64 has final states only.
#include "causal_conv1d/forward_formula.h"
#include "serial.h"

namespace hipconv {

void causal_conv1d_mend(const CausalConv1dFwdParams& p, void* /*stream*/) {
    with_dtype(p.dtype, [&](auto type) {
        const int64_t tokens = int64_t{p.batch} * p.seqlen;
#pragma omp parallel for schedule(static) if (static_cast<double>(tokens) * p.dim >= kSerialBelow)
        for (int64_t token = 0; token < tokens; ++token) {
            const int64_t b = token / p.seqlen, t = token % p.seqlen;
            if (!differs_from_plain_row(p, b, t)) continue;
            for (int64_t d = 0; d < p.dim; ++d) causal_conv1d_one_output<decltype(type), float>(p, b, d, t);
        }
    });
}

void causal_conv1d_final_states(const CausalConv1dFwdParams& p, void* /*stream*/) {
    const auto write = [&](auto type) {
        for (int64_t b = 0; b < p.batch; ++b)
            for (int64_t d = 0; d < p.dim; ++d) causal_conv1d_one_final_state<decltype(type)>(p, b, d);
    };
    if (p.dtype == kF64)
        write(double{});
    else
        with_dtype(p.dtype, write);
}

}  // namespace hipconv
