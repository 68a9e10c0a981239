// This kernel is the causal conv1d forward of rows that continue from a state, end in one, or hold packed sequences. It runs
// after a fast kernel has made them as if they were plain rows, and makes only the outputs that differ. The threads of a block
// look at a token each. For the tokens that see something else, a few at the start of each sequence, they together make all
// channels by the formula. Then one thread a channel writes the row's final state. Any width and any strides are served; every
// loop is grid-stride.
//
// The final state may lie in the memory of the initial state, so a kernel of its own writes it, when all outputs are there.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "device/arch.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kStatesThreads = 256;

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStatesThreads, 4) causal_conv1d_states_mend(CausalConv1dStatesParams p, int64_t tokens) {
    constexpr int kWaves = kStatesThreads / kWaveSize;
    HIPCONV_SHARED(uint64_t, differing, kWaves);  // a bit for each of the block's tokens
    const int thread = static_cast<int>(threadIdx.x);
    for (int64_t b = blockIdx.z; b < p.in.batch; b += gridDim.z) {
        for (int64_t first = static_cast<int64_t>(blockIdx.x) * kStatesThreads; first < tokens;
             first += static_cast<int64_t>(gridDim.x) * kStatesThreads) {
            const int64_t own = first + thread;
            const uint64_t bits = __ballot(own < tokens && differs_from_plain_row(first_parameter_again(p).in, b, own));
            __syncthreads();  // those of the round before are done with
            if (thread % kWaveSize == 0) differing[thread / kWaveSize] = bits;
            __syncthreads();
            for (int wave = 0; wave < kWaves; ++wave) {
                uint64_t left = differing[wave];
                for (int64_t t = first + wave * kWaveSize; left != 0; ++t, left >>= 1) {
                    if ((left & 1) == 0) continue;
                    for (int64_t d = static_cast<int64_t>(blockIdx.y) * kStatesThreads + thread; d < p.in.dim;
                         d += static_cast<int64_t>(gridDim.y) * kStatesThreads)
                        states_one_output<T, float>(first_parameter_again(p), b, d, t);
                }
            }
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
    // Without sequences in a row, only its first tokens can differ.
    const int64_t near_begin = !p.in.initial_states.data ? 0 : p.in.seqlen < p.in.width ? p.in.seqlen : p.in.width - 1;
    const int64_t tokens = p.in.seq_idx.data ? p.in.seqlen : near_begin;
    if (tokens > 0) {
        const dim3 grid(blocks_up_to(tokens, kStatesThreads, 65535), blocks_up_to(p.in.dim, kStatesThreads, 16),
                        blocks_up_to(p.in.batch, 1, 65535));
        hipLaunchKernelGGL(causal_conv1d_states_mend<T>, grid, dim3(kStatesThreads, 1, 1), 0, stream, p, tokens);
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
