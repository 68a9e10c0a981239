// Causal conv1d over packed sequences, for host memory: which kernel serves a call, and the kernel that serves any.
//
// `simd` (prefill_simd.cpp): vectors along channels, where they are neighbours in memory.
// `openmp`: plain loops around the formula, a row for each channel of each sequence. Any width, any strides.
//
// Both share their work out over torch's own OpenMP threads, so torch.set_num_threads holds.
#include "prefill.h"

#include <iterator>
#include <stdexcept>

#include "causal_conv1d/prefill_formula.h"
#include "forward.h"

namespace hipconv {

std::vector<std::string> causal_conv1d_varlen_kernels() {
    return {std::begin(kCausalConv1dVarlenCpuKernels), std::end(kCausalConv1dVarlenCpuKernels)};
}

void causal_conv1d_varlen(const CausalConv1dVarlenParams& p, const std::string& kernel, const VarlenTile& /*tile*/, void* /*stream*/) {
    const bool simd_serves = causal_conv1d_varlen_simd_serves(p);
    if (kernel == "simd" && !simd_serves)
        throw std::invalid_argument("kernel: got 'simd', which serves widths 2 to 8 where x and out have stride 1 along dim");
    if (kernel != "openmp" && simd_serves) return causal_conv1d_varlen_simd(p);

    const int64_t rows = (int64_t{p.sequences} + 1) * p.dim;
    const bool parallel = static_cast<double>(p.tokens) * p.dim >= kSerialBelow;
#pragma omp parallel for schedule(dynamic, 64) if (parallel)
    for (int64_t row = 0; row < rows; ++row) convolve_sequence(p, static_cast<int32_t>(row / p.dim), row % p.dim);
}

std::vector<std::string> causal_conv1d_varlen_in_place_kernels() { return {}; }

bool causal_conv1d_varlen_in_place(const CausalConv1dVarlenParams& /*p*/, const std::string& /*kernel*/, const VarlenTile& /*tile*/,
                                   void* /*stream*/) {
    return false;
}

}  // namespace hipconv
