// Causal conv1d forward of rows that continue from a state, end in one, or hold packed sequences, for host memory: plain loops
// around the formula, the denser axis innermost. Any width, any strides, f64 too.
#include "causal_conv1d_cpu.h"
#include "causal_conv1d_formula.h"
#include "causal_conv1d_states_formula.h"

namespace hipconv {
namespace {

template <typename T, typename A>
void forward(const CausalConv1dStatesParams& p) {
    const bool channels_inside = dim_is_inner(p.in.x);
    const int64_t inner_size = channels_inside ? p.in.dim : p.in.seqlen;
    const int64_t outer_size = channels_inside ? p.in.seqlen : p.in.dim;
    const int64_t rows = p.in.batch * outer_size;
    const bool parallel = static_cast<double>(rows) * inner_size >= kSerialBelow;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t b = row / outer_size, outer = row % outer_size;
        for (int64_t inner = 0; inner < inner_size; ++inner)
            states_one_output<T, A>(p, b, channels_inside ? inner : outer, channels_inside ? outer : inner);
    }
    if (!p.final_states.data) return;  // written last: it may lie in the memory of the initial state
    for (int64_t b = 0; b < p.in.batch; ++b)
        for (int64_t d = 0; d < p.in.dim; ++d) states_one_final_state<T>(p, b, d);
}

}  // namespace

bool causal_conv1d_states_serve_f64() { return true; }

void causal_conv1d_states_fwd(const CausalConv1dStatesParams& p, void* /*stream*/) {
    if (p.in.dtype == kF64) return forward<double, double>(p);
    switch (p.in.dtype) {
        case DType::f16:
            return forward<f16, float>(p);
        case DType::bf16:
            return forward<bf16, float>(p);
        case DType::f32:
            return forward<float, float>(p);
    }
}

}  // namespace hipconv
