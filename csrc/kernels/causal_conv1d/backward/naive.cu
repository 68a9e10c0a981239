// These kernels are the causal conv1d backward on GPUs ("naive"): in one, a thread makes one element of dx at a time, by the
// formula; in the other, one partial sum of dweight or dbias. They serve any width, any strides and any sizes; every loop is
// grid-stride.
#include <hip/hip_runtime.h>

#include <iterator>

#include "../common/launch.h"
#include "causal_conv1d/forward_formula.h"
#include "causal_conv1d/states_formula.h"
#include "device/arch.h"
#include "kernels.h"
#include "launch/check.h"
#include "sums.h"

namespace hipconv {

constexpr int kNaiveThreads = 256;
constexpr int kNaiveTokens = 64;  // of a partial sum

// This kernel makes dx, and dinitial_states as the dx of `before` tokens before each row.
template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kNaiveThreads, 4)
    causal_conv1d_bwd_naive(CausalConv1dBwdParams p, int32_t before, bool lanes_along_dim) {
    const int64_t tokens = int64_t{p.in.seqlen} + before;
    const int64_t inner_size = lanes_along_dim ? p.in.dim : tokens;
    const int64_t outer_size = lanes_along_dim ? tokens : p.in.dim;
    const int64_t first_inner = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t first_outer = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
    for (int64_t b = blockIdx.z; b < p.in.batch; b += gridDim.z) {
        for (int64_t outer = first_outer; outer < outer_size; outer += static_cast<int64_t>(gridDim.y) * blockDim.y) {
            for (int64_t inner = first_inner; inner < inner_size; inner += static_cast<int64_t>(gridDim.x) * blockDim.x)
                bwd_one_input<T, float>(first_parameter_again(p), b, lanes_along_dim ? inner : outer,
                                        (lanes_along_dim ? outer : inner) - before);
        }
    }
}

// A thread makes one partial sum: over kNaiveTokens tokens of a sequence, for one of the width + 1 sums of a channel.
template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kNaiveThreads, 4) causal_conv1d_bwd_naive_sums(CausalConv1dBwdParams p, int64_t pieces) {
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim, rows = p.in.batch * pieces;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const int64_t b = row / pieces, begin = (row - b * pieces) * kNaiveTokens;
        const int64_t end = begin + kNaiveTokens < p.in.seqlen ? begin + kNaiveTokens : p.in.seqlen;
        for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < columns;
             c += static_cast<int64_t>(gridDim.x) * blockDim.x) {
            const int i = static_cast<int>(c / p.in.dim);
            float sum = 0.0f;
            for (int64_t t = begin; t < end; ++t)
                sum += bwd_one_term<T, float>(first_parameter_again(p), b, c - int64_t{i} * p.in.dim, t, i);
            static_cast<float*>(p.partials)[row * columns + c] = sum;
        }
    }
}

namespace {

int64_t naive_pieces(const CausalConv1dBwdParams& p) { return (int64_t{p.in.seqlen} + kNaiveTokens - 1) / kNaiveTokens; }

BwdPartials naive_partials(const CausalConv1dBwdParams& p) { return equal_partials(p.in.batch * naive_pieces(p)); }

template <typename T>
void launch_naive(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const bool lanes_along_dim = dim_is_inner(p.in.x);
    const int32_t before = p.dinitial_states.data ? p.in.width - 1 : 0;
    const int64_t tokens = int64_t{p.in.seqlen} + before;
    const int64_t inner = lanes_along_dim ? p.in.dim : tokens, outer = lanes_along_dim ? tokens : p.in.dim;
    if (tokens > 0) {
        const unsigned lanes = power_of_two_up_to(inner, kNaiveThreads);
        const dim3 block(lanes, kNaiveThreads / lanes, 1);
        const dim3 grid(blocks_up_to(inner, block.x, 65535), blocks_up_to(outer, block.y, 65535),
                        blocks_up_to(p.in.batch, 1, 65535));
        hipLaunchKernelGGL(causal_conv1d_bwd_naive<T>, grid, block, 0, stream, p, before, lanes_along_dim);
        check_launch("causal_conv1d_bwd");
    }
    if (p.in.seqlen > 0) {
        const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim, pieces = naive_pieces(p);
        const dim3 grid(blocks_up_to(columns, kNaiveThreads, 65535), blocks_up_to(p.in.batch * pieces, 1, 65535), 1);
        hipLaunchKernelGGL(causal_conv1d_bwd_naive_sums<T>, grid, dim3(kNaiveThreads, 1, 1), 0, stream, p, pieces);
        check_launch("causal_conv1d_bwd");
    }
}

}  // namespace

int64_t causal_conv1d_bwd_naive_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, naive_partials(p), /*looks_at_taps=*/false);
}

void causal_conv1d_bwd_naive(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    const BwdPartials partials = naive_partials(params);
    const CausalConv1dBwdParams p = bwd_sums_begin(params, partials, /*looks_at_taps=*/false, workspace, hip_stream);
    with_dtype(p.in.dtype, [&](auto type) { launch_naive<decltype(type)>(p, hip_stream); });
    bwd_sums_add_up(p, partials, hip_stream);
}

KernelTable<CausalConv1dBwdParams> causal_conv1d_bwd_kernels() { return {kBwdKernels, std::size(kBwdKernels)}; }

bool causal_conv1d_bwd_serves_f64() { return false; }

}  // namespace hipconv
