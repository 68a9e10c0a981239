// Causal conv1d over packed sequences, for host memory.
//
// `openmp`: plain loops around the formula. Any width, any strides. Rows, a channel of a sequence each, are shared out over torch's own
// OpenMP threads, so torch.set_num_threads holds.
#include "causal_conv1d_cpu.h"
#include "causal_conv1d_varlen_formula.h"

namespace hipconv {

std::vector<std::string> causal_conv1d_varlen_kernels() { return {"openmp"}; }

void causal_conv1d_varlen(const CausalConv1dVarlenParams& p, const std::string& /*kernel*/, const VarlenTile& /*tile*/, void* /*stream*/) {
    const int64_t rows = (int64_t{p.sequences} + 1) * p.dim;
    const bool parallel = static_cast<double>(p.tokens) * p.dim >= kSerialBelow;

#pragma omp parallel for schedule(dynamic, 64) if (parallel)
    for (int64_t row = 0; row < rows; ++row) convolve_sequence(p, static_cast<int32_t>(row / p.dim), row % p.dim);
}

}  // namespace hipconv
