// The causal conv1d backward kernel for host memory that serves any call.
#include "backward.h"

#include <iterator>
#include <vector>

#include "causal_conv1d/states_formula.h"
#include "serial.h"

namespace hipconv {
namespace {

// This computes one channel. Its gradients g are kept for a row at a time, since each dx sums over `width` of them.
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

}  // namespace

void causal_conv1d_bwd_openmp(const CausalConv1dBwdParams& p, void* /*workspace*/, void* /*stream*/) {
    if (p.in.dtype == kF64) return openmp<double, double>(p);
    with_dtype(p.in.dtype, [&](auto type) { openmp<decltype(type), float>(p); });
}

KernelTable<CausalConv1dBwdParams> causal_conv1d_bwd_kernels() { return {kBwdKernels, std::size(kBwdKernels)}; }

bool causal_conv1d_bwd_serves_f64() { return true; }

}  // namespace hipconv
