// Causal conv1d forward for host memory.
//
// `openmp`: plain loops around the formula, the denser axis innermost, rows shared out over threads. They come from torch's own
// OpenMP runtime, so torch.set_num_threads holds.
#include "causal_conv1d.h"
#include "causal_conv1d_formula.h"

namespace hipconv {
namespace {

constexpr double kSerialBelow = 1 << 14;  // multiply-adds that are not worth waking a second thread for

template <typename T>
void convolve(const CausalConv1dFwdParams& p) {
    const bool channels_inside = dim_is_inner(p.x);
    const int64_t inner_size = channels_inside ? p.dim : p.seqlen;
    const int64_t outer_size = channels_inside ? p.seqlen : p.dim;
    const int64_t rows = p.batch * outer_size;
    const bool parallel = static_cast<double>(rows) * inner_size * p.width >= kSerialBelow;

#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t b = row / outer_size;
        const int64_t outer = row % outer_size;
        for (int64_t inner = 0; inner < inner_size; ++inner)
            causal_conv1d_one_output<T>(p, b, channels_inside ? inner : outer, channels_inside ? outer : inner);
    }
}

}  // namespace

std::vector<std::string> causal_conv1d_fwd_kernels() { return {"openmp"}; }

void causal_conv1d_fwd(const CausalConv1dFwdParams& p, const std::string& /*kernel: there is one*/, void* /*stream*/) {
    switch (p.dtype) {
        case DType::f32:
            return convolve<float>(p);
        case DType::f16:
            return convolve<f16>(p);
        case DType::bf16:
            return convolve<bf16>(p);
    }
}

}  // namespace hipconv
