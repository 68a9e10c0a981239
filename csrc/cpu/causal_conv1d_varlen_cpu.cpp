// Causal conv1d over packed sequences, for host memory.
//
// `openmp`: plain loops around the formula. Any width, any strides. Rows, a channel of a sequence each, are shared out over torch's own
// OpenMP threads, so torch.set_num_threads holds.
#include "causal_conv1d_cpu.h"
#include "causal_conv1d_varlen_formula.h"

namespace hipconv {
namespace {

template <typename S, typename T>
void openmp(const CausalConv1dVarlenParams& p) {
    const int64_t rows = (int64_t{p.sequences} + 1) * p.dim;
    const bool parallel = static_cast<double>(p.tokens) * p.dim >= kSerialBelow;

#pragma omp parallel for schedule(dynamic, 64) if (parallel)
    for (int64_t row = 0; row < rows; ++row) convolve_sequence<S, T>(p, static_cast<int32_t>(row / p.dim), row % p.dim);
}

template <typename T>
void openmp(const CausalConv1dVarlenParams& p) {
    switch (p.state_dtype) {
        case DType::f32:
            return openmp<float, T>(p);
        case DType::f16:
            return openmp<f16, T>(p);
        case DType::bf16:
            return openmp<bf16, T>(p);
    }
}

}  // namespace

std::vector<std::string> causal_conv1d_varlen_kernels() { return {"openmp"}; }

void causal_conv1d_varlen(const CausalConv1dVarlenParams& p, const std::string& /*kernel*/, const VarlenTile& /*tile*/, void* /*stream*/) {
    switch (p.dtype) {
        case DType::f32:
            return openmp<float>(p);
        case DType::f16:
            return openmp<f16>(p);
        case DType::bf16:
            return openmp<bf16>(p);
    }
}

}  // namespace hipconv
