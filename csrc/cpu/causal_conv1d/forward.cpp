// The causal conv1d forward kernel for host memory that serves any call.
#include "forward.h"

#include <iterator>

#include "causal_conv1d/forward_formula.h"
#include "serial.h"

namespace hipconv {
namespace {

template <typename T, typename A>
void openmp(const CausalConv1dFwdParams& p) {
    const bool channels_inside = dim_is_inner(p.x);
    const int64_t inner_size = channels_inside ? p.dim : p.seqlen;
    const int64_t outer_size = channels_inside ? p.seqlen : p.dim;
    const int64_t rows = p.batch * outer_size;
    const bool parallel = static_cast<double>(rows) * inner_size >= kSerialBelow;

#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t b = row / outer_size;
        const int64_t outer = row % outer_size;
        for (int64_t inner = 0; inner < inner_size; ++inner)
            causal_conv1d_one_output<T, A>(p, b, channels_inside ? inner : outer, channels_inside ? outer : inner);
    }
}

}  // namespace

const char* causal_conv1d_openmp_form(const CausalConv1dFwdParams& p) {
    return dim_is_inner(p.x) ? "openmp_channels_inside" : "openmp_tokens_inside";
}

void causal_conv1d_openmp(const CausalConv1dFwdParams& p, void* /*workspace*/, void* /*stream*/) {
    if (p.dtype == kF64) return openmp<double, double>(p);
    with_dtype(p.dtype, [&](auto type) { openmp<decltype(type), float>(p); });
}

bool causal_conv1d_fwd_serves_f64() { return true; }

KernelTable<CausalConv1dFwdParams> causal_conv1d_fwd_kernels() { return {kFwdKernels, std::size(kFwdKernels)}; }

}  // namespace hipconv
