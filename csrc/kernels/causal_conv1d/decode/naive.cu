// This kernel is the causal conv1d decode on GPUs ("naive"): a thread takes one channel of one row, token after token, and the
// history stays in the pool. It serves any width and any strides. A kernel of its own does the same for a tree of draft tokens,
// whose parents the block first finds from the links.
#include <hip/hip_runtime.h>

#include <iterator>

#include "causal_conv1d/decode_row.h"
#include "grid.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kUpdateThreads = 128;

template <typename T, typename S>
__global__ void HIPCONV_LAUNCH_BOUNDS(kUpdateThreads, 8) causal_conv1d_update_naive(CausalConv1dUpdateParams params) {
    const CausalConv1dUpdateParams& p = first_parameter(params);
    const int64_t b = row_of_block(blockIdx.y, blockIdx.z);
    const int64_t d = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (b >= p.batch || d >= p.dim) return;
    const RowIndices indices = indices_of_row(p, b);
    zero_rest<T>(p, indices, b, d);
    const RowTokens tokens = tokens_of_row(p, indices);
    if (tokens.count == 0) return;
    const RowState row = state_of_row(p, indices, tokens.count);
    if (row.live)
        update_one_channel<T, S>(p, b, d, tokens, row);
    else if (p.zero_padding)
        zero_one_channel<T>(p, b, d, tokens);
}

template <typename T, typename S>
__global__ void HIPCONV_LAUNCH_BOUNDS(kUpdateThreads, 8) causal_conv1d_update_tree(CausalConv1dUpdateParams params) {
    const CausalConv1dUpdateParams& p = first_parameter(params);
    HIPCONV_SHARED(int16_t, child, kMaxTreeTokens);
    HIPCONV_SHARED(int16_t, sibling, kMaxTreeTokens);
    HIPCONV_SHARED(int16_t, parent, kMaxTreeTokens);
    const int64_t b = row_of_block(blockIdx.y, blockIdx.z);
    const int64_t d = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int thread = static_cast<int>(threadIdx.x);
    if (b >= p.batch) return;
    for (int t = thread; t < p.seqlen; t += static_cast<int>(blockDim.x)) {
        const auto within = [&](int64_t link) { return static_cast<int16_t>(link > 0 && link < p.seqlen ? link : -1); };
        child[t] = within(load_index(p.tree_child, b, t));
        sibling[t] = within(load_index(p.tree_sibling, b, t));
    }
    __syncthreads();
    if (thread == 0) find_parents(parent, p.seqlen, [&](int t) { return child[t]; }, [&](int t) { return sibling[t]; });
    __syncthreads();

    const RowState row = state_of_row(p, indices_of_row(p, b), p.seqlen);
    if (blockIdx.x == 0 && row.live && p.tree_parent.data)
        for (int t = thread; t < p.seqlen; t += static_cast<int>(blockDim.x)) store_parent(p.tree_parent, b, t, parent[t]);
    if (d >= p.dim) return;
    if (row.live)
        for (int32_t t = p.seqlen - 1; t >= 0; --t) update_one_tree_token<T, S>(p, b, d, row, t, parent);
    else if (p.zero_padding)
        zero_one_channel<T>(p, b, d, {0, p.seqlen});
}

namespace {

template <typename T, typename S>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const dim3 block(power_of_two_up_to(p.dim, kUpdateThreads), 1, 1);
    const dim3 grid = strips_of_rows(p, blocks_up_to(p.dim, block.x, 1 << 30));
    if (p.tree_child.data)
        hipLaunchKernelGGL((causal_conv1d_update_tree<T, S>), grid, block, 0, stream, p);
    else
        hipLaunchKernelGGL((causal_conv1d_update_naive<T, S>), grid, block, 0, stream, p);
    check_launch("causal_conv1d_update");
}

template <typename T>
void with_state_dtype(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    with_dtype(p.state_dtype, [&](auto type) { launch<T, decltype(type)>(p, stream); });
}

}  // namespace

void causal_conv1d_update_naive(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { with_state_dtype<decltype(type)>(p, static_cast<hipStream_t>(stream)); });
}

KernelTable<CausalConv1dUpdateParams> causal_conv1d_update_kernels() { return {kUpdateKernels, std::size(kUpdateKernels)}; }

}  // namespace hipconv
