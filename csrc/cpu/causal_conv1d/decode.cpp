// The causal conv1d decode kernel for host memory that goes channel by channel.
#include "decode.h"

#include <iterator>

#include "causal_conv1d/decode_row.h"

namespace hipconv {
namespace {

template <typename T>
void zero_channels(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int64_t channels, RowTokens tokens) {
    for (int64_t c = d; c < d + channels; ++c) zero_one_channel<T>(p, b, c, tokens);
}

template <typename T, typename S>
void openmp_kernel(const CausalConv1dUpdateParams& p) {
    const DecodeWork work(p);
#pragma omp parallel for schedule(static) if (work.parallel)
    for (int64_t item = 0; item < work.items; ++item) {
        const int64_t begin = item / p.batch * DecodeWork::kBlock, b = item % p.batch;
        const int64_t channels = std::min<int64_t>(DecodeWork::kBlock, p.dim - begin);
        const RowIndices indices = indices_of_row(p, b);
        for (int64_t d = begin; d < begin + channels; ++d) zero_rest<T>(p, indices, b, d);
        const RowTokens tokens = tokens_of_row(p, indices);
        if (tokens.count == 0) continue;
        const RowState row = state_of_row(p, indices, tokens.count);
        if (!row.live) {
            if (p.zero_padding) zero_channels<T>(p, b, begin, channels, tokens);
            continue;
        }
        if (!p.tree_child.data) {
            for (int64_t d = begin; d < begin + channels; ++d) update_one_channel<T, S>(p, b, d, tokens, row);
            continue;
        }
        int16_t parent[kMaxTreeTokens];
        const auto child = [&](int t) { return load_index(p.tree_child, b, t); };
        find_parents(parent, p.seqlen, child, [&](int t) { return load_index(p.tree_sibling, b, t); });
        if (begin == 0 && p.tree_parent.data)
            for (int32_t t = 0; t < p.seqlen; ++t) store_parent(p.tree_parent, b, t, parent[t]);
        for (int32_t t = p.seqlen - 1; t >= 0; --t)
            for (int64_t d = begin; d < begin + channels; ++d) update_one_tree_token<T, S>(p, b, d, row, t, parent);
    }
}

}  // namespace

void causal_conv1d_update_openmp(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* /*stream*/) {
    with_dtype(p.dtype, [&](auto type) {
        with_dtype(p.state_dtype, [&](auto state) { openmp_kernel<decltype(type), decltype(state)>(p); });
    });
}

KernelTable<CausalConv1dUpdateParams> causal_conv1d_update_kernels() { return {kUpdateKernels, std::size(kUpdateKernels)}; }

}  // namespace hipconv
