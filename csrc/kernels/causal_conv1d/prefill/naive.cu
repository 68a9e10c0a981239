// This kernel is the causal conv1d over packed sequences on GPUs ("naive"): a thread walks one channel of one sequence by the
// formula, then writes that sequence's states. It serves any width and any strides. One thread has all of a slot's channel, so
// nothing is read after it was overwritten. Loops are grid-stride, because a grid dimension has a limit (65,535 blocks on
// NVIDIA, 2^32 work-items on AMD).
#include <hip/hip_runtime.h>

#include <iterator>

#include "../common/launch.h"
#include "causal_conv1d/prefill_formula.h"
#include "device/arch.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kNaiveThreads = 128;

__global__ void HIPCONV_LAUNCH_BOUNDS(kNaiveThreads, 4) causal_conv1d_varlen_naive(CausalConv1dVarlenParams p) {
    const int64_t first_channel = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t first_sequence = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
    for (int64_t b = first_sequence; b <= p.sequences; b += static_cast<int64_t>(gridDim.y) * blockDim.y)
        for (int64_t d = first_channel; d < p.dim; d += static_cast<int64_t>(gridDim.x) * blockDim.x)
            convolve_sequence(first_parameter_again(p), static_cast<int32_t>(b), d);
}

void launch_causal_conv1d_varlen_naive(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/, void* /*workspace*/,
                                       void* stream) {
    const unsigned lanes = power_of_two_up_to(p.dim, kNaiveThreads);
    const dim3 block(lanes, kNaiveThreads / lanes, 1);
    const dim3 grid(blocks_up_to(p.dim, block.x, 65535), blocks_up_to(int64_t{p.sequences} + 1, block.y, 65535), 1);
    hipLaunchKernelGGL(causal_conv1d_varlen_naive, grid, block, 0, static_cast<hipStream_t>(stream), p);
    check_launch("causal_conv1d_varlen");
}

static constexpr KernelTable<CausalConv1dVarlenParams, VarlenTile> kTable = {kVarlenKernels, std::size(kVarlenKernels)};

KernelTable<CausalConv1dVarlenParams, VarlenTile> causal_conv1d_varlen_kernels() { return kTable; }

KernelTable<CausalConv1dVarlenParams, VarlenTile> causal_conv1d_varlen_in_place_kernels() {
    return {kVarlenInPlaceKernels, std::size(kVarlenInPlaceKernels), &kTable};
}

}  // namespace hipconv
