// Causal conv1d backward for host memory: which kernel serves a call, and the kernel that serves any.
//
// `simd` (backward_simd.cpp): vectors along tokens or channels, whichever x, dout and dx all have as neighbours in
// memory.
// `openmp`: plain loops, a channel at a time, whose sums are then complete. Any width, any strides, states, packed sequences,
// f64.
//
// Both share their work out over torch's own OpenMP threads, and their results do not depend on how many there are.
#include "backward.h"

#include <iterator>

#include "causal_conv1d/states_formula.h"
#include "forward.h"

namespace hipconv {
namespace {

// One channel: its gradients g are kept for a row at a time, since width of them go into each dx.
template <typename T, typename A>
void openmp_channel(const CausalConv1dBwdParams& p, int64_t d, std::vector<A>& g, std::vector<A>& sums) {
    const CausalConv1dInputs& in = p.in;
    const int past = in.width - 1;
    sums.assign(in.width + 1, A{0});
    for (int64_t b = 0; b < in.batch; ++b) {
        for (int64_t t = 0; t < in.seqlen; ++t) {
            g[t] = gradient_at<T, A>(p, b, d, t);
            sums[in.width] += g[t];
        }
        for (int64_t t = p.dinitial_states.data || in.initial_states.data ? -past : 0; t < in.seqlen; ++t) {
            A sum{0};
            const int64_t column = t - in.seqlen + past;
            if (p.dfinal_states.data && column >= 0 && final_state_counts(in, b, t))
                sum = to_accumulator(at<const T>(p.dfinal_states, b, d, column));
            const A x = t >= 0 || in.initial_states.data ? input_at<T, A>(in, b, d, t) : A{0};
            for (int k = 0; k < in.width; ++k) {
                const int64_t to = t + k;
                if (to < 0 || to >= in.seqlen || is_padding(in, b, to) || !sees(in, b, to, t)) continue;
                sum += weight_at<A>(in, d, past - k) * g[to];
                sums[past - k] += g[to] * x;
            }
            if (t >= 0)
                at<T>(p.dx, b, d, t) = rounded<T>(sum);
            else if (p.dinitial_states.data)
                at<T>(p.dinitial_states, b, d, t + past) = rounded<T>(sum);
        }
    }
    for (int i = 0; i <= in.width; ++i) bwd_store_sum<A>(p, d, i, sums[i]);
}

template <typename T, typename A>
void openmp(const CausalConv1dBwdParams& p) {
    const bool parallel = static_cast<double>(p.in.batch) * p.in.dim * p.in.seqlen >= kSerialBelow;
#pragma omp parallel if (parallel)
    {
        std::vector<A> g(p.in.seqlen), sums;
#pragma omp for schedule(static)
        for (int64_t d = 0; d < p.in.dim; ++d) openmp_channel<T, A>(p, d, g, sums);
    }
}

void openmp(const CausalConv1dBwdParams& p) {
    if (p.in.dtype == kF64) return openmp<double, double>(p);
    switch (p.in.dtype) {
        case DType::f16:
            return openmp<f16, float>(p);
        case DType::bf16:
            return openmp<bf16, float>(p);
        case DType::f32:
            return openmp<float, float>(p);
    }
}

enum class Plan { openmp, simd_along_tokens, simd_along_channels };

// Depends on nothing but sizes, strides and types. The stride of an axis of size one does not matter.
Plan plan(const CausalConv1dBwdParams& p) {
    const auto along = [&](auto stride) { return stride(p.in.x) == 1 && stride(p.dout) == 1 && stride(p.dx) == 1; };
    const bool tokens = p.in.seqlen == 1 || along([](const Sequences& s) { return s.seqlen_stride; });
    const bool channels = p.in.dim == 1 || along([](const Sequences& s) { return s.dim_stride; });
    const bool plain = p.in.seqlen > 0 && !p.in.seq_idx.data && !p.in.initial_states.data && !p.dfinal_states.data;
    if (!plain || p.in.dtype == kF64 || p.in.width > kBwdSimdMaxWidth || !(tokens || channels)) return Plan::openmp;
    if (tokens && channels) return p.in.dim > p.in.seqlen ? Plan::simd_along_channels : Plan::simd_along_tokens;
    return tokens ? Plan::simd_along_tokens : Plan::simd_along_channels;
}

}  // namespace

std::vector<std::string> causal_conv1d_bwd_kernels() {
    return {std::begin(kCausalConv1dBwdCpuKernels), std::end(kCausalConv1dBwdCpuKernels)};
}

bool causal_conv1d_bwd_serves_f64() { return true; }

const char* causal_conv1d_bwd_choice(const CausalConv1dBwdParams& p) { return plan(p) == Plan::openmp ? "openmp" : "simd"; }

const char* causal_conv1d_bwd_refusal(const CausalConv1dBwdParams& p, const std::string& kernel) {
    static_assert(kBwdSimdMaxWidth == 8, "the text below says so");
    if (kernel == "simd" && plan(p) == Plan::openmp)
        return "width <= 8 where x, dout and dx all have stride 1 along seqlen, or all along dim, without seq_idx and states, "
               "of 16 or 32 bits";
    return nullptr;
}

int64_t causal_conv1d_bwd_workspace(const CausalConv1dBwdParams& p, const std::string& kernel) {
    if (kernel == "openmp") return 0;
    return causal_conv1d_bwd_simd_partials(p, plan(p) == Plan::simd_along_channels) * (p.in.width + 1) * p.in.dim;
}

void causal_conv1d_bwd(const CausalConv1dBwdParams& p, const std::string& kernel, void* /*stream*/) {
    kernel == "openmp" ? openmp(p) : causal_conv1d_bwd_simd(p, plan(p) == Plan::simd_along_channels);
}

}  // namespace hipconv
