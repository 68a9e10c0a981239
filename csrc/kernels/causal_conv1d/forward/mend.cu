// These kernels complete the causal conv1d forward of rows that continue from a state, end in one, or hold packed sequences.
// They serve any width and any strides; every loop is grid-stride.
//
// "mend" runs after a kernel that has made such rows as if they were plain, and makes only the outputs that differ. The threads
// of a block look at a token each. For the tokens that see something else, a few at the start of each sequence, they together
// make all channels by the formula.
//
// "final_states" has a thread a channel of a row, which writes its final state: the channels of all rows follow one another, so
// that rows of few channels fill blocks, too. As that state may lie in the memory of the initial one, it runs when all outputs
// are there.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/forward_formula.h"
#include "device/arch.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kMendThreads = 256;

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kMendThreads, 4) causal_conv1d_fwd_mend(CausalConv1dFwdParams p, int64_t tokens) {
    constexpr int kWaves = kMendThreads / kWaveSize;
    HIPCONV_SHARED(uint64_t, differing, kWaves);  // a bit for each of the block's tokens
    const int thread = static_cast<int>(threadIdx.x);
    for (int64_t b = blockIdx.z; b < p.batch; b += gridDim.z) {
        for (int64_t first = static_cast<int64_t>(blockIdx.x) * kMendThreads; first < tokens;
             first += static_cast<int64_t>(gridDim.x) * kMendThreads) {
            const int64_t own = first + thread;
            const uint64_t bits = __ballot(own < tokens && differs_from_plain_row(first_parameter_again(p), b, own));
            __syncthreads();  // those of the round before are done with
            if (thread % kWaveSize == 0) differing[thread / kWaveSize] = bits;
            __syncthreads();
            for (int wave = 0; wave < kWaves; ++wave) {
                uint64_t left = differing[wave];
                for (int64_t t = first + wave * kWaveSize; left != 0; ++t, left >>= 1) {
                    if ((left & 1) == 0) continue;
                    for (int64_t d = static_cast<int64_t>(blockIdx.y) * kMendThreads + thread; d < p.dim;
                         d += static_cast<int64_t>(gridDim.y) * kMendThreads)
                        causal_conv1d_one_output<T, float>(first_parameter_again(p), b, d, t);
                }
            }
        }
    }
}

// Writes a row's final state. Without ids, some columns are under way together, oldest first: each comes from a column that
// is not older, so it may lie where the initial state does. One that comes from nowhere is read from where it goes, as a
// condition would make the others wait.
template <typename T>
HIPCONV_INLINE void write_final_state(const CausalConv1dFwdParams& p, int64_t b, int64_t d) {
    constexpr int kAtOnce = 8;
    if (p.seq_idx.data) return causal_conv1d_one_final_state<T>(p, b, d);
    const int past = p.width - 1;
    const bool has_state = p.initial_states.data;
    T* to = &at<T>(p.final_states, b, d, 0);
    const T* x = &at<const T>(p.x, b, d, int64_t{p.seqlen} - past);
    const T* state = &at<const T>(has_state ? p.initial_states : p.x, b, d, p.seqlen);
    for (int first = 0; first < past; first += kAtOnce) {
        T values[kAtOnce];
        T* place = to;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const bool is_token = p.seqlen - past + first + i >= 0;
            values[i] = T{};
            if (first + i >= past) break;
            values[i] = *(is_token ? x : has_state ? state : place);
            if (!is_token && !has_state) values[i] = T{};
            x += p.x.seqlen_stride;
            state += p.initial_states.seqlen_stride;
            place += p.final_states.seqlen_stride;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (first + i >= past) break;
            *to = values[i];
            to += p.final_states.seqlen_stride;
        }
    }
}

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kMendThreads, 4) causal_conv1d_fwd_final_states(CausalConv1dFwdParams p) {
    const int64_t all = static_cast<int64_t>(p.batch) * p.dim;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * kMendThreads; first < all;
         first += static_cast<int64_t>(gridDim.x) * kMendThreads) {
        const int64_t first_row = first / p.dim;  // the same for all threads
        const uint32_t channel = static_cast<uint32_t>(first - first_row * p.dim) + threadIdx.x;
        const uint32_t rows = channel / static_cast<uint32_t>(p.dim);
        if (first + threadIdx.x < all) write_final_state<T>(p, first_row + rows, channel - rows * static_cast<uint32_t>(p.dim));
    }
}

void causal_conv1d_mend(const CausalConv1dFwdParams& p, void* stream) {
    // Without sequences in a row, only its first tokens can differ.
    const int64_t near_begin = p.seqlen < p.width ? p.seqlen : p.width - 1;
    const int64_t tokens = p.seq_idx.data ? p.seqlen : near_begin;
    const dim3 grid(blocks_up_to(tokens, kMendThreads, 65535), blocks_up_to(p.dim, kMendThreads, 16),
                    blocks_up_to(p.batch, 1, 65535));
    with_dtype(p.dtype, [&](auto type) {
        hipLaunchKernelGGL(causal_conv1d_fwd_mend<decltype(type)>, grid, dim3(kMendThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), p, tokens);
    });
    check_launch("causal_conv1d_fwd");
}

void causal_conv1d_final_states(const CausalConv1dFwdParams& p, void* stream) {
    const dim3 grid(blocks_up_to(static_cast<int64_t>(p.batch) * p.dim, kMendThreads, kGridLimit / 2), 1, 1);
    with_dtype(p.dtype, [&](auto type) {
        hipLaunchKernelGGL(causal_conv1d_fwd_final_states<decltype(type)>, grid, dim3(kMendThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), p);
    });
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
