// Causal conv1d forward of rows that continue from a state, end in one, or hold packed sequences. A thread makes one output
// element at a time, by the formula; then one thread a channel writes the row's final state. Any width, any strides; every loop
// is grid-stride.
//
// The final state may lie in the memory of the initial state, so it is written by a second kernel, when all outputs are there.
#include <hip/hip_runtime.h>

#include "arch.h"
#include "causal_conv1d_formula.h"
#include "causal_conv1d_launchers.h"
#include "causal_conv1d_states_formula.h"
#include "check.h"
#include "registers.h"

namespace hipconv {

constexpr int kStatesThreads = 256;

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStatesThreads, 4)
    causal_conv1d_states_outputs(CausalConv1dStatesParams p, bool lanes_along_dim) {
    const int64_t inner_size = lanes_along_dim ? p.in.dim : p.in.seqlen;
    const int64_t outer_size = lanes_along_dim ? p.in.seqlen : p.in.dim;
    const int64_t first_inner = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t first_outer = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
    for (int64_t b = blockIdx.z; b < p.in.batch; b += gridDim.z) {
        for (int64_t outer = first_outer; outer < outer_size; outer += static_cast<int64_t>(gridDim.y) * blockDim.y) {
            for (int64_t inner = first_inner; inner < inner_size; inner += static_cast<int64_t>(gridDim.x) * blockDim.x)
                states_one_output<T, float>(first_argument_again(p), b, lanes_along_dim ? inner : outer,
                    lanes_along_dim ? outer : inner);
        }
    }
}

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStatesThreads, 4) causal_conv1d_final_states(CausalConv1dStatesParams p) {
    for (int64_t b = blockIdx.y; b < p.in.batch; b += gridDim.y) {
        for (int64_t d = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; d < p.in.dim;
             d += static_cast<int64_t>(gridDim.x) * blockDim.x)
            states_one_final_state<T>(p, b, d);
    }
}

namespace {

template <typename T>
void launch(const CausalConv1dStatesParams& p, hipStream_t stream) {
    if (p.in.seqlen > 0) {
        const bool lanes_along_dim = dim_is_inner(p.in.x);
        const int32_t inner = lanes_along_dim ? p.in.dim : p.in.seqlen, outer = lanes_along_dim ? p.in.seqlen : p.in.dim;
        const unsigned lanes = power_of_two_up_to(inner, kStatesThreads);
        const dim3 block(lanes, kStatesThreads / lanes, 1);
        const dim3 grid(blocks_up_to(inner, block.x, 65535), blocks_up_to(outer, block.y, 65535),
                        blocks_up_to(p.in.batch, 1, 65535));
        hipLaunchKernelGGL(causal_conv1d_states_outputs<T>, grid, block, 0, stream, p, lanes_along_dim);
        check_launch("causal_conv1d_states");
    }
    if (p.final_states.data && p.in.width > 1) {
        const dim3 grid(blocks_up_to(p.in.dim, kStatesThreads, 65535), blocks_up_to(p.in.batch, 1, 65535), 1);
        hipLaunchKernelGGL(causal_conv1d_final_states<T>, grid, dim3(kStatesThreads, 1, 1), 0, stream, p);
        check_launch("causal_conv1d_states");
    }
}

}  // namespace

bool causal_conv1d_states_serve_f64() { return false; }

void causal_conv1d_states_fwd(const CausalConv1dStatesParams& p, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    switch (p.in.dtype) {
        case DType::f16:
            return launch<f16>(p, hip_stream);
        case DType::bf16:
            return launch<bf16>(p, hip_stream);
        default:
            return launch<float>(p, hip_stream);
    }
}

}  // namespace hipconv
