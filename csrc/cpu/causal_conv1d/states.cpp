// This is the causal conv1d forward for host memory of rows that continue from a state, end in one, or hold packed sequences.
// It has plain loops around the formula, the denser axis innermost, which compute all outputs, or only those that differ from
// the outputs of the fast kernels for plain rows. It serves any width and any strides, f64 too.
#include "causal_conv1d/forward_formula.h"
#include "causal_conv1d/states_formula.h"
#include "serial.h"

namespace hipconv {
namespace {

// This computes only the outputs that differ from those of plain rows.
template <typename T, typename A>
void mend(const CausalConv1dStatesParams& p) {
    const int64_t tokens = int64_t{p.in.batch} * p.in.seqlen;
#pragma omp parallel for schedule(static) if (static_cast<double>(tokens) * p.in.dim >= kSerialBelow)
    for (int64_t token = 0; token < tokens; ++token) {
        const int64_t b = token / p.in.seqlen, t = token % p.in.seqlen;
        if (!differs_from_plain_row(p.in, b, t)) continue;
        for (int64_t d = 0; d < p.in.dim; ++d) states_one_output<T, A>(p, b, d, t);
    }
}

template <typename T, typename A>
void outputs(const CausalConv1dStatesParams& p) {
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
}

template <typename T, typename A>
void forward(const CausalConv1dStatesParams& p) {
    if constexpr (sizeof(T) == 8)
        outputs<T, A>(p);
    else
        mend<T, A>(p);
    if (!p.final_states.data) return;  // final states are written last: they may lie in the memory of the initial state
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
