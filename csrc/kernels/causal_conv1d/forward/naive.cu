// This kernel is the causal conv1d forward on GPUs ("naive"): a thread makes one output element at a time, by the formula. It
// serves any width, any strides and any sizes. Lanes lie along the denser of x's two inner axes, so that neighbours read
// neighbouring addresses in both layouts; every loop is grid-stride, because a grid dimension has a limit (65,535 blocks on
// NVIDIA, 2^32 work-items on AMD).
#include <hip/hip_runtime.h>

#include <iterator>

#include "../common/launch.h"
#include "causal_conv1d/forward_formula.h"
#include "device/arch.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kThreads = 256;

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 4) causal_conv1d_fwd_naive(CausalConv1dFwdParams p, bool lanes_along_dim) {
    const int64_t inner_size = lanes_along_dim ? p.dim : p.seqlen;
    const int64_t outer_size = lanes_along_dim ? p.seqlen : p.dim;
    const int64_t first_inner = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t first_outer = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;

    for (int64_t b = blockIdx.z; b < p.batch; b += gridDim.z) {
        for (int64_t outer = first_outer; outer < outer_size; outer += static_cast<int64_t>(gridDim.y) * blockDim.y) {
            for (int64_t inner = first_inner; inner < inner_size; inner += static_cast<int64_t>(gridDim.x) * blockDim.x) {
                causal_conv1d_one_output<T, float>(first_parameter_again(p), b, lanes_along_dim ? inner : outer,
                                                   lanes_along_dim ? outer : inner);
            }
        }
    }
}

namespace {

template <typename T>
void launch_naive(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const bool lanes_along_dim = dim_is_inner(p.x);
    const int32_t inner = lanes_along_dim ? p.dim : p.seqlen;
    const int32_t outer = lanes_along_dim ? p.seqlen : p.dim;

    const unsigned lanes = power_of_two_up_to(inner, kThreads);
    const dim3 block(lanes, kThreads / lanes, 1);
    const dim3 grid(blocks_up_to(inner, block.x, 65535), blocks_up_to(outer, block.y, 65535), blocks_up_to(p.batch, 1, 65535));
    hipLaunchKernelGGL(causal_conv1d_fwd_naive<T>, grid, block, 0, stream, p, lanes_along_dim);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

const char* causal_conv1d_naive_form(const CausalConv1dFwdParams& p) {
    return dim_is_inner(p.x) ? "naive_lanes_along_dim" : "naive_lanes_along_seqlen";
}

void causal_conv1d_naive(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { launch_naive<decltype(type)>(p, static_cast<hipStream_t>(stream)); });
}

bool causal_conv1d_fwd_serves_f64() { return false; }

KernelTable<CausalConv1dFwdParams> causal_conv1d_fwd_kernels() { return {kFwdKernels, std::size(kFwdKernels)}; }

}  // namespace hipconv
