// The causal conv1d prefill kernel (packed sequences) for host memory that serves any call.
#include "prefill.h"

#include <iterator>

#include "causal_conv1d/prefill_formula.h"
#include "serial.h"

namespace hipconv {

void causal_conv1d_varlen_openmp(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/, void* /*workspace*/,
                                 void* /*stream*/) {
    const int64_t rows = (int64_t{p.sequences} + 1) * p.dim;
    const bool parallel = static_cast<double>(p.tokens) * p.dim >= kSerialBelow;
#pragma omp parallel for schedule(dynamic, 64) if (parallel)
    for (int64_t row = 0; row < rows; ++row) convolve_sequence(p, static_cast<int32_t>(row / p.dim), row % p.dim);
}

static constexpr KernelTable<CausalConv1dVarlenParams, VarlenTile> kTable = {kVarlenKernels, std::size(kVarlenKernels)};

KernelTable<CausalConv1dVarlenParams, VarlenTile> causal_conv1d_varlen_kernels() { return kTable; }

KernelTable<CausalConv1dVarlenParams, VarlenTile> causal_conv1d_varlen_in_place_kernels() { return {nullptr, 0, &kTable}; }

}  // namespace hipconv
