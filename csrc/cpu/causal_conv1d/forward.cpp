// Causal conv1d forward for host memory: which kernel serves a call, and the kernel that serves any.
//
// `simd` (forward_simd.cpp): vectors along tokens or channels, whichever x and out both have as neighbours in memory.
// `openmp`: plain loops around the formula, the denser axis innermost. Any width, any strides.
//
// Both share rows out over torch's own OpenMP threads, so torch.set_num_threads holds.
#include "forward.h"

#include <iterator>

#include "causal_conv1d/forward_formula.h"

namespace hipconv {
namespace {

template <typename T>
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
            causal_conv1d_one_output<T>(p, b, channels_inside ? inner : outer, channels_inside ? outer : inner);
    }
}

void openmp(const CausalConv1dFwdParams& p) {
    switch (p.dtype) {
        case DType::f32:
            return openmp<float>(p);
        case DType::f16:
            return openmp<f16>(p);
        case DType::bf16:
            return openmp<bf16>(p);
    }
}

enum class Plan { openmp, simd_along_tokens, simd_along_channels };

// Depends on nothing but sizes, strides and types. The stride of an axis of size one does not matter.
Plan plan(const CausalConv1dFwdParams& p) {
    const bool tokens = p.seqlen == 1 || (p.x.seqlen_stride == 1 && p.out.seqlen_stride == 1);
    const bool channels = p.dim == 1 || (p.x.dim_stride == 1 && p.out.dim_stride == 1);
    if (p.width > kSimdMaxWidth || !(tokens || channels)) return Plan::openmp;
    if (tokens && channels) return p.dim > p.seqlen ? Plan::simd_along_channels : Plan::simd_along_tokens;
    return tokens ? Plan::simd_along_tokens : Plan::simd_along_channels;
}

}  // namespace

std::vector<std::string> causal_conv1d_fwd_kernels() {
    return {std::begin(kCausalConv1dFwdCpuKernels), std::end(kCausalConv1dFwdCpuKernels)};
}

const char* causal_conv1d_fwd_choice(const CausalConv1dFwdParams& p) { return plan(p) == Plan::openmp ? "openmp" : "simd"; }

const char* causal_conv1d_fwd_refusal(const CausalConv1dFwdParams& p, const std::string& kernel) {
    static_assert(kSimdMaxWidth == 8, "the text below says so");
    if (kernel == "simd" && plan(p) == Plan::openmp)
        return "width <= 8 where x and out both have stride 1 along seqlen, or both along dim";
    return nullptr;
}

const char* causal_conv1d_fwd_form(const CausalConv1dFwdParams& p, const std::string& kernel) {
    if (kernel == "openmp") return dim_is_inner(p.x) ? "openmp_channels_inside" : "openmp_tokens_inside";
    return plan(p) == Plan::simd_along_channels ? "simd_along_channels" : "simd_along_tokens";
}

void causal_conv1d_fwd(const CausalConv1dFwdParams& p, const std::string& kernel, void* /*stream*/) {
    kernel == "openmp" ? openmp(p) : causal_conv1d_simd(p, plan(p) == Plan::simd_along_channels);
}

}  // namespace hipconv
